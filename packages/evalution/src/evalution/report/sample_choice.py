"""Which rows of a suite the page holds when it can't hold them all."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from evalution.report.verdicts import binary_metrics, is_flipped, verdict
from evalution.samples import SampleColumns


class SuiteRows:
    """All rows of a suite over the runs, by the row's number, in order.

    Args:
        columns: the samples of the suite in each run.
        directions: of each metric, whether higher is better.

    `directions` keeps the metrics that know right and wrong.
    """

    def __init__(self, columns: Sequence[SampleColumns], directions: Mapping[str, bool]):
        self._columns = columns
        binary = binary_metrics(columns)
        self.directions = {name: up for name, up in directions.items() if name in binary}
        self.rows = _union([column.rows for column in columns])
        self._positions = [_positions(column.rows, self.rows) for column in columns]

    @cached_property
    def failed(self) -> list[int]:
        """Rows without an answer in some run."""
        sides = list(zip(self._columns, self._positions, strict=True))
        return [
            row
            for place, row in enumerate(self.rows)
            if any(at[place] >= 0 and column.failed[at[place]] for column, at in sides)
        ]

    @cached_property
    def flipped(self) -> list[int]:
        """Rows that one run got right and another wrong, by some metric."""
        return [row for place, row in enumerate(self.rows) if self._is_flipped(place)]

    def in_order_of_interest(self) -> Iterator[int]:
        """Every row once: failed ones, flipped ones, then the others spread evenly.

        Any beginning of them is a fair picture of the others: they are not sorted by row.
        """
        chosen = dict.fromkeys([*self.failed, *self.flipped])
        yield from chosen
        yield from spread(array("q", (row for row in self.rows if row not in chosen)))

    def _is_flipped(self, place: int) -> bool:
        sides = [(c, at[place]) for c, at in zip(self._columns, self._positions, strict=True)]
        return any(
            is_flipped([verdict(column, at, name, up) for column, at in sides if at >= 0])
            for name, up in self.directions.items()
        )


def spread(items: Sequence[int]) -> Iterator[int]:
    """The items so ordered that those of any beginning lie evenly over the whole.

    The order of a van der Corput sequence: first, middle, quarters, eighths, and so on.
    """
    width = max(len(items) - 1, 0).bit_length()
    places = (_reversed_bits(place, width) for place in range(1 << width))
    return (items[place] for place in places if place < len(items))


def _reversed_bits(number: int, width: int) -> int:
    return int(f"{number:0{width}b}"[::-1], 2) if width else number


def _union(columns: Sequence[array[int]]) -> array[int]:
    """Each row of any of the columns once, in order."""
    if columns and all(column == columns[0] for column in columns):
        return columns[0]
    return array("q", sorted({row for column in columns for row in column}))


def _positions(rows: array[int], union: array[int]) -> array[int]:
    """Where each row of the union stands among `rows`, -1 for one that isn't there."""
    found, at = array("q"), 0
    for row in union:
        is_there = at < len(rows) and rows[at] == row
        found.append(at if is_there else -1)
        at += is_there
    return found
