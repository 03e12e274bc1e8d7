"""Which rows a suite takes, and in what order they are run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal

from evalution.rows.local import Row
from evalution_core import ConfigurationError, nearest_name

NATIVE = "native"
_SPELLINGS = (NATIVE, "shuffle", "shuffle|<seed>", "length|asc", "length|desc")
_SHUFFLE = re.compile(r"shuffle(?:\|(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class Case:
    """A row to be asked, with the solved rows that stand before it."""

    row: Row
    shots: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """In what order the selected rows are run; the scores don't depend on it.

    `length` is that of a sample's longest request, in characters.
    """

    kind: Literal["native", "shuffle", "length"]
    seed: int = 0
    descending: bool = False

    def __str__(self) -> str:
        match self.kind:
            case "native":
                return NATIVE
            case "shuffle":
                return f"shuffle|{self.seed}"
            case "length":
                return f"length|{'desc' if self.descending else 'asc'}"

    def of(self, cases: Iterator[Case], length: Callable[[Case], int]) -> Iterator[Case]:
        """`cases` in this order; all of them are held unless it is the native one."""
        if self.kind == "native":
            return cases
        held = list(cases)
        if self.kind == "shuffle":
            Random(self.seed).shuffle(held)
        else:
            held.sort(key=length, reverse=self.descending)
        return iter(held)


def parse_order(text: str) -> Order:
    """An order as a person writes it; case and blanks don't count, `shuffle` is `shuffle|0`.

    Raises:
        ValueError: it is none; says which there are, and the nearest.
    """
    plain = "".join(text.split()).casefold()
    if plain == NATIVE:
        return Order("native")
    if found := _SHUFFLE.fullmatch(plain):
        return Order("shuffle", seed=int(found[1] or 0))
    if plain in ("length|asc", "length|desc"):
        return Order("length", descending=plain == "length|desc")
    near = nearest_name(plain, _SPELLINGS)
    hint = f" (did you mean {near!r}?)" if near else ""
    raise ValueError(f"must be one of {', '.join(_SPELLINGS)}{hint}")


def selected(
    cases: Iterable[Case], indices: Sequence[int] | None, bound: int | None, place: str
) -> Iterator[Case]:
    """The cases of these row numbers, in their order, or all; the first `bound` of either.

    Raises:
        ConfigurationError: while iterating, for a number that no row has.
    """
    if indices is None:
        yield from islice(cases, bound)
        return
    wanted = list(islice(indices, bound))
    missing = set(wanted)
    found: dict[int, Case] = {}
    count = 0
    for case in cases:
        count = case.row.index + 1
        if case.row.index in missing:
            missing.remove(case.row.index)
            found[case.row.index] = case
            if not missing:
                break
    if missing:
        raise ConfigurationError(
            f"row_indices names row {min(missing)}, but {place} holds "
            f"{f'rows 0 to {count - 1}' if count else 'no rows'}"
        )
    yield from (found[index] for index in wanted)
