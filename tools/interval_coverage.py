"""Print how often the intervals of `evalution.fidelity.statistics` contain the truth.

`uv run tools/interval_coverage.py` simulates 2,000 corpora of each kind; the table is that of
docs/decisions/0021-intervals-of-a-divergence.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from evalution.fidelity.divergence import FIGURES, Figures
from evalution.fidelity.result import Estimate
from evalution.fidelity.statistics import (
    bound_logarithm,
    bound_share,
    estimate_contrast,
    estimate_mean,
)

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


def format_table(corpora: int, sizes: Iterable[int]) -> Iterable[str]:
    sizes = tuple(sizes)
    yield f"| corpora | figure | {' | '.join(f'{size} documents' for size in sizes)} |"
    yield f"|---|---|{'---|' * len(sizes)}"
    for kind in KINDS:
        rows = zip(*(measure_coverage(kind, size, corpora) for size in sizes), strict=True)
        for figure, shares in zip(NAMES, rows, strict=True):
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            yield f"| {kind.name} | {figure} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpora", type=int, default=CORPORA)
    parser.add_argument("--documents", type=int, nargs="+", default=[10, 20, 50, 200])
    options = parser.parse_args()
    for line in format_table(options.corpora, options.documents):
        print(line, flush=True)


if __name__ == "__main__":
    main()
