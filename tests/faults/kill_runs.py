"""Kill runs, and the workers of runs, at random moments, loading included; compare what they give.

    uv run tests/faults/kill_runs.py --runs 100 --workers 40 --seed 1

A run on Reference and `builtin:tiny` is killed by SIGKILL and started again until enough kills have
hit; each folder must end as one that was never disturbed does. Exit code 1: one doesn't.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import evalution
from evalution import Generation, MultipleChoice, Perplexity
from evalution.replicas import Replicas
from evalution_core import Model
from evalution_reference import Reference

MODEL = Model("builtin:tiny")
KILLS_A_RUN = 3
TOLERANCE = 1e-9
"""Relative, of scores: which requests share a batch decides their last digits."""


def suites() -> list[Any]:
    question = "Question: {question}\nAnswer:"
    return [
        Generation(data="builtin:tiny/sums", prompt=question, target="answer", max_new_tokens=48),
        MultipleChoice(
            data="builtin:tiny/choices", prompt=question, choices="choices", target="answer"
        ),
        Perplexity(data="builtin:tiny/prose", text="text"),
    ]


def run(folder: Path, workers: int) -> None:
    engine: Any = Reference(dtype="float64")
    if workers:
        engine = Replicas(engine, workers)
    evalution.run(engine=engine, model=MODEL, tests=suites(), output=folder, limit=24)


def start(folder: Path, workers: int = 0) -> int:
    """Return the id of a process that runs the suites, a fork of this one, whose imports it has."""
    if child := os.fork():
        return child
    status = 1
    try:
        run(folder, workers)
        status = 0
    except BaseException:  # noqa: BLE001 - it is shown, and the process ends
        traceback.print_exc()
    finally:
        os._exit(status)


def finish(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_done(folder: Path) -> bool:
    file = folder / "results.json"
    return file.exists() and json.loads(file.read_bytes())["status"] == "done"


def has_sample(folder: Path) -> bool:
    file = folder / "samples.jsonl"
    return file.exists() and file.stat().st_size > 0


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


def read(folder: Path) -> Any:
    found = json.loads((folder / "results.json").read_bytes())
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines()
    scores = [(suite["name"], suite["n"], suite["metrics"]) for suite in found["suites"]]
    return [found["status"], json.loads(json.dumps(scores)), *map(json.loads, lines)]


def kill_runs(folder: Path, kills: int, chance: random.Random, seconds: float) -> list[Path]:
    """Kill runs so often that as many kills hit; return the folders of the runs."""
    hits, folders = 0, [folder / "run-0"]
    while hits < kills:
        child = start(folders[-1])
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        hits += finish(child) == -signal.SIGKILL
        if is_done(folders[-1]):
            folders.append(folder / f"run-{len(folders)}")
    while not is_done(folders[-1]):
        assert finish(start(folders[-1])) == 0, folders[-1]
    print(f"{hits} kills of runs, {len(folders)} runs", flush=True)
    return folders


def kill_workers(folder: Path, kills: int, chance: random.Random, seconds: float) -> list[Path]:
    """Kill workers of runs, a few in each, until as many kills hit; return the folders.

    In every other run the first kill waits for a sample, so that not all hit workers that load.
    """
    hits, loading, folders = 0, 0, list[Path]()
    while hits < kills:
        folders.append(folder / f"workers-{len(folders)}")
        child = start(folders[-1], workers=2)
        pause = seconds / KILLS_A_RUN
        if len(folders) % 2:
            pause /= 20  # the rest of a run takes less time than loading did
            while not has_sample(folders[-1]):
                time.sleep(0.01)
        for _ in range(min(KILLS_A_RUN, kills - hits)):
            time.sleep(chance.uniform(0, pause))
            if workers := list_children(child):
                os.kill(chance.choice(workers), signal.SIGKILL)
                hits += 1
                loading += not has_sample(folders[-1])
        assert finish(child) == 0, f"{folders[-1]}: the run ended"
    print(f"{hits} kills of workers, {loading} of them while loading, {len(folders)} runs")
    return folders


def list_children(process: int) -> list[int]:
    try:
        threads = Path(f"/proc/{process}/task").iterdir()
        return [int(pid) for one in threads for pid in (one / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def measure(folder: Path, workers: int) -> float:
    """Return the seconds that an undisturbed run takes."""
    started = time.monotonic()
    assert finish(start(folder, workers)) == 0
    return time.monotonic() - started


def compare(folder: Path, runs: int, workers: int, seed: int) -> list[Path]:
    """Return the folders that differ from those of a run that was never disturbed."""
    run(folder / "whole", workers=0)  # here, so that its forks have all imports
    whole, chance = read(folder / "whole"), random.Random(seed)
    folders = kill_runs(folder, runs, chance, measure(folder / "timed", 0))
    folders += kill_workers(folder, workers, chance, measure(folder / "timed workers", 2))
    return [found for found in folders if not is_same(read(found), whole)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="kills of the runner")
    parser.add_argument("--workers", type=int, default=40, help="kills of workers")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        different = compare(Path(folder), chosen.runs, chosen.workers, chosen.seed)
        print(f"different: {[path.name for path in different] or 'none'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
