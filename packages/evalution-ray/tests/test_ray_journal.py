"""`evalution run` on a cluster: a run that is killed goes on from its journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROWS, GATE = 300, 150
IN_FLIGHT = 2 * 16
"""What two actors hold: a batch of eight that runs, and one that waits."""
WAIT_S = 120

pytestmark = pytest.mark.slow


def asked(folder: Path) -> Counter[str]:
    """How often each question reached a session."""
    files = (path for path in folder.iterdir() if "-" in path.name)
    return Counter(line for path in files for line in path.read_text().splitlines() if line)


def test_killed_run_goes_on_from_its_journal(cluster: Any, tmp_path: Path) -> None:
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
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        patience = threading.Event()
        for _ in range(WAIT_S * 10):
            if sum("gate" in text for text in asked(folder)) >= 2 or killed.poll() is not None:
                break
            patience.wait(0.1)
        patience.wait(2.0)  # the journal commits what it has each tenth of a second
        killed.send_signal(signal.SIGKILL)
        killed.wait(WAIT_S)
    before = asked(folder)
    assert GATE <= len(before) <= GATE + IN_FLIGHT, (tmp_path / "log").read_text()
    (folder / "open").touch()

    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S
    )

    assert done.returncode == 0, done.stderr
    again = [text for text, times in asked(folder).items() if times > 1]
    assert len(again) <= IN_FLIGHT, "what was answered is not asked again"
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == ROWS
    assert len(asked(folder)) == ROWS
