"""Faults of one request in another: beside it in a batch, or before it in a cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_core.encoding import encode_request, encode_with_leading
from evalution_enginekit import TokenScore
from mutants.catalogue import shared_fault
from mutants.scores import change_values
from mutants.toy import ToyHooks

_LONG = 72
_KNOWN_BY = 40
"""Tokens by which a cache knows a sequence."""


class _ChangesScoresOfABatch(ToyHooks):
    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        outputs = super().loglikelihood(requests, batch_size=batch_size)
        return [self.change_in_batch(n, requests, outputs) for n in range(len(outputs))]

    def change_in_batch(
        self, at: int, requests: Sequence[LoglikelihoodRequest], outputs: list[LoglikelihoodOutput]
    ) -> LoglikelihoodOutput:
        return outputs[at]


@shared_fault("test_a_long_neighbour_changes_no_score")
class PadsBesideALongPair(_ChangesScoresOfABatch):
    """Beside a long pair, short ones are padded with BOS, which isn't masked."""

    def change_in_batch(
        self, at: int, requests: Sequence[LoglikelihoodRequest], outputs: list[LoglikelihoodOutput]
    ) -> LoglikelihoodOutput:
        pairs = [encode_request(self.codec, r, r.context) for r in requests]
        context_ids, continuation_ids = pairs[at]
        longest = max(len(before) + len(after) for before, after in pairs)
        if longest < _LONG or longest == len(context_ids) + len(continuation_ids):
            return outputs[at]
        padded = [*[self.codec.bos_id] * 4, *context_ids]
        score = self.score_span([*padded, *continuation_ids], len(padded))
        return change_values(outputs[at], list(score.logprobs))


@shared_fault("test_a_batch_scores_as_its_pairs_alone")
class SwapsScoresOfALargeBatch(_ChangesScoresOfABatch):
    """With more than 32 pairs, one in the middle gets its neighbour's score."""

    def change_in_batch(
        self, at: int, requests: Sequence[LoglikelihoodRequest], outputs: list[LoglikelihoodOutput]
    ) -> LoglikelihoodOutput:
        return outputs[at - (len(requests) > 32 and at == 32)]


@shared_fault("test_choices_are_scored_apart")
class TakesAChoiceForALongerOne(_ChangesScoresOfABatch):
    """A choice that begins another one of the same context gets the longer one's score."""

    def change_in_batch(
        self, at: int, requests: Sequence[LoglikelihoodRequest], outputs: list[LoglikelihoodOutput]
    ) -> LoglikelihoodOutput:
        own = requests[at]
        for other, output in zip(requests, outputs, strict=True):
            if (
                own.continuation
                and other.context == own.context
                and other.continuation != own.continuation
                and other.continuation.startswith(own.continuation)
            ):
                return replace(output, metadata=own.metadata)
        return outputs[at]


@shared_fault("test_choices_are_scored_apart")
class KnowsChoicesByTheirText(_ChangesScoresOfABatch):
    """Equal continuations are scored once, whatever their contexts."""

    def change_in_batch(
        self, at: int, requests: Sequence[LoglikelihoodRequest], outputs: list[LoglikelihoodOutput]
    ) -> LoglikelihoodOutput:
        own = requests[at]
        if not own.continuation:
            return outputs[at]
        first = next(n for n, r in enumerate(requests) if r.continuation == own.continuation)
        return replace(outputs[first], metadata=own.metadata)


@shared_fault("test_pairs_come_back_untouched")
class MetadataOfTheFirst(_ChangesScoresOfABatch):
    """Every score of a batch carries the metadata of the first request."""

    def change_in_batch(
        self, at: int, requests: Sequence[LoglikelihoodRequest], outputs: list[LoglikelihoodOutput]
    ) -> LoglikelihoodOutput:
        return replace(outputs[at], metadata=outputs[0].metadata)


@shared_fault("test_a_batch_generates_with_the_logprobs_of_its_requests_alone")
class PadsShortPrompts(ToyHooks):
    """In a batch, short prompts are padded with four BOS; here the texts happen to be the same."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        outputs = super().generate(requests, batch_size=batch_size)
        longest = max((output.prompt_tokens or 0 for output in outputs), default=0)
        return [self._pad(output, longest) for output in outputs]

    def _pad(self, output: GenerationOutput, longest: int) -> GenerationOutput:
        if output.token_logprobs is None or 2 * (output.prompt_tokens or 0) > longest:
            return output
        before = [self.codec.bos_id] * 4 + encode_with_leading(self.codec, output.prompt)
        score = self.score_span([*before, *(output.token_ids or ())], len(before))
        return replace(output, token_logprobs=list(score.logprobs))


class _Caches(ToyHooks):
    """Takes a sequence that it has seen for another one, and continues it."""

    _seen: dict[Any, Sequence[int]] | None = None

    def reuse(self, key: Any, token_ids: Sequence[int], at: int) -> Sequence[int]:
        """The tokens of the sequence first seen with the key, as far as it goes up to `at`."""
        self._seen = {} if self._seen is None else self._seen
        seen = self._seen.setdefault(key, list(token_ids))
        kept = seen[: min(at, len(seen))]
        return [*kept, *token_ids[len(kept) :]]


@shared_fault("test_a_seen_beginning_changes_no_score")
class KnowsContextsByTheirBeginning(_Caches):
    """The cache of a context is known by its first 40 tokens."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        if start >= _KNOWN_BY:
            key = tuple(token_ids[:_KNOWN_BY])
            token_ids = self.reuse(key, token_ids, start)
        return super().score_span(token_ids, start)


@shared_fault("test_a_seen_beginning_changes_no_score")
class KnowsContextsByTheirEnd(_Caches):
    """The cache of a context is known by its last 40 tokens and its length."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        if start > _KNOWN_BY:
            key = (start, *token_ids[start - _KNOWN_BY : start])
            token_ids = self.reuse(key, token_ids, start)
        return super().score_span(token_ids, start)


@shared_fault("test_a_completion_changes_no_score")
class ScoresFromACompletionsCache(_Caches):
    """What a completion left in the cache is taken for a context that begins like its prompt."""

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        if len(token_ids) > _KNOWN_BY:
            self.reuse(tuple(token_ids[:_KNOWN_BY]), token_ids, 0)
        return token_ids

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        key = tuple(token_ids[:_KNOWN_BY])
        if start > _KNOWN_BY and key in (self._seen or {}):
            token_ids = self.reuse(key, token_ids, start)
        return super().score_span(token_ids, start)


@shared_fault("test_an_open_stream_changes_no_score")
class SharesACacheWithStreams(ToyHooks):
    """Scores are off as long as completions are running."""

    _running = 0

    def generate_continuous(
        self, requests: Iterable[tuple[Any, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, GenerationOutput | RequestFailure]]:
        self._running += 1
        try:
            yield from super().generate_continuous(requests, batch_size=batch_size)
        finally:
            self._running -= 1

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        score = super().score_span(token_ids, start)
        return TokenScore([v - 0.01 * self._running for v in score.logprobs], score.is_greedy)
