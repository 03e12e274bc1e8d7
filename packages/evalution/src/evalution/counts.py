"""Numbers of rows, shots, tokens and requests that somebody chose."""

from __future__ import annotations

LARGEST = 2**31 - 1
"""No count is larger; every runtime can hold this one."""


def count_problem(value: int, *, least: int) -> str | None:
    """What is wrong with a count, as the end of a sentence; None if nothing is."""
    if value < least:
        return "must not be negative" if least == 0 else f"must be at least {least}"
    if value > LARGEST:
        return f"must be at most {LARGEST}"
    return None


def shown_value(value: object) -> str:
    """`repr`, also for an int with more digits than Python is willing to print."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
