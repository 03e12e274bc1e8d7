"""Simulate releases and count wrong verdicts of `evalution gate`: the table of decision 0027.

    uv run tools/gate_errors.py --releases 2000

A release has suites of so many rows. A row of the baseline turns wrong in the candidate, or a wrong
one right, with given probabilities; their difference is the true loss. `ships at the margin`: the
true loss of one suite is its margin, that of the others 0. `blocks at the margin`: the true loss of
every suite is its margin. `ships without loss` and `blocks at twice the margin` are the power.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from evalution.comparison.comparison import (
    Comparison,
    MetricComparison,
    Pairing,
    SuiteComparison,
)
from evalution.comparison.gate import Policy, decide
from evalution.comparison.significance import mcnemar
from evalution.results import MetricResult, RunResult, SuiteResult

SETTINGS = [
    (rows, suites, churn, margin)
    for rows, margin in ((250, 0.05), (1_000, 0.02), (10_000, 0.01))
    for suites in (1, 5)
    for churn in (0.02, 0.1)
]
"""Rows of a suite, suites, the share of rows that change beside the loss, and the margin."""


def simulate(rng: np.random.Generator, rows: int, churn: float, losses: list[float]) -> Comparison:
    """Return a comparison of two runs whose suites truly lose as much."""
    suites = [
        SuiteResult(
            str(number),
            "T",
            {},
            {"acc": MetricResult(0.5, None, True, rows)},
            rows,
            0,
            None,
            rows,
            0.0,
        )
        for number in range(len(losses))
    ]
    run = RunResult({}, {}, {}, {}, suites=suites, status="done")
    return Comparison(run, run, [], [*_simulate_suites(rng, rows, churn, losses)], [], [])


def _simulate_suites(
    rng: np.random.Generator, rows: int, churn: float, losses: list[float]
) -> Iterator[SuiteComparison]:
    for number, loss in enumerate(losses):
        lost, won, _ = rng.multinomial(rows, [churn / 2 + loss, churn / 2, 1 - churn - loss])
        left = [1.0] * lost + [0.0] * (rows - lost)
        right = [0.0] * lost + [1.0] * won + [0.0] * (rows - lost - won)
        test = mcnemar(left, right, higher_is_better=True)
        metric = MetricComparison("acc", True, None, None, test=test)
        yield SuiteComparison(str(number), {}, Pairing(), [metric])


def find_share(
    verdict: str, releases: int, setting: tuple[int, int, float, float], *losses: float
) -> float:
    """Return the share of releases with this verdict, whose suites lose as many margins."""
    rows, suites, churn, margin = setting
    rng = np.random.default_rng(1)
    true = [margin * loss for loss in (*losses, *[losses[-1]] * suites)[:suites]]
    policy = Policy(loss=margin)
    found = [
        decide(policy, simulate(rng, rows, churn, true)).verdict == verdict for _ in range(releases)
    ]
    return sum(found) / releases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=2_000)
    releases = parser.parse_args().releases
    head = ("rows", "suites", "churn", "margin", "ships at the margin", "blocks at the margin")
    print("| " + " | ".join((*head, "ships without loss", "blocks at twice the margin")) + " |")
    print("|---" * 8 + "|")
    for setting in SETTINGS:
        shares = [
            find_share("ship", releases, setting, 1.0, 0.0),
            find_share("block", releases, setting, 1.0),
            find_share("ship", releases, setting, 0.0),
            find_share("block", releases, setting, 2.0),
        ]
        cells = [f"{setting[0]:,}", *map(str, setting[1:]), *(f"{share:.1%}" for share in shares)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
