"""Simulate releases and count wrong verdicts of `evalution gate`: decisions 0027 and 0029.

    uv run tools/gate_errors.py --releases 2000

A release has suites of so many rows. A row of the baseline turns wrong in the candidate, or a wrong
one right, with given probabilities; their difference is the true loss. `ships at the margin`: the
true loss of one suite is its margin, that of the others 0. `blocks at the margin`: the true loss of
every suite is its margin. `ships without loss` and `blocks at twice the margin` are the power.

Graded rows, in the second table: a share loses all that a score can be, beside one that loses or
gains a part of it; every outcome counts with its probability. `worst` is the number of rows, of
many, at which most releases ship.

Groups, in the third table, all lose all their rows with some probability; in the last columns
three times as many gain a fifth. `worst` is the probability, of several, at which most ship.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from evalution.comparison.comparison import (
    Comparison,
    MetricComparison,
    Pairing,
    SuiteComparison,
)
from evalution.comparison.gate import decide
from evalution.comparison.policy import Policy
from evalution.comparison.significance import (
    PairedTest,
    clustered_t_test,
    mcnemar,
    paired_t_test,
)
from evalution.results import MetricResult, RunResult, SuiteResult

SETTINGS = [
    *((100, 1, churn, 0.02) for churn in (0.0, 0.02)),
    *((1_000, 1, churn, 0.002) for churn in (0.0, 0.02)),
    *(
        (rows, suites, churn, margin)
        for rows, margin in ((250, 0.05), (1_000, 0.02), (10_000, 0.01))
        for suites in (1, 5)
        for churn in (0.0, 0.02, 0.1)
    ),
]
"""Rows of a suite, suites, the share of rows that change beside the loss, and the margin."""
SMALL, FEW, MANY = range(5, 20), range(20, 400, 8), range(1_000, 4_000, 50)
GRADED = [
    (0.05, 0.0, 0.0, FEW),
    (0.05, 0.2, -0.02, FEW),
    (0.05, 0.95, -0.02, FEW),
    (0.07, 0.02, 1.0, FEW),
    (0.0019, 0.9981, -0.0983, MANY),
    (0.0149, 0.9851, -0.2386, FEW),
    (0.23, 0.77, 0.3, SMALL),
    (0.478, 0.522, 0.9, FEW),
    (0.61, 0.39, 0.98, SMALL),
]
"""Share of rows that lose all, of those that change beside, by how much, and numbers of rows."""
GROUPS, PROBABILITIES = 200, (0.05, 0.08, 0.12, 0.2, 0.3)
MMLU = [
    *(10, 14, 15, 26, 14, 10, 10, 10, 17, 10, 10, 24, 11, 14, 38, 13, 10, 31, 20, 10, 16, 20, 19),
    *(39, 27, 24, 15, 54, 22, 20, 24, 22, 13, 12, 11, 16, 11, 10, 23, 10, 78, 35, 90, 31, 31, 32),
    *(28, 153, 27, 61, 11, 24, 20, 10, 17, 17, 10),
]
"""A tenth of the questions of each of its 57 subjects."""
Sizes = Callable[[np.random.Generator], NDArray[np.float64]]
SIZES: dict[str, Sizes] = {
    "5": lambda _: np.full(GROUPS, 5.0),
    **{
        f"log-normal around 5, deviation {spread}": lambda rng, spread=spread: (
            5 * np.exp(spread * rng.normal(size=GROUPS))
        )
        for spread in (0.5, 0.8, 1.2)
    },
    "1, a tenth 10": lambda rng: np.where(rng.random(GROUPS) < 0.1, 10.0, 1.0),
    "1, a tenth 50": lambda rng: np.where(rng.random(GROUPS) < 0.1, 50.0, 1.0),
    "Zipf's, up to 500": lambda rng: np.minimum(rng.zipf(2.0, GROUPS), 500.0),
    "2, one 100": lambda _: np.array([100.0] + [2.0] * (GROUPS - 1)),
    "MMLU's 57": lambda _: np.array(MMLU, float),
}


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
        yield make_suite(str(number), test_rows(rows, lost, won))


def make_suite(name: str, test: PairedTest) -> SuiteComparison:
    score = MetricResult(0.5, None, True, test.pairs)
    return SuiteComparison(
        name, {}, Pairing(), [MetricComparison("acc", True, score, score, test=test)]
    )


@cache
def test_rows(rows: int, lost: int, won: int) -> PairedTest:
    left = [1.0] * lost + [0.0] * (rows - lost)
    right = [0.0] * lost + [1.0] * won + [0.0] * (rows - lost - won)
    return mcnemar(left, right, higher_is_better=True)


def find_graded_share(rows: int, lose: float, share: float, change: float) -> float:
    """Return the share of releases that ship, whose graded rows truly lose the margin."""
    margin, shipped = lose - share * change, 0.0
    for lost, changed in product(list_counts(rows, lose), list_counts(rows, share)):
        chance = find_chance((lost, changed, rows - lost - changed), (lose, share))
        if chance > 1e-8 and lost - change * changed <= margin * rows:
            left = [1.0] * lost + [0.5 - change / 2] * changed
            right = [0.0] * lost + [0.5 + change / 2] * changed
            same = [0.5] * (rows - lost - changed)
            test = paired_t_test(left + same, right + same, (0.0, 1.0), higher_is_better=True)
            shipped += chance * does_ship(test, margin)
    return shipped


def list_counts(rows: int, share: float) -> range:
    """Return the numbers of rows that this share may well be."""
    reach = 6 * math.sqrt(rows * share * (1 - share)) + 6 if 0 < share < 1 else 0
    return range(max(0, math.floor(rows * share - reach)), min(rows, int(rows * share + reach)) + 1)


def find_chance(counts: tuple[int, int, int], shares: tuple[float, float]) -> float:
    """Return the probability of this outcome of a multinomial; rounding leaves no third share."""
    rest = 1 - sum(shares)
    every = [*zip(counts, (*shares, rest if rest > 1e-9 else 0.0), strict=True)]
    if any(count < 0 or (count and not share) for count, share in every):
        return 0.0
    parts = (count * math.log(share) - math.lgamma(count + 1) for count, share in every if count)
    return math.exp(math.lgamma(sum(counts) + 1) + sum(parts))


def does_ship(test: PairedTest, margin: float) -> bool:
    """Return whether `gate` ships a release of this one suite."""
    suite = make_suite("0", test)
    score = suite.metrics[0].left
    assert score is not None
    result = SuiteResult("0", "T", {}, {"acc": score}, test.pairs, 0, None, test.pairs, 0.0)
    run = RunResult({}, {}, {}, {}, suites=[result], status="done")
    found = decide(Policy(loss=margin), Comparison(run, run, [], [suite], [], []))
    return found.verdict == "ship"


def find_grouped_share(sizes: Sizes, probability: float, gain: float, releases: int) -> float:
    """Return the share of releases that ship, whose groups truly lose the margin.

    Each loses all with this probability; where there is a `gain`, three times as many gain it.
    """
    rng, shipped = np.random.default_rng(1), 0
    margin = probability * (1 - 3 * gain)
    for _ in range(releases):
        counts = np.maximum(1, sizes(rng).round()).astype(int)
        groups, chance = np.repeat(np.arange(len(counts)), counts), rng.random(len(counts))
        gains = np.where(chance < probability * (4 if gain else 1), gain, 0.0)
        changes = np.where(chance < probability, -1.0, gains)[groups]
        left, right = np.where(changes < 0, 1.0, 0.5), np.where(changes < 0, 0.0, 0.5 + changes)
        if -changes.mean() <= margin:
            sides = left.tolist(), right.tolist(), groups.tolist()
            shipped += does_ship(
                clustered_t_test(*sides, (0.0, 1.0), higher_is_better=True), margin
            )
    return shipped / releases


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
    print("\n| rows that lose all | that change | by | worst | ships at the margin |")
    print("|---" * 5 + "|")
    for *shares, numbers in GRADED:
        found = {rows: find_graded_share(rows, *shares) for rows in numbers}
        worst = max(found, key=found.__getitem__)
        cells = [*map(str, shares), f"{worst:,}", f"{found[worst]:.1%}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    print("\n| sizes | worst | all are lost | worst | others gain |\n" + "|---" * 5 + "|")
    for name, sizes in SIZES.items():
        cells = [name]
        for gain in (0.0, 0.2):
            found = {
                each: find_grouped_share(sizes, each, gain, releases) for each in PROBABILITIES
            }
            worst = max(found, key=found.__getitem__)
            cells += [str(worst), f"{found[worst]:.1%}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
