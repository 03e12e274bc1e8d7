"""Each write of reference files, reports, and results of measurements fails once.

`uv run pytest -m faults tests/faults/test_result_files.py`; a point is named by fault and number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evalution
from evalution import Generation
from evalution.fidelity.reference_file import Recording, ReferenceFile, ReferenceWriter
from evalution.fidelity.requests import Window
from evalution.fidelity.result import Side
from evalution.report.page import write_report
from evalution.result_file import ResultFile
from evalution_core import EvalutionError
from evalution_enginekit.mock import Mock
from faulty_disk import FAULTS, FaultyDisk, Operation, lose_power

pytestmark = pytest.mark.faults

SEED = 20261124
POWER_CUTS = 300
WINDOWS = [Window(list(range(start, start + 6)), 2) for start in range(3)]
RECORDING = Recording(
    side=Side({"path": "m"}, {"name": "Reference"}, 1_000),
    vocabulary=4_000,
    tokenizer="t0",
    window=16,
    texts={"wiki": "d0"},
    top=None,
    versions={"evalution": "0.1.0"},
)


def draw_rows(window: Window) -> Any:
    shape = (len(window.scored_ids), RECORDING.vocabulary)
    logits = np.random.default_rng(window.input_ids[0]).normal(size=shape) * 3
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    return logits.astype(np.float32)


def record(folder: Path, report: Callable[[int], None]) -> list[int]:
    """Record what isn't there; return the windows that were."""
    found: list[int] = []
    with ReferenceWriter(folder / "reference.sqlite", RECORDING) as writer:
        for number, window in enumerate(WINDOWS):
            if writer.has(window):
                found.append(number)
                continue
            with writer.add_window(window) as add:
                add(draw_rows(window))
            report(number)
        writer.finish()
    return found


def read_reference(folder: Path) -> list[bytes]:
    with ReferenceFile(folder / "reference.sqlite") as reference:
        return [np.asarray(rows).tobytes() for _, rows in reference.read(WINDOWS)]


@dataclass
class Measured:
    """As small as a result can be."""

    schema_version: int
    figures: list[float]

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": self.schema_version, "figures": self.figures}


MEASURED = ResultFile("noise.json", Measured, "a measurement", "evalution noise", newest_schema=1)


def write_measured(folder: Path) -> None:
    if MEASURED.is_in(folder / "out"):  # only the sync of the folder had failed
        return
    MEASURED.make_folder(folder / "out")
    MEASURED.write(Measured(1, [0.5] * 20_000), folder / "out")


def read_measured(folder: Path) -> Any:
    return MEASURED.read(folder / "out")


@pytest.fixture(scope="module")
def finished() -> Any:
    rows = [{"a": "1", "b": "2"}] * 3
    suite = Generation(data=rows, prompt="a", target="b", max_new_tokens=4)
    return evalution.run(engine=Mock(), model="m", tests=[suite])


def assert_sentence(error: EvalutionError, folder: Path) -> None:
    text = str(error)
    assert str(folder) in text, text
    assert re.search(r"can't be written|name another|is damaged .*record it again", text), text


def fail_at_each_point(
    tmp_path: Path, write: Callable[[Path], Any], read: Callable[[Path], Any]
) -> None:
    """Fail once at each operation: a sentence, and then the file as if nothing had happened."""
    folder = tmp_path / "counted"
    folder.mkdir()
    counted = FaultyDisk(folder)
    with counted():
        write(folder)
    whole = read(folder)
    for fault in FAULTS:
        for point, operation in enumerate(counted.log):
            folder = tmp_path / f"{fault} {point}"
            folder.mkdir()
            try:
                with FaultyDisk(folder, point, fault)():
                    write(folder)
            except EvalutionError as error:
                assert_sentence(error, folder)
                left = [file.name for file in folder.rglob("*.part")]
                assert not left or operation.kind == "unlink", f"{fault} at {operation[:2]}: {left}"
                write(folder)
            assert read(folder) == whole, f"{fault} at {operation[:2]}"
    print(f"{len(counted.log)} operations, {len(FAULTS)} faults")


def test_measurement_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    fail_at_each_point(tmp_path, write_measured, read_measured)


def test_report_is_written_whole_or_not_at_all(tmp_path: Path, finished: Any) -> None:
    fail_at_each_point(
        tmp_path,
        lambda folder: write_report([finished], folder / "report.html"),
        lambda folder: (folder / "report.html").read_bytes(),
    )


def test_recorded_window_outlasts_a_failing_disk(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        reported = reports.setdefault(folder, [])
        before = list(reported)
        assert set(before) <= set(record(folder, reported.append))

    reports: dict[Path, list[int]] = {}
    fail_at_each_point(tmp_path, write, read_reference)


def test_recorded_window_outlasts_a_power_cut(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    disk = FaultyDisk(first)
    with disk():
        record(first, lambda number: disk.log.append(Operation("report", str(first), number)))
    whole = read_reference(first)
    chance = random.Random(SEED)
    for number in range(POWER_CUTS):
        cut = chance.randrange(1, len(disk.log) + 1)
        log = disk.log[:cut]
        folder = tmp_path / str(number)
        folder.mkdir()
        for path, content in lose_power(log, random.Random(SEED + number)).items():
            (folder / Path(path).name).write_bytes(content)
        with FaultyDisk(folder)():
            found = record(folder, lambda _: None)
        reported = [done.data for done in log if done.kind == "report"]
        assert set(reported) <= set(found), f"seed {SEED + number}, after operation {cut}"
        assert read_reference(folder) == whole, f"seed {SEED + number}, after operation {cut}"
