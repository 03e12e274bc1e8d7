"""Time the first pages of `evalution view` over large runs: `uv run tools/bench/view_pages.py`.

Writes runs of one suite with many rows each into a folder, as a run writes them, and asks a server
of its own for the matrix, pages of samples and a comparison. Prints seconds and the server's
largest resident memory. The runs are kept for the next time.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from evalution import MetricResult, RunResult, SampleResult, SuiteResult
from evalution.results import to_json
from evalution.samples_file import SAMPLES, SamplesFile
from evalution.scoring.intervals import wilson_interval

SUITE = "questions"
CHOICES = ("red", "green", "yellow", "blue")


def write_run(folder: Path, rows: int, seed: int) -> None:
    """Write a run with as many rows, of which some two thirds are right."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    file = SamplesFile(folder / SAMPLES)
    right = 0
    for row in range(rows):
        logprobs = [chance.uniform(-9.0, -1.0) for _ in CHOICES]
        is_right = chance.random() < 0.66
        right += is_right
        file.append(
            SampleResult(
                SUITE,
                row,
                f"Question {row}: {'which colour has the sky on a clear day, ' * 5}?\nAnswer:",
                CHOICES[row % 4],
                CHOICES[(row + (not is_right)) % 4],
                {"acc": row % 4, "acc_norm": 1, "choices": CHOICES, "logprobs": logprobs},
                {"acc": float(is_right), "acc_norm": float(chance.random() < 0.6)},
                {"prompt": 52, "scored": 4, "truncated": 0},
            )
        )
    file.finish_suite()
    file.close()
    score = MetricResult(right / rows, 0.001, True, rows, wilson_interval(right / rows, rows))
    metrics = {"acc": score, "acc_norm": score}
    suite = SuiteResult(SUITE, "MultipleChoice", {}, metrics, rows, 0, 0, 4 * rows, 1.0)
    result = RunResult({"path": f"m{seed}"}, {"name": "Bench"}, {}, {}, status="done")
    result.suites = [suite]
    (folder / "results.json").write_text(to_json(result.to_dict()))


def ask(url: str, path: str, **query: object) -> float:
    """Return the seconds until a document is read."""
    started = time.perf_counter()
    with urlopen(f"{url}{path}?{urlencode(query, doseq=True)}") as answer:
        json.load(answer)
    return time.perf_counter() - started


def read_peak(process: int) -> str:
    """Return the most memory that a process held, Linux alone: resident and mapped files."""
    status = Path(f"/proc/{process}/status").read_text()
    return " ".join(status.partition("VmHWM:")[2].split()[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are written, or were")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    for number in range(given.runs):
        folder = given.folder / f"run-{number}"
        if not folder.exists():
            write_run(folder, given.rows, number)
    started = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "evalution", "view", str(given.folder), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    found = re.search(r"http://\S+/", server.stdout.readline())
    assert found is not None
    url, page = found[0], {"run": "run-0", "suite": SUITE}
    times = {"start": time.perf_counter() - started}
    times["matrix"] = ask(url, "api/runs")
    times["first page of samples"] = ask(url, "api/samples", **page)
    times["wrong samples"] = ask(url, "api/samples", **page, which="wrong")
    times["last page"] = ask(url, "api/samples", **page, offset=given.rows - 50)
    times["one sample"] = ask(url, "api/sample", **page, index=given.rows // 2)
    times["sorted by value"] = ask(url, "api/samples", **page, sort="value")
    first = read_peak(server.pid)
    times["search, common text"] = ask(url, "api/samples", **page, q="clear day")
    times["search, last row"] = ask(url, "api/samples", **page, q=f"question {given.rows - 1}:")
    times["flipped samples"] = ask(url, "api/samples", **page, which="flipped", against="run-1")
    runs = [f"run-{number}" for number in range(1, given.runs)]
    times["comparison of all runs"] = ask(url, "api/compare", baseline="run-0", runs=runs)
    after = read_peak(server.pid)
    server.terminate()
    server.wait()
    size = sum(file.stat().st_size for file in given.folder.glob("run-0/*"))
    for name, seconds in times.items():
        print(f"{name:24} {seconds:7.2f} s")
    print(f"most memory of the server: {first}, after searches, which map a file, {after}")
    print(f"folder of a run: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
