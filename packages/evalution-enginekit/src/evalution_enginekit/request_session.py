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
from typing import Any, TypeVar, cast

from evalution_core import (
    Capability,
    CheckResult,
    EvalutionError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    StreamEvent,
    UnsupportedRequestError,
)
from evalution_core.encoding import TokenSpan
from evalution_enginekit.completion import CompletionChunk, OutputAssembler, RequestPrompt
from evalution_enginekit.planning import TokenScore
from evalution_enginekit.request_encoding import RequestEncoder, catch_failure
from evalution_enginekit.request_loop import Emit, RequestJob, RequestLoop, RequestStream
from evalution_enginekit.scoring import RollingStream, ScoringJob
from evalution_enginekit.session import READ_AHEAD, KitSession, make_rolling_outputs, make_span_job
from evalution_enginekit.streams import PulledStream, StreamLimits
from evalution_enginekit.tokenizer import Tokenizer

Q = TypeVar("Q", LoglikelihoodRequest, RollingLoglikelihoodRequest)


def make_completion_job(
    prompt: RequestPrompt,
    tokenizer: Tokenizer | None,
    complete: Callable[[RequestPrompt], AsyncIterator[CompletionChunk]],
    *,
    deltas: bool,
) -> RequestJob:
    """Return a job that reads one completion to its end or cut; with `deltas`, emits them too."""

    async def serve(emit: Emit) -> GenerationOutput:
        assembly = OutputAssembler(prompt, tokenizer)
        pieces = cast("Any", complete(prompt))
        async with aclosing(pieces):
            async for piece in pieces:
                delta = assembly.take(piece)
                if deltas and delta is not None:
                    emit(delta)
                if assembly.is_cut:
                    break
        return assembly.output()

    return RequestJob(serve, prompt.request.metadata)


def make_score_job(
    scoring: ScoringJob, score: Callable[[TokenSpan], Awaitable[TokenScore]]
) -> RequestJob:
    """Return a job that scores a prepared span and turns the score into an output."""

    async def serve(_: Emit) -> Any:
        return scoring.conclude(await score(scoring.span))

    return RequestJob(serve, scoring.metadata)


def make_answer_job(request: Q, answer: Callable[[Q], Awaitable[Any]]) -> RequestJob:
    """Return a job that has the runtime answer a request by itself; metadata are the request's."""

    async def serve(_: Emit) -> Any:
        return replace(await answer(request), metadata=request.metadata)

    return RequestJob(serve, request.metadata)


def collect_results(
    loop: RequestLoop,
    jobs: Sequence[RequestJob],
    limits: StreamLimits,
    requests: Sequence[int] | None = None,
) -> list[Any]:
    """Return results in the order of the jobs.

    Faults that the runtime finds in requests are raised for all of them, once every job is done.
    Any other error is raised at once, and what still runs is aborted. `requests` has the index of
    the request that each job is a part of, where that isn't the job's own.
    """
    parts: Sequence[int] = range(len(jobs)) if requests is None else requests
    stream = loop.open(limits)
    outputs: dict[int, Any] = {}
    refused: dict[int, EvalutionError] = {}
    try:
        for index, job in enumerate(jobs):
            stream.submit(index, job)
        stream.finish_input()
        for index, result in stream.results():
            if not isinstance(result, RequestFailure):
                outputs[index] = result
            elif isinstance(result.error, InvalidRequestError | UnsupportedRequestError):
                part: int = parts[cast("int", index)]
                refused.setdefault(part, result.error)
            else:
                raise result.error
    finally:
        stream.close()
    if refused:
        raise _refusal(refused, len(set(parts)))
    return [outputs[index] for index in range(len(jobs))]


def _refusal(
    refused: Mapping[int, EvalutionError], total: int
) -> InvalidRequestError | UnsupportedRequestError:
    """Return one error for requests that only the runtime could refuse; the others did run."""
    kinds = {type(error) for error in refused.values()}
    kind = kinds.pop() if len(kinds) == 1 else InvalidRequestError
    shown = "; ".join(f"[{index}] {error}" for index, error in sorted(refused.items())[:3])
    more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
    message = f"the runtime refused {len(refused)} of {total} requests: {shown}{more}"
    assert issubclass(kind, InvalidRequestError | UnsupportedRequestError)
    return kind(message, failures=refused)


K = TypeVar("K", bound=Hashable)

_CANARY, _CANARY_TOKENS = "Hello", 16
"""Asked of a runtime in doubt that has answered nothing yet; some refuse to generate less."""
_UNLIMITED = 1 << 31
"""Stands for an unknown window: then the runtime decides what is too long."""


class RequestSession(KitSession):
    """A session for a runtime that is asked for whole requests: a server, a hosted model.

    A subclass writes `_complete` and `_score`, and `_release` for closing: coroutines on the event
    loop of the session's one thread, `depth` of them at a time. Cancelling one aborts its request.
    Everything else of the contract is here: validation, order, streams, stop strings,
    threads and the closed state.

    With `encodes`, prompts are rendered and encoded here, by the rules of every engine, and the
    runtime gets ids. Without, text stays text: `_complete` gets prompts and messages as they are,
    and `_score_pair` and `_score_text` take the place of `_score`.

    Args:
        engine: the engine's public name, for messages.
        capabilities: what this session can do, at most what the engine declares.
        loop: where requests run; its depth is how many at once.
        most: the largest depth that the loop may get; None: its present one.
        tokenizer: text to ids and back, where callers may have it.
        max_model_len: how many tokens the model can be fed, where that is known.
        encodes: whether the runtime gets ids; needs a tokenizer.
        dtype: name of the arithmetic, which sets the self check's tolerance; None: unknown.
        lacking: why a capability of the engine is missing here, for messages.
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
            max_model_len=max_model_len,
            preferred_batch_size=most or loop.depth,
            dtype=dtype,
            lacking=lacking,
        )
        self._loop = loop
        self._most = most or loop.depth
        self._known_tokenizer = tokenizer
        self._encoder = (
            RequestEncoder(self._validator, tokenizer, max_model_len or _UNLIMITED)
            if encodes and tokenizer is not None
            else None
        )
        loop.set_canary(RequestJob(self._serve_canary, {}))

    # what an engine writes

    @abstractmethod
    def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        """Complete one prompt; the last piece has `finish`.

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

    def _self_check(self) -> CheckResult:
        """Compare scoring with itself and with generation; by default on ids, where they are taken.

        Runs once, before the first score.
        """
        if self._encoder is None or self._known_tokenizer is None:
            return CheckResult("not checkable", "the runtime encodes by itself")
        return self._compare_paths(self._known_tokenizer, self._known_window or _UNLIMITED)

    # the contract

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._known_tokenizer

    @property
    def max_model_len(self) -> int | None:
        return self._known_window

    @property
    def preferred_batch_size(self) -> int:
        return self._most

    @property
    def requests_in_flight(self) -> int:
        return self._loop.running

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        batch_size = self._begin(batch_size)
        prompts: list[RequestPrompt] = self._validator.check_all(self._prompt, requests)
        jobs = [self._completing(prompt, deltas=False) for prompt in prompts]
        return self._all(jobs, batch_size)

    def generate_continuous(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        batch_size = self._begin(batch_size)

        def job(request: GenerationRequest) -> RequestJob:
            return self._completing(self._prompt(request), deltas=False)

        return self._make_stream(requests, job, batch_size)

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        batch_size = self._begin(batch_size, streams=True)

        def job(request: GenerationRequest) -> RequestJob:
            return self._completing(replace(self._prompt(request), is_live=True), deltas=True)

        return self._make_stream(requests, job, batch_size)

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        batch_size = self._begin(batch_size)
        jobs = self._validator.check_all(self._scoring, requests)
        self._ensure_checked()
        return self._all(jobs, batch_size)

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; the input is consumed on another thread."""
        batch_size = self._begin(batch_size)
        return self._make_stream(requests, self._scoring, batch_size, scores=True)

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        batch_size = self._begin(batch_size)
        if self._encoder is None:
            jobs = self._validator.check_all(self._rolling, requests)
            self._ensure_checked()
            return self._all(jobs, batch_size)
        texts: list[list[TokenSpan]] = self._validator.check_all(self._encoder.rolling, requests)
        self._ensure_checked()
        jobs = [self._span_job(span) for windows in texts for span in windows]
        parts = [index for index, windows in enumerate(texts) for _ in windows]
        scores = collect_results(self._loop, jobs, self._limits(batch_size), parts)
        return make_rolling_outputs(requests, texts, iter(scores))

    def loglikelihood_rolling_continuous(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[K, RollingLoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; `batch_size` counts windows of texts."""
        batch_size = self._begin(batch_size)
        if self._encoder is None:
            return self._make_stream(requests, self._rolling, batch_size, scores=True)
        prepare = catch_failure(self._encoder.rolling)
        opening = self._opening(batch_size, scores=True)
        return RollingStream(requests, opening, prepare, self._span_job, self._engine)

    def gc(self) -> None:
        self._loop.call(self._release_caches)

    def close(self) -> None:
        self._loop.close(self._release)

    # within

    def _ensure_open(self) -> None:
        self._loop.ensure_open()

    @property
    def _batching(self) -> str:
        return "continuous"

    def _prompt(self, request: GenerationRequest) -> RequestPrompt:
        if self._encoder is None:
            self._validator.generation(request)
            text = request.rendered_prompt
            if text is None and request.messages is None:
                text = request.prompt
            ids = request.input_ids
            return RequestPrompt(request, None if ids is not None else text, ids)
        job = self._encoder.generation(request)
        ids, stop_ids = job.prompt.token_ids, job.prompt.stop_ids
        return RequestPrompt(request, job.prompt_text, ids, job.truncated_tokens, stop_ids)

    def _completing(self, prompt: RequestPrompt, *, deltas: bool) -> RequestJob:
        return make_completion_job(prompt, self._known_tokenizer, self._complete, deltas=deltas)

    def _scoring(self, request: LoglikelihoodRequest) -> RequestJob:
        if self._encoder is None:
            self._validator.loglikelihood(request)
            return make_answer_job(request, self._score_pair)
        return make_score_job(self._encoder.loglikelihood(request), self._score)

    def _rolling(self, request: RollingLoglikelihoodRequest) -> RequestJob:
        self._validator.rolling(request)
        return make_answer_job(request, self._score_text)

    def _make_stream(
        self,
        requests: Iterable[tuple[K, Any]],
        job: Callable[[Any], RequestJob],
        batch_size: int | None,
        *,
        scores: bool = False,
    ) -> Iterator[tuple[K, Any]]:
        opening = self._opening(batch_size, scores=scores)
        return PulledStream(requests, opening, catch_failure(job), self._engine)

    def _opening(self, batch_size: int | None, *, scores: bool) -> Callable[[], RequestStream]:
        def opening() -> RequestStream:
            if scores:
                self._ensure_checked()
            return self._loop.open(self._limits(batch_size))

        return opening

    def _limits(self, batch_size: int | None) -> StreamLimits:
        return StreamLimits(running=batch_size or self._most, ahead=READ_AHEAD)

    async def _serve_canary(self, emit: Emit) -> object:
        """Serve a request that any live runtime can serve, for want of one that it has served."""
        if Capability.GENERATE not in self._capabilities:
            pair = LoglikelihoodRequest(_CANARY, " " + _CANARY)
            job = await asyncio.to_thread(self._scoring, pair)
            return await job.serve(emit)
        request = GenerationRequest(_CANARY, max_new_tokens=_CANARY_TOKENS)
        if self._encoder is None and Capability.CHAT in self._capabilities:
            request = replace(request, messages=[{"role": "user", "content": _CANARY}])
        prompt = await asyncio.to_thread(self._prompt, request)
        return await self._completing(prompt, deltas=False).serve(emit)

    def _all(self, jobs: Sequence[RequestJob], batch_size: int | None) -> list[Any]:
        return collect_results(self._loop, jobs, self._limits(batch_size))

    def _score_spans(
        self, spans: Sequence[TokenSpan], batch_size: int | None = None
    ) -> list[TokenScore]:
        return self._all([self._span_job(span) for span in spans], batch_size)

    def _span_job(self, span: TokenSpan) -> RequestJob:
        return make_score_job(make_span_job(span), self._score)

    def _complete_ids(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        request = GenerationRequest(input_ids=list(token_ids), max_new_tokens=length, logprobs=2)
        prompt = RequestPrompt(request, "", list(token_ids), 0)
        (output,) = self._all([self._completing(prompt, deltas=False)], None)
        return output
