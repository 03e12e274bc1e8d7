"""`evalution run` on a cluster: a run that is killed goes on from its journal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

ROWS, GATE = 300, 150
IN_FLIGHT = 2 * 16
"""What two actors hold: a batch of eight that runs, and one that waits."""
WAIT_S = 240

pytestmark = pytest.mark.slow


def asked(folder: Path) -> Counter[str]:
    """How often each question reached a session."""
    files = (path for path in folder.iterdir() if "-" in path.name)
    return Counter(line for path in files for line in path.read_text().splitlines() if line)


def read_journal(run: Path) -> set[int]:
    """The rows with an answer on disk, read from a copy: the run has the file for itself."""
    copy = run.with_name("copy.sqlite")
    try:
        for suffix in ("", "-wal"):
            shutil.copyfile(run / f"journal.sqlite{suffix}", f"{copy}{suffix}")
        with closing(sqlite3.connect(copy)) as reader:
            return {row for (row,) in reader.execute("SELECT row FROM answers")}
    except (OSError, sqlite3.Error):  # it isn't there yet, or was written to meanwhile
        return set()


def test_killed_run_goes_on_from_its_journal(
    cluster: Any, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    folder, run = tmp_path / "actors", tmp_path / "run"
    folder.mkdir()
    rows = [{"q": f"{n} {'gate' if n >= GATE else ''}", "a": str(n)} for n in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "run.json").write_text(
        json.dumps(
            {
                "engine": {
                    "type": "RayReplicas",
                    "engine": {"type": "ray_engines:Troubled", "folder": str(folder)},
                    "replicas": 2,
                },
                "model": "mock",
                "tests": [
                    {
                        "type": "generation",
                        "data": str(tmp_path / "rows.jsonl"),
                        "prompt": "{q}",
                        "target": "a",
                        "max_new_tokens": 2,
                        "name": "sums",
                    }
                ],
            }
        )
    )
    command = [sys.executable, "-m", "evalution", "run", tmp_path / "run.json", "--output", run]
    command.append("--allow-code")
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_until(
            lambda: (
                killed.poll() is not None
                or (
                    sum("gate" in text for text in asked(folder)) == 2
                    and len(read_journal(run)) >= GATE - IN_FLIGHT
                )
            )
        )
        killed.send_signal(signal.SIGKILL)
        killed.wait(WAIT_S)
    kept = read_journal(run)
    assert GATE - IN_FLIGHT <= len(kept) < GATE, (tmp_path / "log").read_text()
    (folder / "open").touch()

    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S
    )

    assert done.returncode == 0, done.stderr
    again = {int(text.split()[0]) for text, times in asked(folder).items() if times > 1}
    assert not again & kept, "what was answered is not asked again"
    assert len(again) <= IN_FLIGHT
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == ROWS
    assert len(asked(folder)) == ROWS
