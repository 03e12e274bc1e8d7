"""Samples of a suite as pages show them: lists that are chosen and sorted by columns, and one."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, tee
from typing import Any, cast, get_args

from evalution.comparison.comparison import (
    Pairing,
    ask_alike,
    find_answer,
    find_option_differences,
    pair_samples,
    pair_values,
)
from evalution.comparison.significance import is_binary
from evalution.redaction import mask_text
from evalution.sample_columns import SampleColumns
from evalution.samples import SampleResult, TokenLogprob, is_number, is_text
from evalution.samples_file import FileSamples, SuiteSamples
from evalution.user_input import LARGEST
from evalution.view.documents import (
    ChoiceDocument,
    MessageDocument,
    Order,
    SampleDocument,
    SampleListDocument,
    SampleOtherDocument,
    SampleRowDocument,
    TokenDocument,
    Which,
)
from evalution_core import ConfigurationError

_TEXT_SHOWN = 300
MOST_LISTED = 1000
_WRONG, _RIGHT, _NEITHER = 0, 1, 2
_WORDS = re.compile(r'"([^"]+)"?|([^\s"]+)')
"""A phrase in quotes, whose end may not be written yet, or a word."""


class SuiteView:
    """The samples of a suite of one run, with their numbers at hand.

    Args:
        run: the run's id.
        name: the suite's name.
        columns: its samples' numbers.
        samples: the samples themselves.
        metrics: names, the main one first, and whether higher is better.
        options: the suite's; None while it runs.
        unjudged: metrics by which a sample is neither right nor wrong, whatever their values.
    """

    def __init__(
        self,
        run: str,
        name: str,
        columns: SampleColumns,
        samples: SuiteSamples,
        metrics: Mapping[str, bool],
        options: Mapping[str, Any] | None = None,
        unjudged: Collection[str] = (),
    ):
        self.run = run
        self.name = name
        self.columns = columns
        self.samples = samples
        self.metrics = metrics
        self.options = options
        self.unjudged = unjudged

    @property
    def main_metric(self) -> str | None:
        return next(iter(self.metrics), None)

    @cached_property
    def judged_by(self) -> str | None:
        """The first metric that is 1 or 0 in every sample, None if there is none."""
        held = self.columns.metrics
        judging = (name for name in self.metrics if name in held and name not in self.unjudged)
        return next((name for name in judging if is_binary(held[name])), None)

    @cached_property
    def judgements(self) -> bytearray:
        """Of each sample 0 where it is wrong, 1 where it is right, 2 where neither is known."""
        if self.judged_by is None:
            return bytearray([_NEITHER]) * len(self.columns)
        right = float(self.metrics[self.judged_by])
        values = self.columns.metrics[self.judged_by]
        return bytearray(
            _NEITHER if has_failed or value not in (0.0, 1.0) else value == right
            for value, has_failed in zip(values, self.columns.failed, strict=True)
        )

    def judge_by(self, metric: str) -> SuiteView:
        """Return the same samples, judged by this metric."""
        found = copy(self)
        found.judged_by = metric
        vars(found).pop("judgements", None)
        return found

    @cached_property
    def places(self) -> dict[int, int] | None:
        """The places of the rows; None where the rows are 0, 1, 2 and so on."""
        rows = self.columns.rows
        if not rows or (rows[0] == 0 and rows[-1] == len(rows) - 1):
            return None
        return {row: at for at, row in enumerate(rows)}

    def find_place(self, row: int) -> int | None:
        """Return the place of a row among the columns; None where there is no such row."""
        if self.places is None:
            return row if 0 <= row < len(self.columns) else None
        return self.places.get(row)

    def find_value(self, at: int) -> float | None:
        """Return the main metric of a sample; None where it has none that is finite."""
        values = self.columns.metrics.get(self.main_metric or "")
        return None if values is None or not math.isfinite(values[at]) else values[at]

    def is_right(self, at: int) -> bool | None:
        """Return the judgement of a sample."""
        found = self.judgements[at]
        return None if found == _NEITHER else found == _RIGHT


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """Choice of samples of a suite.

    `q` has words, and phrases in quotes, that all occur in the prompt, the target, the prediction,
    the extracted answer, a choice, the error or the group, whatever their case.

    Raises:
        ConfigurationError: there is no such choice or order, or a number is out of range.
    """

    which: Which = "all"
    sort: Order = "index"
    q: str = ""
    offset: int = 0
    limit: int = 50

    def __post_init__(self) -> None:
        for name, value, known in (
            ("which", self.which, get_args(Which)),
            ("sort", self.sort, get_args(Order)),
        ):
            if value not in known:
                raise ConfigurationError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if not 0 <= self.offset <= LARGEST:
            raise ConfigurationError(f"offset must be at least 0, got {self.offset}")
        if not 1 <= self.limit <= MOST_LISTED:
            raise ConfigurationError(f"limit must be from 1 to {MOST_LISTED}, got {self.limit}")


def list_samples(
    suite: SuiteView, query: SampleQuery, against: SuiteView | None = None
) -> SampleListDocument:
    """Return a page of the samples of a suite; `against` is the same suite in another run.

    Raises:
        ConfigurationError: flipped samples are wanted and there is nothing to compare with; or the
            samples can't be read.
    """
    suite, against = judge_alike(suite, against)
    chosen = choose_places(suite, query, against)
    total = None
    stop = query.offset + query.limit
    if query.q:
        found = list(islice(search(suite, chosen, query.q), stop + 1))
        has_more = len(found) > stop
        total = None if has_more else len(found)
        page: Sequence[int] = found[query.offset : stop]
    else:
        total = len(chosen)
        has_more = total > stop
        page = chosen[query.offset : stop]
    return {
        "run": suite.run,
        "suite": suite.name,
        "against": None if against is None else against.run,
        "metric": suite.main_metric,
        "judged_by": suite.judged_by,
        "every": len(suite.columns),
        "total": total,
        "has_more": has_more,
        "samples": make_rows(suite, page, against),
    }


def choose_places(suite: SuiteView, query: SampleQuery, against: SuiteView | None) -> Sequence[int]:
    """Return the places of the samples that are chosen, in their order, without the search.

    Raises:
        ConfigurationError: flipped samples are wanted and there is nothing to compare with.
    """
    wanted = {"wrong": _WRONG, "right": _RIGHT}
    places: Sequence[int] = range(len(suite.columns))
    if query.which in wanted:
        judged = wanted[query.which]
        places = array("q", (at for at, found in enumerate(suite.judgements) if found == judged))
    elif query.which == "failed":
        places = array("q", (at for at, found in enumerate(suite.columns.failed) if found))
    elif query.which == "flipped":
        if against is None:
            raise ConfigurationError("flipped samples need a run to compare with: against=RUN")
        places = find_flipped(suite, against)
    if query.sort == "-index":
        return places[::-1]
    values = suite.columns.metrics.get(suite.main_metric or "")
    if query.sort == "index" or values is None:
        return places
    known = [at for at in places if math.isfinite(values[at])]
    known.sort(key=values.__getitem__, reverse=query.sort == "-value")
    worst = [at for at in places if math.isinf(values[at])]
    is_worst_first = (query.sort == "value") == suite.metrics[suite.main_metric or ""]
    ordered = worst + known if is_worst_first else known + worst
    return ordered + [at for at in places if math.isnan(values[at])]


def judge_alike(suite: SuiteView, against: SuiteView | None) -> tuple[SuiteView, SuiteView | None]:
    """Return both sides judged as `compare` does: by the first metric that is 1 or 0 in all pairs.

    Each keeps its own where there is none.
    """
    if against is None or suite.judged_by == against.judged_by == against.main_metric:
        return suite, against
    pairs, columns = _pair(suite, against), (suite.columns, against.columns)
    both = filter(suite.metrics.__contains__, against.metrics)
    for metric in (name for name in both if name not in {*suite.unjudged, *against.unjudged}):
        _, values, _ = pair_values(pairs, columns, metric, is_mean=False)
        if values[0] and all(map(is_binary, values)):
            return suite.judge_by(metric), against.judge_by(metric)
    return suite, against


def _pair(suite: SuiteView, against: SuiteView) -> Pairing:
    is_alike = False
    if suite.options is not None and against.options is not None:
        is_alike = ask_alike(find_option_differences(suite.options, against.options))
    return pair_samples(suite.columns, against.columns, same_prompts=is_alike)


def find_flipped(suite: SuiteView, against: SuiteView) -> array[int]:
    """Return the places of rows that both runs answered, one of them right and the other wrong."""
    if suite.judged_by != against.judged_by:
        return array("q")
    pairs = _pair(suite, against)
    here, there = suite.judgements, against.judgements
    return array(
        "q",
        (
            at
            for at, other in zip(pairs.left, pairs.right, strict=True)
            if here[at] + there[other] == _RIGHT  # one of them is right, the other wrong
        ),
    )


def search(suite: SuiteView, places: Iterable[int], text: str) -> Iterator[int]:
    """Yield those of the places whose sample says every word, and every phrase in quotes.

    Each sample is read when it is asked for; of those in a file, only lines that have them.
    """
    needles = [phrase or word for phrase, word in _WORDS.findall(text.casefold())]
    rows, samples = suite.columns.rows, suite.samples
    if needles and isinstance(samples, FileSamples) and len(samples):
        found = samples.find_texts(needles)
        places = places if found is None else _keep_places(suite, places, found)
    wanted, read = tee(places)
    for at, sample in zip(wanted, samples.at(rows[at] for at in read), strict=True):
        said = "\n".join(_list_texts(sample)).casefold()
        if all(needle in said for needle in needles):
            yield at


def _keep_places(suite: SuiteView, places: Iterable[int], rows: Iterator[int]) -> Iterator[int]:
    """Yield those of the places whose rows were found; in the order of the rows, one by one."""
    if isinstance(places, range) and places.step == 1:
        return (at for row in rows if (at := suite.find_place(row)) is not None)
    found = bytearray(len(suite.columns))
    for row in rows:
        if (at := suite.find_place(row)) is not None:
            found[at] = True
    return (at for at in places if found[at])


def _list_texts(sample: SampleResult) -> Iterator[str]:
    if isinstance(sample.prompt, str):
        yield sample.prompt
    else:
        yield from (_format_content(message) for message in sample.prompt or ())
    yield from filter(None, (sample.target, sample.prediction, sample.error, sample.group))
    yield from filter(None, _read_list(sample.extracted.get("choices"), is_text))
    yield from (part for part in sample.extracted.values() if isinstance(part, str))


def make_rows(
    suite: SuiteView, places: Sequence[int], against: SuiteView | None = None
) -> list[SampleRowDocument]:
    """Return samples in short, beside the same rows of another run.

    Raises:
        ConfigurationError: the samples can't be read.
    """
    rows = [suite.columns.rows[at] for at in places]
    others = {} if against is None else _make_others(against, rows)
    found = zip(places, suite.samples.at(rows), strict=True)
    return [_make_row(suite, at, sample, others.get(sample.index)) for at, sample in found]


def _make_row(
    suite: SuiteView, at: int, sample: SampleResult, other: SampleOtherDocument | None
) -> SampleRowDocument:
    prompt = sample.prompt if isinstance(sample.prompt, str) else _find_question(sample.prompt)
    return {
        "index": sample.index,
        "prompt": f"…{prompt[-_TEXT_SHOWN:]}" if len(prompt) > _TEXT_SHOWN else prompt,
        "target": _cut(sample.target),
        "extracted": _cut(find_answer(sample, suite.judged_by or suite.main_metric)),
        "value": suite.find_value(at),
        "right": suite.is_right(at),
        "tokens": sample.tokens,
        "error": None if sample.error is None else _cut(mask_text(sample.error)),
        "other": other,
    }


def _make_others(against: SuiteView, rows: Iterable[int]) -> dict[int, SampleOtherDocument]:
    places = [at for row in rows if (at := against.find_place(row)) is not None]
    samples = against.samples.at(against.columns.rows[at] for at in places)
    metric = against.judged_by or against.main_metric
    return {
        sample.index: {
            "extracted": _cut(find_answer(sample, metric)),
            "value": against.find_value(at),
            "right": against.is_right(at),
        }
        for at, sample in zip(places, samples, strict=True)
    }


def _find_question(messages: Sequence[Mapping[str, Any]] | None) -> str:
    return _format_content(messages[-1]) if messages else ""


def _format_content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _cut(text: str | None) -> str | None:
    return f"{text[:_TEXT_SHOWN]}…" if text and len(text) > _TEXT_SHOWN else text


def make_sample(
    suite: SuiteView, row: int, query: SampleQuery | None = None, against: SuiteView | None = None
) -> SampleDocument:
    """Return one sample whole, with its neighbours in the list of the query, if there is one.

    Raises:
        ConfigurationError: there is no such row, or it can't be read.
    """
    suite, against = judge_alike(suite, against)
    at = suite.find_place(row)
    if at is None:
        raise ConfigurationError(
            f"suite {suite.name!r} of run {suite.run!r} has no row {row} "
            f"({len(suite.columns)} samples)"
        )
    (sample,) = suite.samples.at([row])
    before, after = _find_neighbours(suite, at, query, against) if query else (None, None)
    messages = None if isinstance(sample.prompt, str | None) else sample.prompt
    choices = _make_choices(sample)
    tokens = sample.token_logprobs
    shown: set[str] = {"choices", "logprobs", "right", *sample.metrics} if choices else set()
    return {
        "run": suite.run,
        "suite": suite.name,
        "index": sample.index,
        "group": sample.group,
        "prompt": sample.prompt if isinstance(sample.prompt, str) else None,
        "messages": None if messages is None else [_make_message(one) for one in messages],
        "target": sample.target,
        "prediction": sample.prediction,
        "extracted": {k: value for k, value in sample.extracted.items() if k not in shown},
        "choices": choices,
        "metrics": sample.metrics,
        "right": suite.is_right(at),
        "counts": sample.tokens,
        "tokens": None if choices or not tokens else _make_tokens(tokens[0]),
        "error": None if sample.error is None else mask_text(sample.error),
        "previous": before,
        "next": after,
    }


def _find_neighbours(
    suite: SuiteView, place: int, query: SampleQuery, against: SuiteView | None
) -> tuple[int | None, int | None]:
    rows = suite.columns.rows
    chosen = choose_places(suite, query, against)
    before = None
    found = iter(search(suite, chosen, query.q) if query.q else chosen)
    for at in found:
        if at == place:
            after = next(found, None)
            return None if before is None else rows[before], None if after is None else rows[after]
        before = at
    return None, None


def _make_message(message: Mapping[str, Any]) -> MessageDocument:
    return {"role": str(message.get("role")), "content": _format_content(message)}


def _make_choices(sample: SampleResult) -> list[ChoiceDocument]:
    """Return the choices of a sample; none of a suite that has none, or of a failed sample."""
    logprobs = _read_list(sample.extracted.get("logprobs"), is_number)
    texts = _read_list(sample.extracted.get("choices"), is_text) or [None] * len(logprobs)
    tokens = sample.token_logprobs or [None] * len(logprobs)
    if not len(logprobs) == len(texts) == len(tokens):
        return []
    chosen = {name: sample.extracted.get(name) for name in sample.metrics}
    right = _read_list(sample.extracted.get("right"), is_number)
    shares = _softmax(logprobs)
    return [
        {
            "text": text,
            "logprob": logprob,
            "probability": share,
            "is_target": at in right if right else text is not None and text == sample.target,
            "chosen_by": [name for name, index in chosen.items() if index == at],
            "tokens": _make_tokens(found),
        }
        for at, (text, logprob, share, found) in enumerate(
            zip(texts, logprobs, shares, tokens, strict=True)
        )
    ]


def _read_list(found: Any, is_item: Callable[[Any], bool]) -> list[Any]:
    """Return a list of such items as it is, and an empty one for anything else."""
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return items if all(map(is_item, items)) else []


def _softmax(logprobs: Sequence[float | None]) -> list[float | None]:
    """Return the choices' shares; of one without a finite log-probability 0, if others have one."""
    known = [value for value in logprobs if value is not None]
    if not known:
        return [None] * len(logprobs)
    weights = [0.0 if value is None else math.exp(value - max(known)) for value in logprobs]
    return [weight / math.fsum(weights) for weight in weights]


def _make_tokens(tokens: Sequence[TokenLogprob] | None) -> list[TokenDocument] | None:
    if tokens is None:
        return None
    return [{"id": number, "text": text, "logprob": logprob} for number, text, logprob in tokens]


def list_latest(suite: SuiteView, arrived: SampleColumns, limit: int) -> list[SampleRowDocument]:
    """Return the samples that were answered last and aren't right, the latest first.

    Args:
        suite: the samples in the order of their rows.
        arrived: the same in the order of their answers.
        limit: at most that many.
    """
    places = (suite.find_place(row) for row in reversed(arrived.rows))
    wrong = (at for at in places if at is not None and suite.judgements[at] != _RIGHT)
    return make_rows(suite, list(islice(wrong, limit)))
