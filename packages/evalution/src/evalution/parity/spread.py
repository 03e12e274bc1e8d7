"""How large differences are, and how many of each size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_DECADE = -17
"""Smaller differences are below what float64 can tell apart."""
_DECADES = 18


@dataclass(frozen=True, slots=True)
class Spread:
    """`count` absolute differences in nats; `p50` and `p99` by nearest rank.

    `infinite` counts those where one side alone says that a token is impossible; the other figures
    leave them out, and are 0 where nothing else is left.
    `decades` is a histogram for a logarithmic plot: how many are 0, then how many lie from 1e-17
    to below 1e-16, and so on, the last being 1 and more.
    """

    count: int
    infinite: int
    max: float
    mean: float
    p50: float
    p99: float
    decades: list[int]


def spread_of(differences: Iterable[float]) -> Spread:
    """The spread of absolute differences, infinite ones among them."""
    finite = array("d")
    infinite = 0
    for difference in differences:
        if math.isinf(difference):
            infinite += 1
        else:
            finite.append(difference)
    ordered = sorted(finite)
    count = len(ordered)
    return Spread(
        count + infinite,
        infinite,
        ordered[-1] if ordered else 0.0,
        math.fsum(ordered) / count if count else 0.0,
        _rank(ordered, 0.50),
        _rank(ordered, 0.99),
        _histogram(ordered),
    )


def difference_of(left: float, right: float) -> float:
    """|left - right|; two tokens that both sides call impossible are no difference."""
    return 0.0 if left == right else abs(left - right)


def _rank(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def _histogram(values: Iterable[float]) -> list[int]:
    counts = [0] * (_DECADES + 1)
    for value in values:
        if value == 0.0:
            counts[0] += 1
        else:
            decade = min(max(math.floor(math.log10(value)), LEAST_DECADE), 0)
            counts[decade - LEAST_DECADE + 1] += 1
    return counts
