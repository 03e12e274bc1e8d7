"""Samples in the page: verdicts, the choice of rows, and the JSON that the script reads."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, cast

from evalution.redaction import mask_text
from evalution.report.rendering import embedded_json
from evalution.report.scores import SuiteScores
from evalution.results import SampleResult, SuiteResult
from evalution.runs.reader import RunSamples
from evalution.samples import KeptSamples, SampleColumns, SuiteSamples


class Verdict(StrEnum):
    """Verdict of a metric on a sample of one run."""

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
    """Report whether one run was right where another was wrong; a failure is neither."""
    return Verdict.RIGHT in verdicts and Verdict.WRONG in verdicts


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
    """Return the place of each row of the union among `rows`, -1 for one that isn't there."""
    found, at = array("q"), 0
    for row in union:
        is_there = at < len(rows) and rows[at] == row
        found.append(at if is_there else -1)
        at += is_there
    return found


BUDGET_BYTES = 22_000_000
"""Of all samples together: with Plotly's five million the page stays under thirty."""

_TEXT_LIMIT = 12_000
_TEXT_HEAD = 4_000


@dataclass(frozen=True, slots=True)
class SampleCount:
    """Number of a suite's rows that the page holds."""

    suite: str
    embedded: int
    total: int


@dataclass(frozen=True, slots=True)
class SamplePayload:
    """The JSON of the sample browser, and what it left out of each suite."""

    json: str
    counts: Sequence[SampleCount]

    @property
    def embedded(self) -> int:
        return sum(count.embedded for count in self.counts)

    @property
    def total(self) -> int:
        return sum(count.total for count in self.counts)

    @property
    def cut(self) -> list[SampleCount]:
        """The suites of which the page doesn't hold every row."""
        return [count for count in self.counts if count.embedded < count.total]


def sample_payload(
    suites: Sequence[SuiteScores],
    runs: Sequence[RunSamples],
    letters: Sequence[str],
    samples_per_suite: int,
) -> SamplePayload | None:
    """The samples of all suites; None if no run kept any.

    The object is `{runs: [letter], suites: [{name, metrics: [{name, higher, binary}], rows}]}`. A
    row is `[index, prompt, target, cells]` with a cell a run, null where the run hasn't got the
    row; what a cell holds is said by `_cell`.
    """
    documents: list[str] = []
    counts: list[SampleCount] = []
    left = BUDGET_BYTES
    for position, suite in enumerate(suites):
        share = left // (len(suites) - position)
        directions = {row.name: row.higher_is_better for row in suite.rows}
        sides = list(zip(runs, suite.runs, strict=True))
        found = SuiteRows([_columns(run, side) for run, side in sides], directions)
        wanted = islice(found.in_order_of_interest(), samples_per_suite)
        samples = [KeptSamples([]) if side is None else run.of(side) for run, side in sides]
        rows = _encoded_rows(samples, wanted, list(directions), share)
        left -= sum(map(len, rows.values()))
        head = embedded_json({"name": suite.name, "metrics": _metrics(directions, found)})
        body = b",".join(rows[index] for index in sorted(rows)).decode()
        documents.append(f'{head[:-1]},"rows":[{body}]}}')
        counts.append(SampleCount(suite.name, len(rows), len(found.rows)))
    if not any(count.total for count in counts):
        return None
    names = embedded_json(list(letters))
    return SamplePayload(f'{{"runs":{names},"suites":[{",".join(documents)}]}}', counts)


def _columns(run: RunSamples, suite: SuiteResult | None) -> SampleColumns:
    return SampleColumns([]) if suite is None else run.columns(suite)


def _encoded_rows(
    samples: Sequence[SuiteSamples], wanted: Iterable[int], metrics: Sequence[str], budget: int
) -> dict[int, bytes]:
    """The rows by their numbers as the page holds them, until the budget of bytes is spent."""
    chosen: dict[int, bytes] = {}
    for index in wanted:
        row = [next(side.at([index])) if index in side else None for side in samples]
        line = embedded_json(_row(index, row, metrics)).encode()
        budget -= len(line)
        if budget < 0:
            break
        chosen[index] = line
    return chosen


def _metrics(directions: Mapping[str, bool], suite: SuiteRows) -> list[dict[str, Any]]:
    return [
        {"name": name, "higher": higher, "binary": name in suite.directions}
        for name, higher in directions.items()
    ]


def _row(index: int, row: Sequence[SampleResult | None], metrics: Sequence[str]) -> list[Any]:
    first = next(sample for sample in row if sample is not None)
    cells = [None if sample is None else _cell(sample, first, metrics) for sample in row]
    return [index, _clipped(first.prompt), _clipped(first.target), cells]


def _cell(sample: SampleResult, first: SampleResult, metrics: Sequence[str]) -> dict[str, Any]:
    """p: prediction, x: extracted, m: the metrics' values, t: tokens, e: error.

    q and g are the prompt and the target where they aren't those of the row's first run. What is
    empty is left out.
    """
    cell: dict[str, Any] = {"m": [sample.metrics.get(name) for name in metrics]}
    parts: Iterable[tuple[str, Any]] = (
        ("p", sample.prediction),
        ("x", sample.extracted or None),
        ("t", sample.tokens or None),
        ("e", None if sample.error is None else mask_text(sample.error)),
        ("q", sample.prompt if sample.prompt != first.prompt else None),
        ("g", sample.target if sample.target != first.target else None),
    )
    return cell | {name: _clipped(value) for name, value in parts if value is not None}


def _clipped(value: Any) -> Any:
    """`value` with every long text cut in its middle: a prompt's question stands at its end."""
    if isinstance(value, str) and len(value) > _TEXT_LIMIT:
        tail = _TEXT_LIMIT - _TEXT_HEAD
        gap = f"{len(value) - _TEXT_LIMIT:,} characters are left out of this page"
        return f"{value[:_TEXT_HEAD]}\n\n[… {gap} …]\n\n{value[-tail:]}"
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {name: _clipped(member) for name, member in items}
    if isinstance(value, list | tuple):
        return [_clipped(member) for member in cast(Sequence[Any], value)]
    return value
