"""A run of lm-eval's tasks that was killed goes on: what was answered isn't asked again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("killed_lm_eval_run.py")


def run(folder: Path, tasks: Path, answers: int) -> int:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(tasks), str(answers)], check=False
    )
    return done.returncode


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    suites = json.loads((folder / "results.json").read_text(encoding="utf-8"))["suites"]
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    samples = sorted(map(json.loads, lines), key=lambda one: (one["suite"], one["index"]))
    return suites, samples


def test_a_killed_run_goes_on_to_the_same_scores(task_folder: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "killed", task_folder, 9) == -signal.SIGKILL
    assert run(tmp_path / "killed", task_folder, 0) == 0
    assert run(tmp_path / "whole", task_folder, 0) == 0
    (killed, samples), (whole, right) = read(tmp_path / "killed"), read(tmp_path / "whole")
    for sample, other in zip(samples, right, strict=True):
        # What shares a pass moves the last digits of float64.
        del sample["extracted"], other["extracted"]
        assert sample == other
    for suite, other in zip(killed, whole, strict=True):
        for name, metric in suite["metrics"].items():
            assert metric == pytest.approx(other["metrics"][name], rel=1e-9)
    choices, sums = (suite["timings"]["recalled"] for suite in killed)
    assert choices == killed[0]["requests"]
    assert 0 < sums < killed[1]["requests"]
