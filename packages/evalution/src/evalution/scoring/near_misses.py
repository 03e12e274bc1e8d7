"""Answers that a small change would make right: a score that is low for its form alone is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evalution.scoring.text_metrics import Number

RIGHT = "are right"
_STRIP = "after strip (add it to filters and target_filters)"
_LOWER = "after strip and lower (add them to filters and target_filters)"
_NUMBER = "by their last number (metrics: [number])"
NEAR_MISSES = (_STRIP, _LOWER, _NUMBER)
"""Remarks about a wrong answer, the smallest change first."""

_WORTH_SAYING = 0.1
"""Share of the rows that a change must win."""


def find_near_misses(answer: str, target: str) -> list[str]:
    """The changes that would make a wrong answer equal its target."""
    one, other = answer.strip(), target.strip()
    number = Number()
    won = (
        one == other,
        one.lower() == other.lower(),
        bool(number.grade(number.extract(answer), target)),
    )
    return [change for change, is_right in zip(NEAR_MISSES, won, strict=True) if is_right]


def describe_near_misses(counts: Mapping[str, int], rows: int) -> Iterator[str]:
    """Yield one sentence if changes win a tenth of the rows or more: those that win the most.

    A change that wins a tenth more than a smaller one is named in addition to it.
    """
    right = reached = counts.get(RIGHT, 0)
    named: list[str] = []
    for change in NEAR_MISSES:
        would = right + counts.get(change, 0)
        if would > reached and would - reached >= _WORTH_SAYING * rows:
            named.append(f"{would} would be {change}")
            reached = would
    if named:
        yield f"{right} of {rows} are right; {'; '.join(named)}"
