"""Print how often `evalution noise` accuses a clean engine: one that only has noise of its own.

`uv run tools/noise_alarms.py` simulates 1,000 measurements of each kind of noise; its last line is
the sum. Exit code 1: there was a false alarm.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from array import array
from collections.abc import Callable, Mapping
from itertools import accumulate

from evalution.noise.measurement import CHANGES, REPEATS
from evalution.noise.result import CONDITIONS, DETERMINISTIC, RANDOM, UNDECIDED, Sampling
from evalution.noise.statistics import Pass, PassComparison, find_verdicts, judge_conditions
from evalution.parity.agreement import Scored

RUNS = 1_000
ROWS = 20
CLEAN = {DETERMINISTIC, RANDOM, UNDECIDED}
KINDS: Mapping[str, Callable[[random.Random], float]] = {
    "none": lambda draw: 0.0,
    "normal": lambda draw: draw.gauss(0, 1e-6),
    "without a mean (Cauchy)": lambda draw: 1e-6 * math.tan(math.pi * (draw.random() - 0.5)),
    "one of two kernels": lambda draw: 1e-6 * (draw.random() < 0.5),
    "one request in fifty": lambda draw: 1e-3 * (draw.random() < 0.02),
}


def draw_pass(draw: random.Random, noise: Callable[[random.Random], float], rows: int) -> Pass:
    """Answers to questions of two choices, whose noise is of another size in each row."""
    found: dict[tuple[int, int, int], Scored] = {}
    for row in range(rows):
        for choice in range(2):
            value = -1.0 + (1 + row) * noise(draw)
            found[0, row, choice] = Scored(value, 1, array("d", [value]), None)
    return found


def draw_sampling(draw: random.Random, *, is_exact: bool) -> Sampling:
    """Honest samples of prompts with little and much entropy; noise parts one text in ten."""
    prompts, samples, same, other, kept, cloned = 16, 4, 0, 0, 0, 0
    first_logprobs: list[float] = []
    for _ in range(prompts):
        peak = draw.uniform(0.05, 0.999)
        weights = [peak * (1 - peak) ** rank for rank in range(50)]
        sums = list(accumulate(weights))
        texts = draw.choices(range(50), cum_weights=sums, k=samples)
        first_logprobs.append(math.log(weights[texts[0]] / sums[-1]))
        is_same, is_fixed = is_exact or draw.random() < 0.9, texts[0] == texts[1]
        same, other, kept = same + is_same, other + is_fixed, kept + (is_same and not is_fixed)
        cloned += len(set(texts)) == 1
    total = math.fsum(first_logprobs)
    chances = (math.exp(total), math.exp((samples - 1) * total))
    return Sampling(prompts, samples, same, other, kept, chances[0], cloned, chances[1])


def draw_verdicts(draw: random.Random, kind: str, rows: int) -> list[str]:
    """Return the verdicts on one simulated clean engine."""
    noise = KINDS[kind]
    passes = {
        name: [draw_pass(draw, noise, rows) for _ in range(REPEATS if name == "alone" else CHANGES)]
        for name in ("alone", *CONDITIONS)
    }
    warm = passes["cache"] + [draw_pass(draw, noise, rows) for _ in range(REPEATS - CHANGES)]
    bases = {"batch": warm, "concurrency": warm}
    questions = {(0, row) for row in range(rows)}
    comparisons = {
        name: PassComparison(bases.get(name, passes["alone"]), passes[name], questions)
        for name in CONDITIONS
    }
    repeats, _, conditions = judge_conditions(comparisons)
    return find_verdicts(repeats, conditions, draw_sampling(draw, is_exact=kind == "none"))


def count_alarms(kind: str, runs: int, rows: int) -> int:
    """Return how many of the simulated engines are called anything but clean."""
    draw = random.Random(kind)
    wanted = {DETERMINISTIC} if kind == "none" else CLEAN
    return sum(not set(draw_verdicts(draw, kind, rows)) <= wanted for _ in range(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    total = 0
    for kind in KINDS:
        alarms = count_alarms(kind, options.runs, options.rows)
        total += alarms
        print(f"noise {kind}: {alarms} false alarms in {options.runs} runs", flush=True)
    print(f"false alarms: {total}")
    sys.exit(bool(total))


if __name__ == "__main__":
    main()
