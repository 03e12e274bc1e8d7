"""Samples in the page: the choice of rows, and the data that the script reads."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from evalution.comparison.comparison import is_binary
from evalution.redaction import mask_text
from evalution.report.scores import SuiteScores
from evalution.results import SampleResult, SuiteResult, to_json
from evalution.runs.reader import RunSamples
from evalution.samples import KeptSamples, SampleColumns, SuiteSamples

BUDGET_BYTES = 22_000_000
"""Of all samples together."""

_TEXT_LIMIT = 12_000
_TEXT_HEAD = 4_000
_ESCAPED, _ESCAPE = "<>&'", 5
"""Characters that a page holds as `\\u003c` and the like, and the bytes that this adds."""


@dataclass(frozen=True, slots=True)
class SampleCount:
    """Number of a suite's rows that the page holds."""

    suite: str
    embedded: int
    total: int


@dataclass(frozen=True, slots=True)
class SamplePayload:
    """The data of the sample browser, and how much of each suite it holds.

    `data` is `{runs: [letter], suites: [{name, metrics: [{name, higher, binary}], rows}]}`. A row
    is `[index, prompt, target, cells]` with a cell a run, null where the run hasn't got the row;
    `_make_cell` documents a cell.
    """

    data: Mapping[str, Any]
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


def make_sample_payload(
    suites: Sequence[SuiteScores],
    runs: Sequence[RunSamples],
    letters: Sequence[str],
    samples_per_suite: int,
    flipped: Mapping[str, Collection[int]],
) -> SamplePayload | None:
    """Return the samples of all suites; None if no run kept any.

    Args:
        suites: their scores in all runs.
        runs: the samples of each run.
        letters: one for each run.
        samples_per_suite: rows of each suite at most.
        flipped: by suite, the rows that are right in one run and wrong in another.
    """
    documents: list[dict[str, Any]] = []
    counts: list[SampleCount] = []
    left = BUDGET_BYTES
    for position, suite in enumerate(suites):
        share = left // (len(suites) - position)
        sides = list(zip(runs, suite.runs, strict=True))
        columns = [_read_columns(run, side) for run, side in sides]
        order = order_rows(columns, flipped.get(suite.name, ()))
        samples = [KeptSamples([]) if side is None else run.of(side) for run, side in sides]
        names = [row.name for row in suite.rows]
        rows, size = _take_rows(samples, islice(order, samples_per_suite), names, share)
        left -= size
        metrics = [
            {
                "name": row.name,
                "higher": row.higher_is_better,
                "binary": _is_binary(row.name, columns),
            }
            for row in suite.rows
        ]
        documents.append({"name": suite.name, "metrics": metrics, "rows": rows})
        counts.append(SampleCount(suite.name, len(rows), len(order)))
    if not any(count.total for count in counts):
        return None
    return SamplePayload({"runs": list(letters), "suites": documents}, counts)


def order_rows(columns: Sequence[SampleColumns], flipped: Collection[int]) -> list[int]:
    """Return every row of any run once: failed ones, flipped ones, then the others at random.

    So any beginning of the others is a fair picture of them; the order is the same each time.
    """
    rows = sorted({row for column in columns for row in column.rows})
    failed = {
        row
        for column in columns
        for row, has_failed in zip(column.rows, column.failed, strict=True)
        if has_failed
    }
    first = dict.fromkeys([*sorted(failed), *sorted(flipped)])
    others = [row for row in rows if row not in first]
    random.Random(0).shuffle(others)
    return [*first, *others]


def _is_binary(metric: str, columns: Sequence[SampleColumns]) -> bool:
    values = [column.metrics[metric] for column in columns if metric in column.metrics]
    return bool(values) and all(map(is_binary, values))


def _read_columns(run: RunSamples, suite: SuiteResult | None) -> SampleColumns:
    return SampleColumns([]) if suite is None else run.columns(suite)


def _take_rows(
    samples: Sequence[SuiteSamples], wanted: Iterable[int], metrics: Sequence[str], budget: int
) -> tuple[list[list[Any]], int]:
    """Return rows by their numbers until the budget of bytes is spent, and their size."""
    chosen: list[list[Any]] = []
    used = 0
    for index in wanted:
        row = [next(side.at([index])) if index in side else None for side in samples]
        found = _make_row(index, row, metrics)
        text = to_json(found)
        size = len(text.encode()) + _ESCAPE * sum(text.count(character) for character in _ESCAPED)
        if used + size > budget:
            break
        used += size
        chosen.append(found)
    return sorted(chosen, key=lambda row: row[0]), used


def _make_row(index: int, row: Sequence[SampleResult | None], metrics: Sequence[str]) -> list[Any]:
    first = next(sample for sample in row if sample is not None)
    cells = [None if sample is None else _make_cell(sample, first, metrics) for sample in row]
    return [index, _cut_texts(first.prompt), _cut_texts(first.target), cells]


def _make_cell(sample: SampleResult, first: SampleResult, metrics: Sequence[str]) -> dict[str, Any]:
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
    return cell | {name: _cut_texts(value) for name, value in parts if value is not None}


def _cut_texts(value: Any) -> Any:
    """Return `value` with every long text cut in its middle: the question stands at the end."""
    if isinstance(value, str) and len(value) > _TEXT_LIMIT:
        tail = _TEXT_LIMIT - _TEXT_HEAD
        gap = f"{len(value) - _TEXT_LIMIT:,} characters are left out of this page"
        return f"{value[:_TEXT_HEAD]}\n\n[… {gap} …]\n\n{value[-tail:]}"
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {name: _cut_texts(member) for name, member in items}
    if isinstance(value, list | tuple):
        return [_cut_texts(member) for member in cast(Sequence[Any], value)]
    return value
