"""Each write, sync, rename and SQLite call of a run fails once: nothing reported is lost.

`uv run pytest -m faults tests/faults/test_run_files.py`; a point is named by its fault and number.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
import evalution.journal.store
import evalution.runs.suite_run
from evalution import Generation, MultipleChoice, Perplexity
from evalution.progress import Progress
from evalution.report.page import read_folders
from evalution_core import EvalutionError
from evalution_enginekit.mock import Mock
from faulty_disk import FAULTS, SHORT, FaultyDisk, Operation, lose_power

pytestmark = pytest.mark.faults

ROWS = 4
SEED = 20261124
POWER_CUTS = 150
REQUESTS = {"sums": ROWS, "choice": 2 * ROWS, "texts": ROWS}


def suites() -> list[Any]:
    rows = [
        {"sum": f"sums {row} {'x' * (row % 4)}", "answer": "4", "choices": ["0", "1"]}
        | {"right": row % 2, "text": f"texts {row} and more"}
        for row in range(ROWS)
    ]
    return [
        Generation(data=rows, prompt="sum", target="answer", name="sums", max_new_tokens=20),
        MultipleChoice(data=rows, prompt="sum", choices="choices", target="right", name="choice"),
        Perplexity(data=rows, text="text", name="texts", batch_size=4),
    ]


class Reports(Progress):
    """Samples that were reported as finished, and those that a run took over, by suite."""

    def __init__(self, disk: FaultyDisk | None = None):
        self.finished: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self._disk = disk
        self._suite = ""

    def suite_started(self, name: str, total: int) -> None:
        self._suite = name

    def samples_cached(self, done: int) -> None:
        self.cached[self._suite] = done

    def sample_finished(self, done: int, failed: int, running: Any) -> None:
        self.finished[self._suite] = done
        if self._disk is not None:
            shown = Operation("report", str(self._disk.folder), dict(self.finished))
            self._disk.log.append(shown)


def run(folder: Path, progress: Progress | None = None) -> Any:
    return evalution.run(
        engine=Mock(), model="m", tests=suites(), output=folder, progress=progress or Progress()
    )


def read(folder: Path) -> tuple[Any, bytes]:
    """Results without timings and notices, and the samples."""
    found = json.loads((folder / "results.json").read_bytes())
    for part in (found, *found["suites"]):
        part.pop("timings")
    for suite in found["suites"]:
        suite.pop("cached", None)
    found.pop("notices")
    return found, (folder / "samples.jsonl").read_bytes()


@pytest.fixture(autouse=True)
def commits_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is committed at once: the operations of a run are always the same."""
    monkeypatch.setattr(evalution.runs.suite_run, "_REPORT_S", 0.0)
    monkeypatch.setattr(evalution.journal.store, "_COMMIT_S", 3600.0)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Any, bytes]:
    run(tmp_path / "whole")
    return read(tmp_path / "whole")


def assert_goes_on(folder: Path, reported: Counter[str], whole: tuple[Any, bytes]) -> None:
    """The run in the folder ends as if it had never been disturbed, with what it had reported."""
    results = folder / "results.json"
    if not results.exists() or json.loads(results.read_bytes())["status"] != "done":
        again = Reports()
        with FaultyDisk(folder)():
            run(folder, again)
        assert not reported - again.cached, "a sample was reported as finished, and is lost"
    assert read(folder) == whole
    (page,) = read_folders([folder]).runs
    for name in REQUESTS:
        assert len(list(page[name].samples)) == ROWS


def count_operations(folder: Path) -> list[Operation]:
    disk = FaultyDisk(folder)
    with disk():
        run(folder)
    return disk.log


@pytest.mark.parametrize("fault", FAULTS)
def test_run_whose_disk_fails_once_says_so_and_goes_on(
    tmp_path: Path, whole: tuple[Any, bytes], fault: str
) -> None:
    operations = count_operations(tmp_path / "counted")
    print(fault, f"{len(operations)} operations, {Counter(done.kind for done in operations)}")
    for point, operation in enumerate(operations):
        if fault == SHORT and operation.kind != "write":
            continue
        folder = tmp_path / f"{fault} {point}"
        disk, reports = FaultyDisk(folder, point, fault), Reports()
        try:
            with disk():
                run(folder, reports)
        except EvalutionError as error:
            text = str(error)
            assert str(folder) in text, (operation, text)
            assert "name another" in text or "can't be written" in text, (operation, text)
        try:
            assert_goes_on(folder, reports.finished, whole)
        except Exception as error:
            raise AssertionError(f"{fault} at {point}: {operation[:2]}") from error


def list_cuts(log: list[Operation]) -> Iterator[tuple[int, int]]:
    chance = random.Random(SEED)
    for number in range(POWER_CUTS):
        yield number, chance.randrange(1, len(log) + 1)


def test_run_that_loses_power_goes_on_with_what_it_had_reported(
    tmp_path: Path, whole: tuple[Any, bytes]
) -> None:
    first = tmp_path / "run"
    disk = FaultyDisk(first)
    with disk():
        run(first, Reports(disk))
    for number, cut in list_cuts(disk.log):
        log = disk.log[:cut]
        shown = [done.data for done in log if done.kind == "report"]
        folder = tmp_path / str(number)
        folder.mkdir()
        for path, content in lose_power(log, random.Random(SEED + number)).items():
            (folder / Path(path).name).write_bytes(content)
        try:
            assert_goes_on(folder, Counter(shown[-1] if shown else {}), whole)
        except Exception as error:
            raise AssertionError(f"seed {SEED + number}, after operation {cut}") from error
