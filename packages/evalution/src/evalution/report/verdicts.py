"""Whether a sample was answered rightly, by metrics that know right and wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

from evalution.samples import SampleColumns


class Verdict(StrEnum):
    """What a metric says about a sample of one run."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"
    UNJUDGED = "unjudged"


def binary_metrics(columns: Iterable[SampleColumns]) -> frozenset[str]:
    """The metrics whose every value is 0 or 1."""
    seen: set[str] = set()
    graded: set[str] = set()
    for column in columns:
        for name, values in column.metrics.items():
            seen.add(name)
            if not all(value in (0.0, 1.0) or math.isnan(value) for value in values):
                graded.add(name)
    return frozenset(seen - graded)


def verdict(columns: SampleColumns, position: int, metric: str, higher_is_better: bool) -> Verdict:
    """The verdict of a binary metric on a sample."""
    if columns.failed[position]:
        return Verdict.FAILED
    values = columns.metrics.get(metric)
    if values is None or math.isnan(value := values[position]):
        return Verdict.UNJUDGED
    return Verdict.RIGHT if bool(value) == higher_is_better else Verdict.WRONG


def is_flipped(verdicts: Sequence[Verdict]) -> bool:
    """Whether one run was right where another was wrong; a failure is neither."""
    return Verdict.RIGHT in verdicts and Verdict.WRONG in verdicts
