"""Faults in scoring whole texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from evalution_conformance.mutants.catalogue import session_fault
from evalution_conformance.mutants.toy import ToySession
from evalution_core import RollingLoglikelihoodOutput, RollingLoglikelihoodRequest


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

    def rolled(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        return _rolled(output, [-5.0, *(output.token_logprobs or [])])


@session_fault("test_each_token_is_scored_once", "test_windows_sum_to_the_text")
class ForgetsTheLastWindow(ToySession):
    """The last window of a long text is forgotten."""

    def rolled(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        values = output.token_logprobs or []
        whole = len(values) - len(values) % self.max_model_len
        return _rolled(output, values[:whole] if whole else values)


@session_fault("test_windows_sum_to_the_text", "test_windows_equal_the_reference")
class FeedsTheWholeText(ToySession):
    """A text longer than the window is fed at once."""

    def rolled(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        token_ids = [*self.tokenizer.leading_ids, *(output.token_ids or [])]
        return _rolled(output, list(self.score_span(token_ids, 1).logprobs))


@session_fault("test_one_window_is_plain_scoring", "test_rolling_equals_the_reference")
class RollsAfterEos(ToySession):
    """The first token of a text is conditioned on EOS where there is a BOS."""

    def rolled(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        token_ids = [self.tokenizer.eos_id or 0, *(output.token_ids or [])]
        return _rolled(output, list(self.score_span(token_ids, 1).logprobs))


@session_fault("test_bos_is_never_scored")
class ScoresSpelledBos(ToySession):
    """A BOS that the text spells is scored."""

    def rolled(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        spelled = request.text.startswith("<bos>")
        return _rolled(output, [-5.0, *(output.token_logprobs or [])]) if spelled else output


@session_fault("test_rolled_ids_are_their_text")
class TakesTheFirstIdForBos(ToySession):
    """The first of given ids is taken for a BOS."""

    def text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodRequest:
        return replace(request, input_ids=request.input_ids[1:] if request.input_ids else None)


@session_fault("test_an_empty_text_is_refused")
class ScoresEmptyTexts(ToySession):
    """An empty text is scored as a space."""

    def text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodRequest:
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
