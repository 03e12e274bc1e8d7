"""Faults in what is drawn, in whose seed it is drawn with, and in what runs on after its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from evalution_core import Capability, GenerationOutput, GenerationRequest, RequestFailure
from evalution_core.encoding import encode_with_leading
from evalution_enginekit import (
    CompletionChunk,
    PromptQueue,
    RequestPrompt,
    TokenEvent,
    run_continuous_batching,
)
from mutants.catalogue import engine_fault, session_fault, shared_fault
from mutants.toy import CAPABILITIES, SESSIONS, Toy, ToyHooks, ToyRequestSession, ToySession


@shared_fault("test_top_k_draws_among_the_k_likeliest")
class IgnoresTopKAboveOne(ToyHooks):
    """`top_k` means greedy if it is 1, and nothing else otherwise."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=request.top_k if request.top_k < 2 else 0)


@shared_fault("test_top_k_draws_among_the_k_likeliest")
class KeepsOneTokenMore(ToyHooks):
    """`top_k=2` leaves three tokens."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=request.top_k + (request.top_k > 1))


@shared_fault("test_top_p_draws_within_its_mass")
class IgnoresTopPUnlessTiny(ToyHooks):
    """`top_p` means greedy if it is almost 0, and nothing else otherwise."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_p=request.top_p if request.top_p < 1e-3 else 1.0)


@shared_fault("test_top_k_draws_among_the_k_likeliest")
class KeepsOneTokenLess(ToyHooks):
    """`top_k=2` leaves one token."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=request.top_k - (request.top_k > 1))


@shared_fault("test_top_p_draws_within_its_mass")
class KeepsWhatIsBelowTheMass(ToyHooks):
    """`top_p` keeps the tokens up to that probability, without the one that reaches it."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_p=request.top_p if request.top_p == 1 else request.top_p / 2)


@shared_fault("test_any_token_may_be_drawn")
class HasATopKOfItsOwn(ToyHooks):
    """Without a `top_k`, that of the checkpoint's files cuts."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=request.top_k or 5)


@session_fault("test_any_token_may_be_drawn")
class HasATopPOfItsOwn(ToySession):
    """Without a `top_p`, that of the checkpoint's files cuts."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_p=min(request.top_p, 0.95))


@session_fault("test_any_token_may_be_drawn")
class HasALargeTopKOfItsOwn(ToySession):
    """Without a `top_k`, the 64 likeliest tokens are drawn from."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=request.top_k or 64)


@session_fault("test_any_token_may_be_drawn")
class ClampsTheTemperature(ToySession):
    """A temperature above 1 is taken for 1."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, temperature=min(request.temperature, 1.0))


@shared_fault("test_a_low_temperature_is_nearly_greedy")
class IgnoresTemperature(ToyHooks):
    """Samples are drawn at temperature 1, whatever was asked for."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        if not request.do_sample:
            return request
        # A draw of its own each time is the greedy text once in a thousand.
        return replace(request, temperature=1.0, seed=request.seed or 1)


@shared_fault("test_a_low_temperature_is_nearly_greedy")
class MultipliesByTemperature(ToyHooks):
    """Logits are multiplied by the temperature, not divided."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        if not request.do_sample or not request.temperature:
            return request
        return replace(request, temperature=1 / request.temperature)


class _ChangesBatches(ToyHooks):
    """Changes the requests of a list together."""

    def change_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return list(requests)

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        return super().generate(self.change_batch(requests), batch_size=batch_size)


@shared_fault("test_a_low_temperature_is_nearly_greedy")
class OneTemperatureForAll(_ChangesBatches):
    """All samples of a batch are drawn at the temperature of its first."""

    def change_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        hot = next((r.temperature for r in requests if r.do_sample), 1.0)
        return [replace(r, temperature=hot) if r.do_sample else r for r in requests]


@shared_fault("test_a_seed_is_its_own_requests")
class SeedsItsNeighbours(_ChangesBatches):
    """A request without a seed is drawn with that of the batch."""

    def change_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        seed = next((r.seed for r in requests if r.seed is not None), None)
        return [replace(r, seed=seed) if r.do_sample and r.seed is None else r for r in requests]


@shared_fault("test_a_seed_is_its_own_requests")
class SeedsTheProcess(ToyHooks):
    """A seed is set for the whole process, and later requests are drawn with it."""

    _seed: int | None = None

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        if request.seed is None:
            return replace(request, seed=self._seed)
        self._seed = request.seed
        return request


@shared_fault("test_a_seed_fixes_the_sample_in_a_stream")
class DropsSeedsInStreams(ToyHooks):
    """Only `generate` heeds the seed."""

    def generate_continuous(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, GenerationOutput | RequestFailure]]:
        unseeded = ((key, replace(request, seed=None)) for key, request in requests)
        return super().generate_continuous(unseeded, batch_size=batch_size)


@shared_fault("test_a_second_session_answers_alike")
class SeedsBySession(ToyHooks):
    """What a seed gives depends on the session."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return request if request.seed is None else replace(request, seed=request.seed + id(self))


@shared_fault("test_samples_of_one_prompt_are_drawn_apart")
class OneSampleForTwo(ToyHooks):
    """A request that equals the one before it gets the same sample."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        outputs = super().generate(requests, batch_size=batch_size)
        for at in range(1, len(requests), 2):
            if requests[at] == requests[at - 1]:
                outputs[at] = outputs[at - 1]
        return outputs


@shared_fault("test_samples_of_one_prompt_are_drawn_apart")
class StartsOverEachCall(_ChangesBatches):
    """Random numbers are the same ones in each call."""

    def change_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return [
            replace(r, seed=index) if r.do_sample and r.seed is None else r
            for index, r in enumerate(requests)
        ]


class _CachesPrompts(ToyHooks):
    """Feeds a prompt that it has seen in place of one that it takes for the same."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._known: dict[Any, Sequence[int]] = {}

    def name(self, token_ids: Sequence[int]) -> Any:
        return tuple(token_ids)

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        return self._known.setdefault(self.name(token_ids), token_ids)


@shared_fault("test_earlier_prompts_change_no_answer")
class CachesByLength(_CachesPrompts):
    """The prefix cache takes prompts of one length for the same."""

    def name(self, token_ids: Sequence[int]) -> Any:
        return len(token_ids)


@shared_fault("test_earlier_prompts_change_no_answer")
class CachesByTheFirstBlock(_CachesPrompts):
    """The prefix cache compares the first block alone."""

    def name(self, token_ids: Sequence[int]) -> Any:
        return tuple(token_ids[:16])


@shared_fault("test_earlier_prompts_change_no_answer")
class KeepsTheLongerPrompt(_CachesPrompts):
    """A prompt that begins a known, longer one is fed as that one."""

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        begun = list(token_ids)
        for known in self._known.values():
            if list(known[: len(begun)]) == begun:
                return known
        return super().feed_prompt(token_ids)


@shared_fault("test_earlier_prompts_change_no_answer")
class LosesTheLastTokenOfAnAnswer(_CachesPrompts):
    """A prompt that goes on behind an answer is fed without its last token, which wasn't cached."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        before = request.input_ids or encode_with_leading(self.codec, output.prompt)
        self._known[output.prompt] = [*before, *(output.token_ids or ())]
        return output

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        for known in self._known.values():
            if len(known) < len(token_ids) and list(token_ids[: len(known)]) == known:
                return [*known[:-1], *token_ids[len(known) :]]
        return token_ids


@session_fault("test_a_stop_string_ends_the_computation")
class DeafToCancellation(ToySession):
    """The kit isn't asked for cancelled keys: each prompt runs to its limit."""

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return run_continuous_batching(_Deaf(feed), self._batch_size, self._start, self._step)


class _Deaf(PromptQueue):
    def __init__(self, feed: PromptQueue):
        self.take = feed.take

    def cancelled(self) -> list[int]:
        return []


@session_fault("test_a_stop_string_ends_the_computation")
class RunsOnWhatItDropped(ToySession):
    """The kit is asked for cancelled keys, and they run on all the same."""

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        for events in run_continuous_batching(
            _Deaf(feed), self._batch_size, self._start, self._step
        ):
            feed.cancelled()
            yield events


@engine_fault("test_a_stop_string_ends_the_computation")
class DeafInFixedBatches(Toy):
    """A fixed batch runs to its limit when nobody wants anything of it any more."""

    capabilities = CAPABILITIES - {Capability.CONTINUOUS_BATCHING}

    def build(self, model: Any) -> Any:
        return SESSIONS["DeafToCancellation"](self, model)


@session_fault("test_a_stop_string_ends_the_computation", "test_a_stop_string_is_cut")
class GeneratesOnAfterTheCut(ToyRequestSession):
    """A request goes on when the kit closes its iterator."""

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        try:
            async for chunk in super()._complete(prompt):
                yield chunk
        except GeneratorExit:
            yield CompletionChunk(token_ids=[0])
