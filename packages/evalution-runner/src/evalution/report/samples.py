"""Samples in a report: the choice of rows, and the documents that the page's script reads."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from evalution.results import to_json
from evalution.sample_columns import SampleColumns
from evalution.view.runs import ViewedRun
from evalution.view.samples import SuiteView, make_sample

BUDGET_BYTES = 22_000_000
"""Of all samples together."""

_TEXT_LIMIT = 12_000
_TEXT_HEAD = 4_000
_ESCAPED, _ESCAPE = "<>&", 5
"""Characters that a page holds as `\\u003c` and the like, and the bytes that this adds."""
_SHARED = ("prompt", "messages", "target")
_PLACE = frozenset({"run", "suite", "index", "previous", "next"})


def embed_samples(
    runs: Sequence[ViewedRun], samples_per_suite: int, flipped: Mapping[str, Collection[int]]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, int]]]:
    """Return rows by suite, each `{index, shared, runs}`, and how many rows each run has of it.

    `runs` holds a sample document by run, `shared` what all of them have in common.

    Args:
        runs: those of the report.
        samples_per_suite: rows of each suite at most.
        flipped: by suite, the rows that are right in one run and wrong in another.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    counts: dict[str, dict[str, int]] = {}
    names = list(dict.fromkeys(suite for run in runs for suite in run.suites))
    left = BUDGET_BYTES
    for position, name in enumerate(names):
        views = [run.view(name) for run in runs if name in run.suites]
        order = order_rows([view.columns for view in views], flipped.get(name, ()))
        share = left // (len(names) - position)
        rows[name], used = _take_rows(views, islice(order, samples_per_suite), share)
        left -= used
        counts[name] = {view.run: len(view.columns) for view in views}
    return rows, counts


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


def _take_rows(
    views: Sequence[SuiteView], wanted: Iterable[int], budget: int
) -> tuple[list[dict[str, Any]], int]:
    """Return rows by their numbers until the budget of bytes is spent, and their size."""
    chosen: list[dict[str, Any]] = []
    used = 0
    for index in wanted:
        row = _make_row(index, [view for view in views if view.find_place(index) is not None])
        text = to_json(row)
        size = len(text.encode()) + _ESCAPE * sum(text.count(character) for character in _ESCAPED)
        if used + size > budget:
            break
        used += size
        chosen.append(row)
    return sorted(chosen, key=lambda row: row["index"]), used


def _make_row(index: int, views: Sequence[SuiteView]) -> dict[str, Any]:
    found = {view.run: _cut_texts(make_sample(view, index)) for view in views}
    first = next(iter(found.values()))
    shared = {name: first[name] for name in _SHARED}
    runs = {
        run: {
            name: value
            for name, value in sample.items()
            if name not in _PLACE and (name not in shared or value != shared[name])
        }
        for run, sample in found.items()
    }
    return {"index": index, "shared": shared, "runs": runs}


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
