"""What somebody may have meant by a name that isn't there."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The most alike of `known`, or None if none is at least `cutoff` alike (0 to 1).

    The measure is `difflib.SequenceMatcher.ratio`.
    """
    import difflib  # noqa: PLC0415 - only a mistake needs it, and it costs a fifth of core's import

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)
