"""Samples of a run: one of them, and the lines of `samples.jsonl`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pydantic_core


def _empty() -> dict[str, Any]:
    return {}


TokenLogprob = Sequence[Any]
"""`[id, text, log-probability]` of a token, the text being what it adds to those before it."""


@dataclass(slots=True)
class SampleResult:
    """One sample, as a line of `samples.jsonl`; the same fields for every suite.

    `group` is the same for rows that belong together, None where a suite has no groups.
    `metrics` holds the sample's own value of each metric, `tokens` what the engine counted
    (`prompt`, `completion`, `scored`, `truncated`; what it doesn't report is left out). With an
    `error`, there was no answer to score. `token_logprobs`, which only a run with `record_tokens`
    has, are for each request its tokens as `[id, text, log-probability]`: those that were generated
    or scored, None where the engine didn't say.
    """

    suite: str
    index: int
    prompt: str | Sequence[Mapping[str, Any]] | None = None
    target: str | None = None
    prediction: str | None = None
    extracted: Mapping[str, Any] = field(default_factory=_empty)
    metrics: Mapping[str, float] = field(default_factory=_empty)
    tokens: Mapping[str, int] = field(default_factory=_empty)
    error: str | None = None
    group: str | None = None
    token_logprobs: Sequence[Sequence[TokenLogprob] | None] | None = None

    def to_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__slots__}
        for name in ("group", "token_logprobs"):
            if found[name] is None:
                del found[name]
        return found


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return strict JSON: NaN and infinity become null, foreign values Python's own or text."""
    try:
        return pydantic_core.to_json(
            value, indent=indent, inf_nan_mode="null", fallback=_to_plain
        ).decode()
    except ValueError:  # a lone surrogate, which UTF-8 can't hold and JSON can only escape
        found = json.dumps(value, default=_to_plain)
        plain = json.loads(found, parse_constant=lambda _: None)  # NaN and infinity
        text = json.dumps(plain, ensure_ascii=False, indent=indent)
        return text.encode("utf-8", "backslashreplace").decode()


def _to_plain(value: object) -> object:
    """Return a scalar of NumPy as Python's, anything else that JSON doesn't know as text."""
    if callable(item := getattr(value, "item", None)):
        try:
            return item()
        except (TypeError, ValueError):  # an array of several
            return str(value)
    return str(value)


_HEAD = re.compile(rb'\{"suite":"([^"\\]*)","index":(\d{1,18}),')
"""Start of a line; another tool's may differ, and so does that of a suite whose name is escaped."""


def to_line(sample: SampleResult) -> bytes:
    """Return the sample as a line of `samples.jsonl`, with its end."""
    return (to_json(sample.to_dict()) + "\n").encode()


def parse_sample(line: bytes) -> SampleResult:
    """Return the sample of a line.

    Raises:
        ValueError: it is none; its cause says why.
    """
    try:
        fields: Any = json.loads(line.decode("utf-8"))
        sample = SampleResult(**fields)
        problem = _find_problem(sample)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if problem is not None:
        raise ValueError(problem)
    held: Mapping[str, Any] = sample.metrics
    if None not in held.values():
        return sample
    # JSON has no infinity.
    metrics = {name: math.inf if value is None else value for name, value in held.items()}
    return replace(sample, metrics=metrics)


_LARGEST = 10**18


def is_number(value: Any) -> bool:
    """True for a number that fits into a column, and None."""
    if isinstance(value, int):
        return abs(value) <= _LARGEST
    return value is None or isinstance(value, float)


def is_text(value: Any) -> bool:
    """True for a text, and None."""
    return value is None or isinstance(value, str)


def _find_problem(sample: SampleResult) -> str | None:
    """Return what is wrong with the values that were read; raises `TypeError`s of their own."""
    suite: Any = sample.suite
    if not (isinstance(suite, str) and type(sample.index) is int and is_number(sample.index)):
        return f"a sample has a suite and a row, got {suite!r:.80} and {sample.index!r:.80}"
    prompt = sample.prompt
    if not (is_text(prompt) or (isinstance(prompt, list) and all(map(_is_object, prompt)))):
        return "prompt is a text or a list of messages"
    if not all(map(is_text, (sample.target, sample.prediction, sample.error, sample.group))):
        return "target, prediction, error and group are texts"
    if not all(map(_is_object, (sample.extracted, sample.metrics, sample.tokens))):
        return "extracted, metrics and tokens are objects"
    if not all(map(is_number, (*sample.metrics.values(), *sample.tokens.values()))):
        return "metrics and tokens hold numbers"
    for number, text, logprob in chain(*(span or () for span in sample.token_logprobs or ())):
        if not (is_number(number) and is_text(text) and is_number(logprob)):
            return "token_logprobs are lists of id, text and log-probability"
    return None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def parse_place(line: bytes) -> tuple[str, int]:
    """Return suite and row of a line, without parsing the rest if a run wrote it.

    Raises:
        ValueError: it holds no sample, as far as it was read.
    """
    if head := _HEAD.match(line):
        return head[1].decode("utf-8"), int(head[2])
    sample = parse_sample(line)
    return sample.suite, sample.index


class KeptSamples:
    """Samples of one suite in memory; of several of one row, the last counts."""

    def __init__(self, samples: Iterable[SampleResult]):
        self._by_row = {sample.index: sample for sample in samples}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._by_row)

    def __contains__(self, row: object) -> bool:
        """True if there is a sample of this row."""
        return row in self._by_row

    def __iter__(self) -> Iterator[SampleResult]:
        """Yield them in the order of the rows."""
        return self.at(sorted(self._by_row))

    def at(self, rows: Iterable[int]) -> Iterator[SampleResult]:
        """Yield the samples of these rows, in this order.

        Raises:
            KeyError: there is no such row.
        """
        return (self._by_row[row] for row in rows)
