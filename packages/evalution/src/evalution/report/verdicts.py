"""Whether a sample was answered rightly, by metrics that know right and wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from evalution.results import SampleResult


class Verdict(StrEnum):
    """What a metric says about a sample of one run."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"
    UNJUDGED = "unjudged"


def binary_metrics(samples: Iterable[SampleResult]) -> frozenset[str]:
    """The metrics whose every value is 0 or 1."""
    seen: set[str] = set()
    graded: set[str] = set()
    for sample in samples:
        for name, value in sample.metrics.items():
            seen.add(name)
            if value not in (0, 1):
                graded.add(name)
    return frozenset(seen - graded)


def verdict(
    sample: SampleResult | None, metric: str, directions: Mapping[str, bool]
) -> Verdict | None:
    """The verdict of a binary metric on a sample; None where the run has no such sample.

    `directions` says of each binary metric whether higher is better; others judge nothing.
    """
    if sample is None:
        return None
    if sample.error is not None:
        return Verdict.FAILED
    value = sample.metrics.get(metric)
    if value is None or metric not in directions:
        return Verdict.UNJUDGED
    return Verdict.RIGHT if bool(value) == directions[metric] else Verdict.WRONG


def is_flipped(verdicts: Sequence[Verdict | None]) -> bool:
    """Whether one run was right where another was wrong; a failure is neither."""
    return Verdict.RIGHT in verdicts and Verdict.WRONG in verdicts
