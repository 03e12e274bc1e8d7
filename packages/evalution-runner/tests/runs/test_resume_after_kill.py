"""SIGKILL at any moment of a run costs what was in flight, and nothing else."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor kill")

SCRIPT = Path(__file__).with_name("killed_runs.py")
SEED = 20261121
POINTS = 22
EVERY = {
    *((suite, row, 0) for suite in ("sums", "texts") for row in range(24)),
    *(("choice", row, position) for row in range(24) for position in (0, 1)),
}
"""All requests: suite, row and position."""


@dataclass
class Job:
    """One process of a run: how it ended, and the events of it."""

    status: int
    events: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def computed(self) -> Counter[tuple[str, int, int]]:
        return Counter(
            (suite, int(row), int(position))
            for phase, (suite, row, position) in self.details("an answer of ")
        )

    @property
    def error(self) -> str:
        """What it ended with."""
        ((_, shown),) = self.details("error")
        return ": ".join(shown)

    def details(self, start: str) -> Iterator[tuple[str, Any]]:
        return (event for event in self.events if event[0].startswith(start))


Work = Callable[..., Job]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """Does a run, or a part of one, in a process of its own."""
    logs = tmp_path_factory.mktemp("logs")
    server = subprocess.Popen(
        [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    answers = server.stdout
    assert answers is not None
    count = 0

    def run(
        folder: Path,
        kill: tuple[str, int] | None = None,
        *,
        is_eager: bool = True,
        file_bytes: int | None = None,
    ) -> Job:
        nonlocal count
        count += 1
        log = logs / str(count)
        job = {"folder": str(folder), "log": str(log), "kill": kill, "is_eager": is_eager}
        print(json.dumps({**job, "file_bytes": file_bytes}), file=server.stdin, flush=True)
        status = int(answers.readline())
        return Job(status, [tuple(json.loads(line)) for line in log.read_text().splitlines()])

    with server:
        yield run
    assert server.returncode == 0


@dataclass
class Whole:
    """A run that was never interrupted."""

    folder: Path
    counts: Counter[str]


@pytest.fixture(scope="module")
def whole(work: Work, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = work(folder)
    assert done.status == 0
    assert done.computed == Counter(EVERY)
    return Whole(folder, Counter(phase for phase, _ in done.events))


def results(folder: Path) -> str:
    """`results.json` as it stands, without timings."""
    found = json.loads((folder / "results.json").read_text("utf-8"))
    for part in (found, *found["suites"]):
        del part["timings"]
    return json.dumps(found, indent=2)


def status(folder: Path) -> str | None:
    file = folder / "results.json"
    return json.loads(file.read_text("utf-8"))["status"] if file.exists() else None


def journaled(folder: Path, scratch: Path) -> set[tuple[str, int, int]]:
    """The requests whose answers a killed process left on disk, read from a copy of the files."""
    scratch.mkdir()
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, scratch / name)
    reader = sqlite3.connect(scratch / "journal.sqlite")
    try:
        if not reader.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return set()
        return set(reader.execute("SELECT suite, row, position FROM answers"))
    finally:
        reader.close()


def assert_whole(folder: Path, whole: Whole) -> None:
    assert results(folder) == results(whole.folder)
    samples = "samples.jsonl"
    assert (folder / samples).read_bytes() == (whole.folder / samples).read_bytes()


def test_uninterrupted_run_has_every_phase(whole: Whole) -> None:
    assert set(whole.counts) == {
        "the start",
        "before the journal is opened",
        "after the journal is opened",
        "before something is declared",
        "after something is declared",
        "before the model is loaded",
        "the model is loaded",
        "an answer of sums",
        "an answer of choice",
        "an answer of texts",
        "before a commit",
        "after a commit",
        "before samples are ordered",
        "after samples are ordered",
        "between suites",
        "before a file is synced",
        "before the results are replaced",
        "after the results are replaced",
        "the session is closed",
    }


def points(counts: Counter[str]) -> list[tuple[str, int]]:
    """Each phase at least once, the first and the last answer; the rest is drawn from all."""
    chance = random.Random(SEED)
    results = "after the results are replaced"
    found = {
        ("an answer of sums", 1): None,
        ("an answer of texts", counts["an answer of texts"]): None,
        (results, counts[results]): None,
    }
    found |= {(phase, chance.randint(1, count)): None for phase, count in sorted(counts.items())}
    every = [(phase, n) for phase in sorted(counts) for n in range(1, counts[phase] + 1)]
    while len(found) < POINTS:
        found[chance.choice(every)] = None
    return list(found)


@pytest.mark.parametrize("number", range(POINTS))
def test_killed_run_goes_on_as_if_nothing_had_happened(
    work: Work, whole: Whole, tmp_path: Path, number: int
) -> None:
    kill = points(whole.counts)[number]
    chance = random.Random(SEED + number)
    # A point that commits decide is sure to come only where it is known how many there are.
    is_eager = "commit" in kill[0] or chance.random() < 0.5
    folder = tmp_path / "run"
    killed = work(folder, kill, is_eager=is_eager)
    assert killed.status == -signal.SIGKILL
    known = journaled(folder, tmp_path / "first") if (folder / "journal.sqlite").exists() else set()
    if chance.random() < 0.4:  # and killed again on its way, if it comes to that
        again = work(folder, (chance.choice(sorted(whole.counts)), 2), is_eager=is_eager)
        assert again.status in (0, -signal.SIGKILL)
        assert not known & set(again.computed)
        if again.status and status(folder) != "done":
            known = journaled(folder, tmp_path / "second")
    known = EVERY if status(folder) == "done" else known
    last = work(folder, is_eager=is_eager)
    assert last.status == 0
    assert last.computed == Counter(EVERY - known)
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted(file.name for file in whole.folder.iterdir())
    assert_whole(folder, whole)


def test_points_hit_every_phase(whole: Whole) -> None:
    chosen = points(whole.counts)
    assert len(set(chosen)) == len(chosen) == POINTS
    assert {phase for phase, _ in chosen} == set(whole.counts)


def test_run_whose_files_may_not_grow_is_reported_and_goes_on(
    work: Work, whole: Whole, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    stopped = work(folder, file_bytes=200_000)
    assert stopped.status == 1
    assert stopped.error == (
        f"JournalError: the journal {folder / 'journal.sqlite'} can't be written: disk I/O error; "
        "what was committed is kept: run the same again when that is mended"
    )
    assert_goes_on(work, whole, folder, tmp_path / "scratch")


def test_run_on_a_full_disk_is_reported_and_goes_on(
    work: Work, whole: Whole, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this needs the right to mount a tmpfs")
    try:
        folder = disk / "run"
        stopped = work(folder)
        assert stopped.status == 1
        assert "can't be written: the disk is full; what was committed is kept" in stopped.error
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert_goes_on(work, whole, folder, tmp_path / "scratch")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def assert_goes_on(work: Work, whole: Whole, folder: Path, scratch: Path) -> None:
    known = journaled(folder, scratch)
    assert 10 < len(known) < len(EVERY)
    last = work(folder)
    assert last.status == 0
    assert last.computed == Counter(EVERY - known)
    assert_whole(folder, whole)


@pytest.mark.parametrize("page", [-1, -3, -5])
def test_run_with_a_damaged_journal_computes_its_answers_again(
    work: Work, whole: Whole, tmp_path: Path, page: int
) -> None:
    folder = tmp_path / "run"
    work(folder, file_bytes=200_000)  # it ends itself, and so leaves no write-ahead log
    journal = folder / "journal.sqlite"
    size = journal.stat().st_size
    with journal.open("r+b") as file:
        file.seek(size + page * 4096)
        file.write(random.Random(SEED).randbytes(4096))
    last = work(folder)
    assert last.status == 0
    assert last.computed == Counter(EVERY)
    found = json.loads(results(folder))
    notice, *others = found["notices"]
    assert notice.startswith(f"the journal {journal} is damaged: ")
    assert "of its answers have to be computed again" in notice
    assert (
        f"the samples that were written are now in {folder / 'samples.damaged-1.jsonl'}" in notice
    )
    expected = json.loads(results(whole.folder))
    assert found | {"notices": others} == expected
    samples = "samples.jsonl"
    assert (folder / samples).read_bytes() == (whole.folder / samples).read_bytes()
