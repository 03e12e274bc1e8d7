"""Runs and workers killed at random moments: `kill_runs.py` in small."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from kill_runs import compare

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, fork and SIGKILL"),
]


def test_killed_runs_and_workers_give_what_an_undisturbed_run_gives(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    assert compare(tmp_path, runs=10, workers=6, seed=seed) == []
