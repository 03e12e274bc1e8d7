"""Sessions for runtimes that are asked for whole requests: a server, a hosted model."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from evalution_core import (
    Capability,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.encoding import TokenSpan
from evalution_enginekit.completion import CompletionChunk, OutputAssembler, RequestPrompt
from evalution_enginekit.planning import TokenScore, check_score
from evalution_enginekit.request_loop import Emit, JobStream, RequestJob, RequestLoop
from evalution_enginekit.runtime_thread import runtime_errors
from evalution_enginekit.session import READ_AHEAD, KitSession
from evalution_enginekit.streams import StreamLimits
from evalution_enginekit.tokenizer import Tokenizer

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q", LoglikelihoodRequest, RollingLoglikelihoodRequest)

_CANARY, _CANARY_TOKENS = "Hello", 16
"""Asked of a runtime in doubt that has answered nothing yet; some refuse to generate less."""


class RequestSession(KitSession[RequestJob, RequestJob]):
    """A session for a runtime that is asked for whole requests: a server, a hosted model.

    A subclass writes `_complete` and `_score`, and `_release` for closing: coroutines on the event
    loop of the session's one thread, `depth` of them at a time. Cancelling one aborts its request.
    Everything else of the contract is here: validation, order, streams, stop strings,
    threads and the closed state.

    With `encodes`, prompts are rendered and encoded here, by the rules of every engine, and the
    runtime gets ids. Without, text stays text: `_complete` gets prompts and messages as they are,
    and `_score_pair` and `_score_text` take the place of `_score`.

    Args:
        loop: where requests run; its depth is how many at once.
        most: the largest depth that the loop may get; None: its present one.

    The other arguments are those of `KitSession`.
    """

    def __init__(
        self,
        *,
        engine: str,
        capabilities: frozenset[Capability],
        loop: RequestLoop,
        most: int | None = None,
        tokenizer: Tokenizer | None = None,
        max_model_len: int | None = None,
        encodes: bool = True,
        dtype: str | None = None,
        lacking: Mapping[Capability, str] | None = None,
    ):
        if encodes and tokenizer is None:
            raise ValueError("a session that encodes needs a tokenizer")
        super().__init__(
            engine=engine,
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=most or loop.depth,
            dtype=dtype,
            encodes=encodes,
            lacking=lacking,
        )
        self._loop = loop
        loop.set_canary(RequestJob(self._serve_canary, {}))

    # what an engine writes

    @abstractmethod
    def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        """Complete one prompt; the last chunk has `finish`.

        The stop strings are in `prompt.request.stop`, for a runtime that can end by them; the kit
        cuts the text whether it does or not, and closes the iterator at the cut. An error raised
        here is this request's alone.
        """
        ...

    async def _score(self, span: TokenSpan) -> TokenScore:
        """Log-probabilities of `span.token_ids[span.start:]`, each given all ids before it."""
        raise UnsupportedRequestError(f"engine {self._engine} can't score token ids")

    async def _score_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodOutput:
        """Score a pair as it was asked, for a runtime that encodes by itself."""
        raise UnsupportedRequestError(f"engine {self._engine} can't score text")

    async def _score_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodOutput:
        """Score a whole text as it was asked, for a runtime that encodes by itself."""
        raise UnsupportedRequestError(f"engine {self._engine} can't score text")

    async def _release(self) -> None:
        """Free what the session holds; awaited once, when nothing runs any more."""

    async def _release_caches(self) -> None:
        """Free what can be had again, between suites."""

    # the contract

    @property
    def requests_in_flight(self) -> int:
        return self._loop.running

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        if self._encoder is not None:
            return super().loglikelihood_rolling(requests, batch_size=batch_size)
        batch_size = self._begin(batch_size)
        jobs = self._validator.check_all(self._make_text_job, requests)
        self._ensure_checked()
        return self._collect_scores(jobs, batch_size)

    def loglikelihood_rolling_continuous(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[K, RollingLoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; `batch_size` counts windows of texts."""
        if self._encoder is not None:
            return super().loglikelihood_rolling_continuous(requests, batch_size=batch_size)
        opening = partial(self._open_checked, self._begin(batch_size))
        return self._pull(requests, self._make_text_job, opening)

    def gc(self) -> None:
        with runtime_errors("freeing caches"):
            self._loop.call(self._release_caches)

    def close(self) -> None:
        self._loop.close(self._release)

    # within

    def _ensure_open(self) -> None:
        self._loop.ensure_open()

    def _prompt(self, request: GenerationRequest) -> RequestPrompt:
        if self._encoder is None:
            self._validator.check_generation(request)
            text = request.rendered_prompt
            if text is None and request.messages is None:
                text = request.prompt
            ids = request.input_ids
            return RequestPrompt(request, None if ids is not None else text, ids)
        job = self._encoder.encode_generation(request)
        ids, stop_ids = job.prompt.token_ids, job.prompt.stop_ids
        return RequestPrompt(request, job.prompt_text, ids, job.truncated_tokens, stop_ids)

    def _completion_maker(
        self, *, deltas: bool = False
    ) -> Callable[[GenerationRequest], RequestJob]:
        return lambda request: self._make_prompt_job(replace(self._prompt(request), is_live=deltas))

    def _make_probe_job(self, token_ids: Sequence[int], length: int) -> RequestJob:
        request = GenerationRequest(input_ids=list(token_ids), max_new_tokens=length, logprobs=2)
        return self._make_prompt_job(RequestPrompt(request, "", list(token_ids), 0))

    def _make_prompt_job(self, prompt: RequestPrompt) -> RequestJob:
        """Return a job that reads one completion to its end or cut; emits deltas if it is live."""

        async def serve(emit: Emit) -> GenerationOutput:
            assembler = OutputAssembler(prompt, self._tokenizer)
            chunks = cast("Any", self._complete(prompt))
            async with aclosing(chunks):
                async for chunk in chunks:
                    delta = assembler.take(chunk)
                    if prompt.is_live and delta is not None:
                        emit(delta)
                    if assembler.is_cut:
                        break
            return assembler.output()

        return RequestJob(serve, prompt.request.metadata)

    def _score_maker(self) -> Callable[[LoglikelihoodRequest], RequestJob]:
        return self._make_score_job

    def _make_score_job(self, request: LoglikelihoodRequest) -> RequestJob:
        if self._encoder is None:
            self._validator.check_loglikelihood(request)
            return _make_answer_job(request, self._score_pair)
        job = self._encoder.encode_loglikelihood(request)

        async def serve(_: Emit) -> Any:
            return job.conclude(check_score(await self._score(job.span)))

        return RequestJob(serve, job.metadata)

    def _make_span_job(self, span: TokenSpan) -> RequestJob:
        async def serve(_: Emit) -> TokenScore:
            return check_score(await self._score(span))

        return RequestJob(serve, {})

    def _make_text_job(self, request: RollingLoglikelihoodRequest) -> RequestJob:
        self._validator.check_rolling(request)
        return _make_answer_job(request, self._score_text)

    def _open_generation(self, batch_size: int | None) -> JobStream:
        return self._open_scoring(batch_size)

    def _open_scoring(self, batch_size: int | None) -> JobStream:
        limits = StreamLimits(running=batch_size or self._batch_size, ahead=READ_AHEAD)
        return self._loop.open(limits)

    async def _serve_canary(self, emit: Emit) -> object:
        """Serve a request that any live runtime can serve, for want of one that it has served."""
        if Capability.GENERATE not in self._capabilities:
            pair = LoglikelihoodRequest(_CANARY, " " + _CANARY)
            job = await asyncio.to_thread(self._make_score_job, pair)
            return await job.serve(emit)
        request = GenerationRequest(_CANARY, max_new_tokens=_CANARY_TOKENS)
        if self._encoder is None and Capability.CHAT in self._capabilities:
            request = replace(request, messages=[{"role": "user", "content": _CANARY}])
        job = await asyncio.to_thread(self._completion_maker(), request)
        return await job.serve(emit)


def _make_answer_job(request: Q, answer: Callable[[Q], Awaitable[Any]]) -> RequestJob:
    """Return a job that has the runtime answer a request by itself; metadata are the request's."""

    async def serve(_: Emit) -> Any:
        return replace(await answer(request), metadata=request.metadata)

    return RequestJob(serve, request.metadata)
