"""Faults that only a sequence about as long as the window shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalution_core import GenerationOutput, GenerationRequest
from evalution_enginekit import TokenScore
from mutants.catalogue import shared_fault
from mutants.toy import ToyHooks

_WINDOW = 96
"""The model's own, whatever the engine was given."""
_CHUNK = 68
_LONG = 72
"""More tokens than any short probe has, and fewer than the window."""


@shared_fault("test_a_full_window_scores_as_the_reference")
class DriftsPastItsTraining(ToyHooks):
    """Scores are wrong past a number of tokens alone, as with positions that aren't scaled."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        score = super().score_span(token_ids, start)
        values = [v - 0.5 * (start + n >= _LONG) for n, v in enumerate(score.logprobs)]
        return TokenScore(values, score.is_greedy)


@shared_fault("test_a_full_window_scores_as_the_reference")
class ForgetsAtAChunk(ToyHooks):
    """A sequence is fed in chunks, and each begins with nothing before it."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        values: list[float] = []
        greedy = True
        for at in range(0, len(token_ids), _CHUNK):
            chunk = token_ids[max(at - 1, 0) : at + _CHUNK]
            begin = max(1, start - max(at - 1, 0))
            if begin < len(chunk):
                score = super().score_span(chunk, begin)
                values += score.logprobs
                greedy = greedy and bool(score.is_greedy)
        return TokenScore(values, greedy)


@shared_fault("test_a_full_window_scores_as_the_reference")
class CutsTheEndOfAWindow(ToyHooks):
    """A full window is fed without its last token, and the last score is made up."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        score = super().score_span(token_ids, start)
        if len(token_ids) <= _WINDOW or len(score.logprobs) < 2:
            return score
        return TokenScore([*score.logprobs[:-1], score.logprobs[-2]], score.is_greedy)


@shared_fault("test_a_full_context_is_fed_whole")
class CutsTheBeginningOfAWindow(ToyHooks):
    """The window is counted with the token that is scored, so a full one loses its first token."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        cut = int(len(token_ids) > _WINDOW and start > 1)
        return super().score_span(token_ids[cut:], start - cut)


@shared_fault("test_a_full_context_is_fed_whole")
class CutsContextsToAFixedLength(ToyHooks):
    """Of a long context the last 68 tokens are fed, whatever the window."""

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        cut = min(start - 1, max(0, len(token_ids) - 1 - _CHUNK))
        return super().score_span(token_ids[cut:], start - cut)


@shared_fault("test_a_full_prompt_is_completed_as_the_reference")
class CutsPromptsToAFixedLength(ToyHooks):
    """Of a long prompt the last 72 tokens are fed, whatever the window."""

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids[-_LONG:]


@shared_fault("test_a_full_prompt_is_completed_as_the_reference")
class CutsPromptsAtTheirEnd(ToyHooks):
    """Of a long prompt the first 72 tokens are fed."""

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids[:_LONG]


@shared_fault("test_a_completion_after_a_full_prompt_scores_the_same")
class DriftsInGenerationAlone(ToyHooks):
    """After a long prompt, the text is right and its log-probabilities aren't."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        if output.token_logprobs is None or (output.prompt_tokens or 0) < _LONG:
            return output
        return replace(output, token_logprobs=[v - 0.01 for v in output.token_logprobs])
