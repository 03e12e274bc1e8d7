"""Names as people write them, and the nearest one to a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def normalized(name: str) -> str:
    """`name` without case, `-` and `_`, as engine names are compared too."""
    return name.casefold().replace("-", "").replace("_", "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name nearest to `name`, or nothing."""
    by_normal = {normalized(candidate): candidate for candidate in known}
    near = difflib.get_close_matches(normalized(name), by_normal, n=1, cutoff=0.5)
    return f"; did you mean {by_normal[near[0]]!r}?" if near else ""
