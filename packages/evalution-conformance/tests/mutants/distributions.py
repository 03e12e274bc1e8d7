"""Faults in rows of the whole vocabulary, and in the most likely tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evalution_core import (
    Capability,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.requests import DistributionRequest, DistributionRows, TopLogprobs
from evalution_enginekit import TokenSpan
from evalution_enginekit.distributions import Rows
from mutants.catalogue import session_fault, shared_fault
from mutants.toy import ToyHooks, ToySession

Requests = Iterable[tuple[Any, DistributionRequest]]
Results = Iterator[tuple[Any, DistributionRows | RequestFailure]]

_WHOLE = "test_rows_come_whole_and_in_order"
_SCORES = "test_rows_have_the_scores_of_their_tokens"
_REFERENCE = "test_rows_equal_the_reference"
_APART = "test_rows_do_not_depend_on_other_requests"
_TOP = "test_top_logprobs_are_the_most_likely_tokens"
_TOP_SCORES = "test_top_logprobs_are_the_scores_of_their_tokens"
_TOP_REFERENCE = "test_top_logprobs_equal_the_reference"
_TEMPERATURE = 0.7
_LIKELY = 50
_KNOWN_BY = 40


def _normalize(rows: Rows) -> Rows:
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))


class _ChangesRows(ToySession):
    """`change_rows` gives what comes in place of the rows of one span."""

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        for span in spans:
            rows = np.array(self.find_rows(span.token_ids, span.start))
            yield self.change_rows(span, rows).astype(np.float32)

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return rows


@session_fault(_SCORES, _REFERENCE, "test_the_most_likely_token_of_a_row_is_greedy")
class ShiftsRows(_ChangesRows):
    """Each row is that of the position before."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        before = [span.token_ids[0], *span.token_ids[:-1]]
        return np.array(self.find_rows(before, span.start))


@session_fault(_SCORES, _REFERENCE)
class NamesOtherIds(_ChangesRows):
    """Each value stands at the next id."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return np.roll(rows, 1, axis=-1)


@session_fault(_WHOLE)
class GivesLogits(_ChangesRows):
    """Rows are not normalised."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return rows + 3.0


@session_fault(_WHOLE)
class RoundsRowsToHalf(_ChangesRows):
    """Log-softmax is computed in float16."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return rows.astype(np.float16).astype(np.float32)


@session_fault(_WHOLE)
class LeavesOutTokens(_ChangesRows):
    """Rows end before the last tokens of the vocabulary."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return _normalize(rows[:, :-5])


@session_fault(_SCORES, _REFERENCE)
class AppliesATemperature(_ChangesRows):
    """Rows are what is sampled from at a temperature, and not the model's own."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return _normalize(rows / _TEMPERATURE)


@session_fault(_REFERENCE)
class CutsTheTail(_ChangesRows):
    """Rows hold the 50 most likely tokens alone."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        least = np.sort(rows, axis=-1)[:, -_LIKELY, None]
        return _normalize(np.where(rows >= least, rows, -np.inf))


@session_fault(_SCORES)
class RepeatsARow(_ChangesRows):
    """The second row of a request is its first once more."""

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        return np.concatenate([rows[:1], rows[:1], rows[2:]])[: len(rows)]


@session_fault(_APART)
class KeepsRowsOfTheRequestBefore(_ChangesRows):
    """A request that is as long as the one before gets its rows."""

    _before: Rows | None = None
    _length = 0

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        if self._before is not None and self._length == len(span.token_ids):
            return self._before
        self._length, self._before = len(span.token_ids), rows
        return rows


@session_fault(_APART)
class GivesRowsOfANeighbour(ToySession):
    """Of two requests of one length that are computed together, both get the rows of the first."""

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        first: dict[int, TokenSpan] = {}
        return super()._compute_rows([first.setdefault(len(s.token_ids), s) for s in spans])


@session_fault(_APART, _REFERENCE)
class KnowsRowsByTheirBeginning(_ChangesRows):
    """The cache of a sequence is known by its first 40 tokens."""

    _seen: dict[Any, Rows] | None = None

    def change_rows(self, span: TokenSpan, rows: Rows) -> Rows:
        self._seen = {} if self._seen is None else self._seen
        key = (len(span.token_ids), *span.token_ids[:_KNOWN_BY])
        return self._seen.setdefault(key, rows)


@session_fault(_WHOLE)
class LosesTheLastBlock(ToySession):
    """The last block of a call never comes."""

    def distributions(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        yield from list(super().distributions(requests, batch_size=batch_size))[:-1]


@session_fault(_WHOLE)
class AnswersTheLastFirst(ToySession):
    """Requests are answered in another order than they came in."""

    def distributions(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        return super().distributions(list(requests)[::-1], batch_size=batch_size)


@session_fault(_WHOLE)
class GivesDoubles(ToySession):
    """Rows come in float64."""

    def distributions(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        for key, block in super().distributions(requests, batch_size=batch_size):
            if isinstance(block, DistributionRows):
                rows: Any = np.asarray(block.rows, np.float64)
                block = DistributionRows(block.first, memoryview(rows))
            yield key, block


@session_fault("test_a_bad_request_for_rows_fails_alone")
class EndsRowsAtABadRequest(ToySession):
    """A bad request ends the call."""

    def distributions(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        for key, block in super().distributions(requests, batch_size=batch_size):
            if isinstance(block, RequestFailure):
                raise block.error
            yield key, block


@session_fault("test_closing_rows_early_leaves_the_session_usable")
class BreaksWhenRowsAreClosed(ToySession):
    """Rows that are closed early leave the runtime in the middle of a pass."""

    def distributions(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        try:
            yield from super().distributions(requests, batch_size=batch_size)
        except GeneratorExit:
            self.salt = 1
            raise


@session_fault(_WHOLE, _APART)
class ServesUndeclaredRows(ToySession):
    """Rows come from a session that doesn't declare them."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.DISTRIBUTIONS}


class _ChangesTops(ToyHooks):
    """`change_tops` gives what comes in place of the most likely tokens."""

    def change_tops(self, tops: TopLogprobs) -> TopLogprobs:
        return tops

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        tops = output.top_logprobs
        return replace(output, top_logprobs=tops and self.change_tops(tops))


@shared_fault(_TOP)
class CutsTheTop(_ChangesTops):
    """One token fewer comes than was asked for."""

    def change_tops(self, tops: TopLogprobs) -> TopLogprobs:
        return [dict(list(top.items())[:-1]) for top in tops]


@shared_fault(_TOP)
class ShiftsTops(_ChangesTops):
    """At each position come the most likely tokens of the next."""

    def change_tops(self, tops: TopLogprobs) -> TopLogprobs:
        return [*tops[1:], tops[0]]


@shared_fault(_TOP)
class PutsTheBestLast(_ChangesTops):
    """The most likely tokens come in no order."""

    def change_tops(self, tops: TopLogprobs) -> TopLogprobs:
        return [dict(reversed(top.items())) for top in tops]


@shared_fault(_TOP_SCORES, _TOP_REFERENCE)
class ProcessesTops(_ChangesTops):
    """Values are those at a temperature."""

    def change_tops(self, tops: TopLogprobs) -> TopLogprobs:
        return [{i: value / _TEMPERATURE for i, value in top.items()} for top in tops]


@shared_fault(_TOP_REFERENCE)
class MissesTheSecond(_ChangesTops):
    """The second most likely token is left out, and the next one takes its place."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        return replace(request, top_logprobs=request.top_logprobs and request.top_logprobs + 1)

    def change_tops(self, tops: TopLogprobs) -> TopLogprobs:
        return [dict(v for n, v in enumerate(top.items()) if n != 1) for top in tops]


@shared_fault("test_windows_join_their_top_logprobs")
class KeepsTheLastWindow(ToyHooks):
    """Of a long text, the most likely tokens of the last window alone come."""

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        tops = output.top_logprobs
        return replace(output, top_logprobs=tops and tops[-(self.info.max_model_len or 0) :])


@shared_fault("test_a_count_of_top_logprobs_below_one_is_refused")
class TakesZeroForNone(ToyHooks):
    """`top_logprobs=0` is taken for not asked."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        return replace(request, top_logprobs=request.top_logprobs or None)
