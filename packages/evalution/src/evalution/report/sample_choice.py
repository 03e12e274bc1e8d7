"""Which rows of a suite the page holds when it can't hold them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evalution.report.verdicts import binary_metrics, is_flipped, verdict
from evalution.results import SampleResult

Row = Sequence[SampleResult | None]
"""One row of a suite's data: its sample in each run, None for a run without it."""


@dataclass(frozen=True)
class SuiteRows:
    """All rows of a suite over the runs, by the row's number, in order.

    `directions` holds the metrics that know right and wrong, with whether higher is better.
    """

    rows: Mapping[int, Row]
    directions: Mapping[str, bool]

    @cached_property
    def failed(self) -> list[int]:
        """Rows without an answer in some run."""
        return [index for index, row in self.rows.items() if _has_failed(row)]

    @cached_property
    def flipped(self) -> list[int]:
        """Rows that one run got right and another wrong, by some metric."""
        return [index for index, row in self.rows.items() if self._is_flipped(row)]

    def in_order_of_interest(self) -> list[int]:
        """Every row once: failed ones, flipped ones, then the others spread evenly.

        Any beginning of the list is a fair picture of the others: they are not sorted by row.
        """
        first = list(dict.fromkeys([*self.failed, *self.flipped]))
        chosen = set(first)
        return first + spread([index for index in self.rows if index not in chosen])

    def _is_flipped(self, row: Row) -> bool:
        return any(
            is_flipped([verdict(sample, name, self.directions) for sample in row])
            for name in self.directions
        )


def collect_rows(
    samples: Sequence[Sequence[SampleResult]], directions: Mapping[str, bool]
) -> SuiteRows:
    """The samples of one suite, one sequence a run, side by side.

    `directions` says of each metric whether higher is better.
    """
    columns = [{sample.index: sample for sample in column} for column in samples]
    indices = sorted({index for column in columns for index in column})
    rows = {index: [column.get(index) for column in columns] for index in indices}
    binary = binary_metrics(sample for column in samples for sample in column)
    return SuiteRows(rows, {name: up for name, up in directions.items() if name in binary})


def spread(items: Sequence[int]) -> list[int]:
    """The items so ordered that those of any beginning lie evenly over the whole.

    The order of a van der Corput sequence: first, middle, quarters, eighths, and so on.
    """
    width = max(len(items) - 1, 0).bit_length()
    places = (_reversed_bits(place, width) for place in range(1 << width))
    return [items[place] for place in places if place < len(items)]


def _reversed_bits(number: int, width: int) -> int:
    return int(f"{number:0{width}b}"[::-1], 2) if width else number


def _has_failed(row: Row) -> bool:
    return any(sample is not None and sample.error is not None for sample in row)
