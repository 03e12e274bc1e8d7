"""Names as people write them, and what somebody may have meant by one that isn't there."""

from __future__ import annotations

from collections.abc import Iterable


def normalized(name: str) -> str:
    """`name` as names are compared: without case, `-` and `_`."""
    return name.casefold().replace("-", "").replace("_", "")


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The most alike of `known`, or None if none is at least `cutoff` alike (0 to 1).

    The measure is `difflib.SequenceMatcher.ratio` of the normalized names.
    """
    import difflib  # noqa: PLC0415 - only a mistake needs it, and it costs a tenth of core's import

    by_normal = {normalized(candidate): candidate for candidate in known}
    near = difflib.get_close_matches(normalized(name), by_normal, n=1, cutoff=cutoff)
    return by_normal[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of the known names, or nothing."""
    near = nearest_name(name, known)
    return f"; did you mean {near!r}?" if near else ""
