"""Samples in a report: the choice of rows, and the documents that the page's script reads."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from evalution.redaction import mask_text
from evalution.report.documents import ReportRun
from evalution.results import SampleResult, SuiteResult, to_json
from evalution.sample_columns import SampleColumns

BUDGET_BYTES = 22_000_000
"""Of all samples together."""

_TEXT_LIMIT = 12_000
_TEXT_HEAD = 4_000
_ESCAPED, _ESCAPE = "<>&", 5
"""Characters that a page holds as `\\u003c` and the like, and the bytes that this adds."""
_SHARED = ("prompt", "messages", "target")


@dataclass(frozen=True, slots=True)
class EmbeddedSamples:
    """Rows of a report by suite, each `{index, shared, runs}`, and how many the runs have.

    `runs` holds a sample document a run, null where the run hasn't got the row; what all of them
    have in common stands in `shared`, and what is empty is left out.
    """

    rows: Mapping[str, list[dict[str, Any]]]
    counts: Mapping[str, int]

    @property
    def cut(self) -> dict[str, tuple[int, int]]:
        """Numbers of rows held and there are, of the suites that aren't held whole."""
        held = {suite: len(rows) for suite, rows in self.rows.items()}
        return {name: (held[name], all_) for name, all_ in self.counts.items() if held[name] < all_}


def embed_samples(
    runs: Sequence[ReportRun], samples_per_suite: int, flipped: Mapping[str, Collection[int]]
) -> EmbeddedSamples:
    """Return the samples of all suites.

    Args:
        runs: those of the report.
        samples_per_suite: rows of each suite at most.
        flipped: by suite, the rows that are right in one run and wrong in another.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    names = list(dict.fromkeys(suite.name for run in runs for suite in run.suites))
    left = BUDGET_BYTES
    for position, name in enumerate(names):
        sides = [
            (run, next((suite for suite in run.suites if suite.name == name), None)) for run in runs
        ]
        columns = [run.columns(suite) for run, suite in sides if suite is not None]
        order = order_rows(columns, flipped.get(name, ()))
        share = left // (len(names) - position)
        rows[name], used = _take_rows(sides, islice(order, samples_per_suite), share)
        left -= used
        counts[name] = len(order)
    return EmbeddedSamples(rows, counts)


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


_Side = tuple[ReportRun, SuiteResult | None]


def _take_rows(
    sides: Sequence[_Side], wanted: Iterable[int], budget: int
) -> tuple[list[dict[str, Any]], int]:
    """Return rows by their numbers until the budget of bytes is spent, and their size."""
    stored = [
        (run, None if suite is None else run.samples.of(suite), suite) for run, suite in sides
    ]
    judges = [None if suite is None else run.judge(suite) for run, suite in sides]
    chosen: list[dict[str, Any]] = []
    used = 0
    for index in wanted:
        samples = {
            run.label.letter: (next(iter(held.at([index]))), judged)
            for (run, held, _), judged in zip(stored, judges, strict=True)
            if held is not None and index in held
        }
        row = _make_row(index, samples)
        text = to_json(row)
        size = len(text.encode()) + _ESCAPE * sum(text.count(character) for character in _ESCAPED)
        if used + size > budget:
            break
        used += size
        chosen.append(row)
    return sorted(chosen, key=lambda row: row["index"]), used


def _make_row(
    index: int, samples: Mapping[str, tuple[SampleResult, tuple[str, float] | None]]
) -> dict[str, Any]:
    found = {letter: make_sample(*each) for letter, each in samples.items()}
    first = next(iter(found.values()))
    shared = {name: first[name] for name in _SHARED}
    runs = {
        letter: {
            name: value
            for name, value in sample.items()
            if name not in shared or value != shared[name]
        }
        for letter, sample in found.items()
    }
    return {"index": index, "shared": shared, "runs": runs}


def make_sample(sample: SampleResult, judged: tuple[str, float] | None) -> dict[str, Any]:
    """Return a sample document without its place, long texts cut in their middle.

    Args:
        sample: it.
        judged: the metric that judges it, and its value where it is right.
    """
    value = sample.metrics.get(judged[0]) if judged else None
    is_text = sample.prompt is None or isinstance(sample.prompt, str)
    made = {
        "prompt": sample.prompt if is_text else None,
        "messages": None if is_text else list(_list_messages(cast(Any, sample.prompt))),
        "target": sample.target,
        "prediction": sample.prediction,
        "extracted": {} if _has_choices(sample) else dict(sample.extracted),
        "choices": list(_list_choices(sample)),
        "metrics": dict(sample.metrics),
        "right": None if value is None or judged is None else value == judged[1],
        "counts": dict(sample.tokens),
        "tokens": None,
        "error": None if sample.error is None else mask_text(sample.error),
    }
    return cast("dict[str, Any]", _cut_texts(made))


def _list_messages(prompt: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    for message in prompt:
        content = message.get("content")
        text = content if isinstance(content, str) else to_json(content)
        yield {"role": str(message.get("role", "")), "content": text}


def _has_choices(sample: SampleResult) -> bool:
    return isinstance(sample.extracted.get("logprobs"), list)


def _list_choices(sample: SampleResult) -> Iterator[dict[str, Any]]:
    """Yield the choices with their softmax; nothing for a sample that has none."""
    if not _has_choices(sample):
        return
    logprobs = cast("list[float | None]", sample.extracted["logprobs"])
    known = [value for value in logprobs if value is not None]
    top = max(known, default=0.0)
    total = sum(math.exp(value - top) for value in known) or 1.0
    texts = cast("list[str]", sample.extracted.get("choices") or [None] * len(logprobs))
    for place, (text, logprob) in enumerate(zip(texts, logprobs, strict=True)):
        yield {
            "text": text,
            "logprob": logprob,
            "probability": None if logprob is None else math.exp(logprob - top) / total,
            "is_target": sample.extracted.get("gold") == place,
            "chosen_by": [
                name for name in ("acc", "acc_norm") if sample.extracted.get(name) == place
            ],
            "tokens": None,
        }


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
