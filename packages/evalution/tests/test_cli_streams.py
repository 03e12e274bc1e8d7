"""The standard streams as a shell may leave them: a reader that left, a full disk, closed ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FULL = Path("/dev/full")
full_disk = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
LOST = "error: the output can't be written: No space left on device\n"


@pytest.fixture(params=[False, True], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    found = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**found, "PYTHONUNBUFFERED": "1"} if request.param else found


@pytest.fixture
def left() -> Iterator[int]:
    """The end of a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def evalution(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evalution", *words]
    return subprocess.run(command, text=True, check=False, **options)


def statuses(folder: Path) -> tuple[str, int]:
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    return found["status"], found["suites"][0]["n"]


def test_a_reader_that_leaves_takes_nothing_from_a_command(
    environment: dict[str, str], left: int, tmp_path: Path
) -> None:
    done = evalution("suites", stdout=left, stderr=subprocess.PIPE, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_goes_on_when_nobody_reads_it(left: int, spec: Any, folder: Path) -> None:
    words = ("run", spec(folder), "--output", "out")
    done = evalution(*words, stdout=left, stderr=left, cwd=folder)
    assert done.returncode == 0
    assert statuses(folder) == ("done", 30)


def test_an_error_keeps_its_status_when_nobody_reads_it(left: int, tmp_path: Path) -> None:
    done = evalution("show", "none", stdout=left, stderr=left, cwd=tmp_path)
    assert done.returncode == 2


@full_disk
def test_an_output_that_is_lost_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    for word in ("suites", "--help"):
        with FULL.open("w") as full:
            done = evalution(
                word, stdout=full, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
            )
        assert (done.returncode, done.stderr) == (1, LOST)


@full_disk
def test_a_run_whose_output_is_lost_is_done(spec: Any, folder: Path) -> None:
    with FULL.open("w") as full:
        words = ("run", spec(folder), "--output", "out")
        done = evalution(*words, stdout=full, stderr=subprocess.PIPE, cwd=folder)
    assert done.returncode == 1
    assert done.stderr.endswith(LOST)
    assert statuses(folder) == ("done", 30)


@full_disk
def test_progress_that_is_lost_costs_nothing(spec: Any, folder: Path) -> None:
    with FULL.open("w") as full:
        words = ("run", spec(folder), "--output", "out")
        done = evalution(*words, stdout=subprocess.PIPE, stderr=full, cwd=folder)
    assert done.returncode == 0
    assert done.stdout.endswith("results: out\n")


CLOSED = """
import os, sys
for descriptor in (0, 1, 2):
    os.close(descriptor)
os.execv(sys.executable, [sys.executable, "-m", "evalution", *sys.argv[1:]])
"""


def test_closed_streams_are_no_journal(spec: Any, folder: Path) -> None:
    for words in (["run", spec(folder), "--output", "out"], ["schema"]):
        command = [sys.executable, "-c", CLOSED, *words]
        assert subprocess.run(command, cwd=folder, check=False).returncode == 0
    assert statuses(folder) == ("done", 30)
    assert (folder / "out" / "journal.sqlite").read_bytes().startswith(b"SQLite format 3")
