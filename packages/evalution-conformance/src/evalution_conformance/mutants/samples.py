"""Faults in sampling, and in the log-probabilities of what is generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalution_conformance.mutants.catalogue import session_fault
from evalution_conformance.mutants.toy import ToySession
from evalution_core import GenerationOutput, GenerationRequest


@session_fault("test_sampling_samples")
class NeverSamples(ToySession):
    """`do_sample` is ignored."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, do_sample=False)


@session_fault("test_sampling_keeps_to_the_allowed_tokens")
class IgnoresTopK(ToySession):
    """`top_k` is ignored."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=0)


@session_fault("test_a_seed_fixes_the_sample")
class IgnoresTheSeed(ToySession):
    """`seed` is ignored."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, seed=None)


@session_fault("test_a_seed_fixes_the_sample")
class SeedsByPosition(ToySession):
    """What a seed gives depends on the place in the batch."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        moved = [
            request if request.seed is None else replace(request, seed=request.seed + 100 * index)
            for index, request in enumerate(requests)
        ]
        return super().generate(moved, batch_size=batch_size)


@session_fault("test_logprobs_belong_to_the_tokens")
class LogprobsOfTheNextToken(ToySession):
    """Log-probabilities stand one token too early, and the last one is missing."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return replace(output, token_logprobs=(output.token_logprobs or [])[1:])


@session_fault("test_generated_tokens_score_the_same")
class LogprobsAfterTemperature(ToySession):
    """Log-probabilities of generated tokens are those of a scaled distribution."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        if output.token_logprobs is None:
            return output
        return replace(output, token_logprobs=[value / 2 for value in output.token_logprobs])
