"""Faults in scoring pairs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from evalution_core import (
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.encoding import encode_with_leading
from evalution_enginekit import TokenScore
from mutants.catalogue import session_fault
from mutants.toy import ToySession


def change_values(output: LoglikelihoodOutput, values: list[float]) -> LoglikelihoodOutput:
    return replace(
        output, token_logprobs=values, logprob=math.fsum(values), token_count=len(values)
    )


@session_fault("test_sums_and_counts_are_consistent")
class SumsTheContextToo(ToySession):
    """`logprob` is the sum over more than the continuation."""

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return replace(output, logprob=output.logprob - 1.0)


@session_fault("test_a_batch_scores_as_its_pairs_alone")
class SwapsScores(ToySession):
    """The first two scores of a batch change places."""

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        outputs = super().loglikelihood(requests, batch_size=batch_size)
        return [*outputs[1::-1], *outputs[2:]]


@session_fault("test_parts_sum_to_the_whole")
class FirstTokenForFree(ToySession):
    """The first token of a continuation has the log-probability 0."""

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return change_values(output, [0.0, *(output.token_logprobs or [])[1:]])


@session_fault("test_ids_are_taken_as_they_are", "test_scores_of_ids_equal_the_reference")
class PrependsBosToContextIds(ToySession):
    """Context ids get a BOS put before them."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        if request.context_input_ids is None:
            return request
        leading = self.codec.leading_ids
        return replace(request, context_input_ids=[*leading, *request.context_input_ids])


@session_fault("test_a_changed_token_is_not_greedy")
class AlwaysGreedy(ToySession):
    """`is_greedy` is always true."""

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return replace(output, is_greedy=True)


@session_fault("test_a_changed_token_is_not_greedy")
class GreedyAtItsEnds(ToySession):
    """`is_greedy` is that of the first and the last token."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        rows = self.find_rows(token_ids, start)
        ends = (0, len(rows) - 1)
        greedy = all(rows[at][token_ids[start + at]] >= max(rows[at]) for at in ends)
        return replace(super().score_span(token_ids, start), is_greedy=greedy)


@session_fault("test_a_batch_scores_as_its_pairs_alone")
class GreedyInBatches(ToySession):
    """In a batch `is_greedy` is true of all."""

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        outputs = super().loglikelihood(requests, batch_size=batch_size)
        return [replace(o, is_greedy=o.is_greedy or len(outputs) > 1) for o in outputs]


@session_fault("test_generated_tokens_are_greedy")
class NeverGreedy(ToySession):
    """`is_greedy` is always false."""

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return replace(output, is_greedy=False)


@session_fault("test_messages_are_a_context")
class JoinsMessages(ToySession):
    """Messages as context are joined instead of rendered."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        if request.messages is None:
            return request
        context = "\n".join(str(message["content"]) for message in request.messages)
        return replace(request, messages=None, context=context)


@session_fault("test_bad_pairs_are_refused_by_index")
class NamesNoIndex(ToySession):
    """A batch with a bad pair is refused without saying which it is."""

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        try:
            return super().loglikelihood(requests, batch_size=batch_size)
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error)) from None


@session_fault("test_pairs_come_back_untouched")
class MarksScoredPairs(ToySession):
    """Scoring leaves its notes in the caller's metadata."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        request.metadata["scored"] = True
        return request


class _EncodesItself(ToySession):
    """Encodes pairs by its own rule; ids that are given stay as they are."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        given = (request.context_input_ids, request.continuation_input_ids)
        if given != (None, None) or request.messages is not None or not request.continuation:
            return request
        context_ids, continuation_ids = self.encoded(request.context, request.continuation)
        return replace(
            request, context_input_ids=context_ids, continuation_input_ids=continuation_ids
        )

    @abstractmethod
    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]: ...


@session_fault("test_a_pair_is_encoded_as_one_text", "test_a_merged_continuation_is_refused")
class EncodesHalvesApart(_EncodesItself):
    """Context and continuation are encoded apart."""

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        kept = context.rstrip()
        moved = context[len(kept) :] + continuation
        return encode_with_leading(self.codec, kept), self.codec.encode(moved)


@session_fault("test_trailing_whitespace_belongs_to_the_continuation")
class KeepsTrailingWhitespace(_EncodesItself):
    """Whitespace at the end of the context stays there."""

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        context_ids = encode_with_leading(self.codec, context)
        whole = encode_with_leading(self.codec, context + continuation)
        return context_ids, whole[len(context_ids) :]


@session_fault("test_an_empty_context_is_bos")
class EmptyContextIsEos(_EncodesItself):
    """An empty context is conditioned on EOS where there is a BOS."""

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if not context:
            return sorted(self.codec.eos_ids), self.codec.encode(continuation)
        context_ids = encode_with_leading(self.codec, context)
        whole = encode_with_leading(self.codec, context + continuation)
        return context_ids, whole[len(context_ids) :]


@session_fault("test_a_context_has_one_bos")
class DoublesBosInScoring(_EncodesItself):
    """A context that spells its BOS gets another one."""

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        leading = list(self.codec.leading_ids)
        context_ids = leading + self.codec.encode(context)
        whole = leading + self.codec.encode(context + continuation)
        return context_ids, whole[len(context_ids) :]


@session_fault("test_a_long_context_is_cut_from_the_left")
class CountsNoCutInScoring(ToySession):
    """What is cut from a context isn't counted."""

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return replace(output, truncated_tokens=0)


@session_fault("test_a_long_context_is_cut_from_the_left", "test_cut_scores_equal_the_reference")
class KeepsBosInACut(_EncodesItself):
    """BOS is kept before what is left of a context."""

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        context_ids = encode_with_leading(self.codec, context)
        whole = encode_with_leading(self.codec, context + continuation)
        continuation_ids = whole[len(context_ids) :]
        excess = len(whole) - (self._window + 1)
        if excess > 0:
            context_ids = [*context_ids[:1], *context_ids[1 + excess :]]
        return context_ids, continuation_ids


@session_fault("test_a_continuation_is_never_cut")
class CutsTheContinuation(_EncodesItself):
    """A continuation that doesn't fit is cut."""

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        context_ids = encode_with_leading(self.codec, context)
        whole = encode_with_leading(self.codec, context + continuation)
        return context_ids, whole[len(context_ids) :][: self._window]


def _rolled(output: RollingLoglikelihoodOutput, values: list[float]) -> RollingLoglikelihoodOutput:
    return replace(
        output,
        token_logprobs=values,
        logprob=math.fsum(values),
        token_count=len(values),
        token_ids=None,
    )


@session_fault("test_each_token_is_scored_once", "test_one_window_is_plain_scoring")
class ScoresBos(ToySession):
    """BOS is scored with the text."""

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        return _rolled(output, [-5.0, *(output.token_logprobs or [])])


@session_fault("test_each_token_is_scored_once", "test_windows_sum_to_the_text")
class ForgetsTheLastWindow(ToySession):
    """The last window of a long text is forgotten."""

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        values = output.token_logprobs or []
        whole = len(values) - len(values) % self._window
        return _rolled(output, values[:whole] if whole else values)


@session_fault("test_windows_sum_to_the_text", "test_windows_equal_the_reference")
class FeedsTheWholeText(ToySession):
    """A text longer than the window is fed at once."""

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        token_ids = [*self.codec.leading_ids, *(output.token_ids or [])]
        return _rolled(output, list(self.score_span(token_ids, 1).logprobs))


@session_fault("test_one_window_is_plain_scoring", "test_rolling_equals_the_reference")
class RollsAfterEos(ToySession):
    """The first token of a text is conditioned on EOS where there is a BOS."""

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        token_ids = [self.codec.eos_id or 0, *(output.token_ids or [])]
        return _rolled(output, list(self.score_span(token_ids, 1).logprobs))


@session_fault("test_bos_is_never_scored")
class ScoresSpelledBos(ToySession):
    """A BOS that the text spells is scored."""

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        spelled = request.text.startswith("<bos>")
        return _rolled(output, [-5.0, *(output.token_logprobs or [])]) if spelled else output


@session_fault("test_rolled_ids_are_their_text")
class TakesTheFirstIdForBos(ToySession):
    """The first of given ids is taken for a BOS."""

    def change_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodRequest:
        return replace(request, input_ids=request.input_ids[1:] if request.input_ids else None)


@session_fault("test_rolled_ids_are_their_text")
class RollsIdsInOneWindow(ToySession):
    """Of given ids, those of the first window are scored."""

    def change_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodRequest:
        if request.input_ids is None:
            return request
        return replace(request, input_ids=request.input_ids[: self._window])


@session_fault("test_an_empty_text_is_refused")
class ScoresEmptyTexts(ToySession):
    """An empty text is scored as a space."""

    def change_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodRequest:
        return (
            request if request.input_ids is not None else replace(request, text=request.text or " ")
        )


@session_fault("test_texts_score_in_order")
class SortsTexts(ToySession):
    """Scores of texts come in the order of their lengths."""

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        by_length = sorted(requests, key=lambda request: len(request.text))
        return super().loglikelihood_rolling(by_length, batch_size=batch_size)


@session_fault("test_a_stream_of_texts_scores_as_the_list_does")
class LosesAStreamedText(ToySession):
    """The last text of a stream is never scored."""

    def loglikelihood_rolling_continuous(
        self, requests: Iterable[tuple[Any, RollingLoglikelihoodRequest]], **options: Any
    ) -> Iterator[tuple[Any, RollingLoglikelihoodOutput | RequestFailure]]:
        yield from super().loglikelihood_rolling_continuous(list(requests)[:-1], **options)
