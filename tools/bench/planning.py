"""Print what a run costs at its start, and what each row adds: processor time and memory.

Every run is a process of its own with one thread. The cost of a row is the difference between a
long run and a short one, divided by their rows; the rest is the start. Medians; shapes and
repetitions stand in planning.toml.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from random_llama import draw_text, write_checkpoint

SEED = 7
MIB = 1024
"""Kilobytes, in which Linux counts the memory of a process."""


def write_rows(file: Path, config: Mapping[str, Any], vocabulary: int) -> None:
    """Write questions of `prompt_words`, each with four choices."""
    chance = random.Random(SEED)

    def draw(count: int) -> str:
        return draw_text(chance, (count, count), vocabulary)

    rows = [
        {
            "question": draw(config["prompt_words"]),
            "choices": [draw(config["choice_words"]) for _ in range(4)],
            "answer": 0,
        }
        for _ in range(max(config["rows"]))
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def make_tests(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a suite that scores and one that generates, over the same rows."""
    asked = {"data": "rows.jsonl", "prompt": "question", "target": "answer"}
    return {
        "scores of 4 choices": {"type": "multiple_choice", **asked, "choices": "choices"},
        f"{config['new_tokens']} new tokens": {
            "type": "generation",
            **asked,
            "max_new_tokens": config["new_tokens"],
        },
    }


def measure(spec: Path, rows: int) -> tuple[float, float]:
    """Run a spec over so many rows; return seconds of processor time, and MiB at its peak."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", str(spec), "--limit", str(rows), "--output", f"{folder}/run", "--quiet"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "evalution", *words], env=environment, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{spec}: exit status {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / MIB


def measure_case(
    folder: Path, config: Mapping[str, Any], declared: Mapping[str, Any]
) -> tuple[float, float, float]:
    """Return milliseconds a row, seconds of the start, and MiB of the longer run."""
    spec = folder / "spec.json"
    spec.write_text(json.dumps(declared), encoding="utf-8")
    short, long = config["rows"]
    found: list[tuple[float, float, float]] = []
    for _ in range(config["pairs"]):
        (least, _), (most, memory) = measure(spec, short), measure(spec, long)
        row = (most - least) / (long - short)
        found.append((1000 * row, least - short * row, memory))
    row, start, memory = map(statistics.median, zip(*found, strict=True))
    return row, start, memory


def main() -> None:
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    print(f"{'model':16}{'a row':22}{'ms a row':>10}{'start, s':>10}{'peak, MiB':>11}")
    for model in config["models"]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path, vocabulary = model["name"], 1000
            if shape := model.get("shape"):
                path, vocabulary = name, shape["vocab_size"]
                count = write_checkpoint(folder, shape, SEED)
                print(f"random Llama: {count / 1e6:.1f} million parameters in float32")
            write_rows(folder / "rows.jsonl", config, vocabulary)
            for row, test in make_tests(config).items():
                declared = {"engine": model["engine"], "model": path, "tests": [test]}
                figures = measure_case(folder, config, declared)
                cells = "{:10.1f}{:10.1f}{:11.0f}".format(*figures)
                print(f"{model['name']:16}{row:22}{cells}", flush=True)


if __name__ == "__main__":
    main()
