"""A reader of stdout that leaves, as `head` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def abandoned() -> Iterator[int]:
    """The end of a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_full_disk_behind_the_output_is_a_sentence_and_the_run_is_whole(
    spec: Any, folder: Path
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to write to")
    command = [sys.executable, "-m", "evalution", "run", "-q", spec(folder), "--output", "out"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=folder
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: the output can't be written: No space left on device; files that the command "
        "wrote are whole\n",
    )
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["status"] == "done"


def test_command_whose_reader_left_ends_silently_with_its_work_done(
    abandoned: int, spec: Any, folder: Path
) -> None:
    command = [sys.executable, "-m", "evalution", "run", spec(folder), "--output", "out"]
    done = subprocess.run(
        command, stdout=abandoned, stderr=subprocess.PIPE, text=True, check=False, cwd=folder
    )
    assert done.returncode == 1
    assert "Error" not in done.stderr
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert (found["status"], found["suites"][0]["n"]) == ("done", 30)


@pytest.mark.skipif(os.name == "nt", reason="closes a stream by a word of the shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_nowhere(closed: str, spec: Any, folder: Path) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "evalution"]
    done = subprocess.run(
        [*command, "run", spec(folder), "--output", "out"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert ("results: out" in done.stdout) == (closed in ("<&-", "2>&-"))
    assert (folder / "out" / "results.json").is_file()
