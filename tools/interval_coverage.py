"""Print how often intervals of clustered figures contain the truth.

`uv run tools/interval_coverage.py` simulates 2,000 corpora of each kind and measures the intervals
of `evalution.fidelity.statistics`; the table is that of
docs/decisions/0021-intervals-of-a-divergence.md. With `--of groups` it is that of
docs/decisions/0029-rows-that-belong-together.md: scores and differences of rows in groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evalution.comparison.significance import clustered_t_test, mcnemar
from evalution.fidelity.divergence import FIGURES, Figures
from evalution.fidelity.result import Estimate
from evalution.fidelity.statistics import (
    bound_logarithm,
    bound_share,
    estimate_contrast,
    estimate_mean,
)
from evalution.scoring.metrics import Mean, Measure, WeightedPerplexity

CORPORA = 2_000
NAMES = ("kl", "contrast", "same_top")


@dataclass(frozen=True)
class Kind:
    """Corpora of one kind: log-normal factors of document and position on a mean of 1.

    `deviation` is of the position's logarithm, `between` of the document's; texts have log-normal
    lengths of this median. In `linked` corpora longer documents have a smaller divergence.
    """

    name: str
    deviation: float = 1.7
    between: float = 0.5
    lengths: float = 300.0
    spread: float = 1.0
    linked: float = 0.0


KINDS = (
    Kind("equal lengths", spread=0.0),
    Kind("unequal lengths"),
    Kind("longer documents differ less", linked=-0.3),
    Kind("heavier tails and clusters", deviation=2.3, between=0.8),
    Kind("answers of some six tokens", lengths=5.0, spread=0.5),
)


def draw_lengths(draw: np.random.Generator, kind: Kind, count: int) -> NDArray[np.int64]:
    lengths = kind.lengths * np.exp(kind.spread * draw.normal(size=count))
    return np.clip(lengths, 1, 5_000).astype(np.int64)


def draw_corpus(
    draw: np.random.Generator, kind: Kind, documents: int
) -> tuple[Figures, Figures, NDArray[np.int64]]:
    """Return the candidate's and the control's figures, and each position's document."""
    lengths = draw_lengths(draw, kind, documents)
    numbers = np.repeat(np.arange(documents), lengths)
    level = np.exp(kind.between * draw.normal(size=documents) - kind.between**2 / 2)
    level *= (lengths / kind.lengths) ** kind.linked
    sides: list[Figures] = []
    for share in (1.0, 0.8):
        figures = np.zeros(len(numbers), FIGURES)
        noise = draw.standard_normal(len(numbers), np.float32) * kind.deviation
        figures["kl"] = share * level[numbers] * np.exp(noise - kind.deviation**2 / 2)
        figures["same_top"] = draw.random(len(numbers)) > 0.02 * level[numbers]
        sides.append(figures)
    return sides[0], sides[1], numbers


@cache
def compute_truth(kind: Kind) -> tuple[float, ...]:
    """Return the figures over all documents that could be drawn."""
    lengths = draw_lengths(np.random.default_rng(0), kind, 1_000_000)
    mean = float((lengths * (lengths / kind.lengths) ** kind.linked).sum() / lengths.sum())
    return mean, 0.2 * mean, 1 - 0.02 * mean


def measure_coverage(kind: Kind, documents: int, corpora: int) -> NDArray[np.float64]:
    """Return for each figure the share of corpora whose interval contains the truth."""
    draw = np.random.default_rng(documents)
    truths = compute_truth(kind)
    held = np.zeros(len(NAMES))
    for _ in range(corpora):
        candidate, control, numbers = draw_corpus(draw, kind, documents)
        estimates = (
            estimate_mean(candidate["kl"], numbers, bound_logarithm),
            estimate_contrast(candidate, control, numbers),
            estimate_mean(candidate["same_top"], numbers, bound_share),
        )
        held += [
            contains(estimate, truth) for estimate, truth in zip(estimates, truths, strict=True)
        ]
    return held / corpora


def contains(estimate: Estimate, truth: float) -> bool:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


@dataclass(frozen=True)
class GroupedKind:
    """Rows in groups of log-normal sizes, whose logit of being right has a part of the group's.

    `between` is the deviation of that part; in `linked` corpora larger groups are harder.
    """

    name: str
    median: float = 5.0
    spread: float = 0.0
    logit: float = 0.5
    between: float = 1.5
    linked: float = 0.0


GROUPED_KINDS = (
    GroupedKind("independent rows", between=0.0),
    GroupedKind("equal sizes"),
    GroupedKind("unequal sizes", spread=0.8),
    GroupedKind("larger groups are harder", spread=0.8, linked=-0.5),
    GroupedKind("rows of a group are alike", between=20.0),
    GroupedKind("nearly all right", spread=0.8, logit=4.5),
)
GROUPED_NAMES = (
    "accuracy",
    "perplexity",
    "difference",
    "lower end of the difference",
    "accuracy, rows as independent",
    "lower end, rows as independent",
)
_SHIFT, _CHANGE = -0.3, 0.5
"""Of the other side's logit: the mean, and the deviation between groups."""

Interval = tuple[float, float] | None


def draw_groups(
    draw: np.random.Generator, kind: GroupedKind, count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the sizes of groups, and the probability of a right row on either side."""
    sizes = kind.median * np.exp(kind.spread * draw.normal(size=count))
    sizes = np.clip(sizes.round(), 1, 200).astype(np.int64)
    logits = kind.logit + kind.between * draw.normal(size=count)
    logits += kind.linked * np.log(sizes / kind.median)
    other = logits + _SHIFT + _CHANGE * (kind.between > 0) * draw.normal(size=count)
    return sizes, 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-other))


@cache
def compute_grouped_truth(kind: GroupedKind) -> tuple[float, ...]:
    """Return the figures over all groups that could be drawn."""
    sizes, left, right = draw_groups(np.random.default_rng(0), kind, 2_000_000)
    share, other = ((sizes * side).sum() / sizes.sum() for side in (left, right))
    difference = float(other - share)
    accuracy, perplexity = float(share), float(np.exp(2 - share))
    return accuracy, perplexity, difference, difference, accuracy, difference


def make_intervals(
    draw: np.random.Generator, kind: GroupedKind, count: int
) -> tuple[Interval, ...]:
    """Return the interval of each figure for one corpus, which all figures are of."""
    sizes, *sides = draw_groups(draw, kind, count)
    groups: list[int] = np.repeat(np.arange(count), sizes).tolist()
    chance = draw.random(len(groups))
    left, right = ((chance < np.repeat(side, sizes)).astype(np.float64).tolist() for side in sides)
    words = draw.integers(5, 40, len(groups))
    logprobs = words * (np.array(left) - 2 + 0.3 * draw.normal(size=len(groups)))
    rows = [Measure(value) for value in left]
    texts = [*map(Measure, logprobs.tolist(), words.tolist())]
    ends = (0.0, 1.0)
    difference = clustered_t_test(left, right, groups, ends, higher_is_better=True)
    return (
        Mean().estimate(rows, groups).interval,
        WeightedPerplexity().estimate(texts, groups).interval,
        difference.interval,
        open_end(difference.cautious_interval),
        Mean().estimate(rows).interval,
        open_end(mcnemar(left, right, higher_is_better=True).interval),
    )


def open_end(interval: Interval) -> Interval:
    """Return what the gate asks of a loss: the lower end alone, which holds 97.5 %."""
    return interval and (interval[0], np.inf)


def measure_grouped_coverage(kind: GroupedKind, count: int, corpora: int) -> NDArray[np.float64]:
    """Return for each figure the share of corpora whose interval contains the truth."""
    draw, truths = np.random.default_rng(count), compute_grouped_truth(kind)
    held = np.zeros(len(GROUPED_NAMES))
    for _ in range(corpora):
        found = zip(make_intervals(draw, kind, count), truths, strict=True)
        held += [ends is not None and ends[0] <= truth <= ends[1] for ends, truth in found]
    return held / corpora


K = TypeVar("K", Kind, GroupedKind)
Measurement = Callable[[K, int, int], NDArray[np.float64]]


def format_table(
    kinds: Sequence[K],
    names: Sequence[str],
    measure: Measurement[K],
    corpora: int,
    head: str,
    sizes: Sequence[int],
) -> Iterable[str]:
    yield f"| corpora | figure | {' | '.join(f'{size} {head}' for size in sizes)} |"
    yield f"|---|---|{'---|' * len(sizes)}"
    for kind in kinds:
        rows = zip(*(measure(kind, size, corpora) for size in sizes), strict=True)
        for figure, shares in zip(names, rows, strict=True):
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            yield f"| {kind.name} | {figure} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpora", type=int, default=CORPORA)
    parser.add_argument("--of", choices=("documents", "groups"), default="documents")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 20, 50, 200])
    options = parser.parse_args()
    asked = options.corpora, options.of, options.sizes
    lines = (
        format_table(GROUPED_KINDS, GROUPED_NAMES, measure_grouped_coverage, *asked)
        if options.of == "groups"
        else format_table(KINDS, NAMES, measure_coverage, *asked)
    )
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
