"""The contract on top of a runtime that batches, and ends completions, by itself."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from evalution_core import (
    BaseInferenceSession,
    Capability,
    CheckResult,
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    StreamEvent,
    UnsupportedRequestError,
)
from evalution_enginekit.admission import Admission, check_batch_size
from evalution_enginekit.pieces import CompletionPiece, RequestPrompt
from evalution_enginekit.preparation import OWN_ERRORS, PREPARING, Preparation
from evalution_enginekit.pulled_stream import PulledStream
from evalution_enginekit.request_jobs import answer_job, completion_job, results_in_order, score_job
from evalution_enginekit.request_loop import RequestJob, RequestLoop, RequestStream
from evalution_enginekit.runtime import runtime_errors
from evalution_enginekit.scoring import ScoringJob, rolling_output
from evalution_enginekit.self_check import self_check
from evalution_enginekit.streams import StreamLimits
from evalution_enginekit.tokenizer import Tokenizer
from evalution_enginekit.tokens import TokenScore, TokenSpan

K = TypeVar("K", bound=Hashable)

_READ_AHEAD = 2
"""Requests that wait prepared, so that a free slot is refilled at once."""
_UNLIMITED = 1 << 31
"""Stands for a window that nobody told: then the runtime decides what is too long."""


class RequestSession(BaseInferenceSession):
    """A session for a runtime that is asked for whole requests: a server, a hosted model.

    A subclass writes `_complete` and `_score`, and `_release` for closing: coroutines on the event
    loop of the session's one thread, `depth` of them at a time. Cancelling one aborts its request.
    Everything else of the contract is here: validation, order, streams, refill, stop strings,
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

    tokenizer: Tokenizer
    """Absent where the session has none, so that `HasTokenizer` holds exactly where it does."""
    max_model_len: int
    """Absent where nobody told it."""

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
        self._engine = engine
        self._capabilities = capabilities
        self._loop = loop
        self._most = most or loop.depth
        self._dtype = dtype
        self._known_tokenizer = tokenizer
        self._known_window = max_model_len
        if tokenizer is not None:
            self.tokenizer = tokenizer
        if max_model_len is not None:
            self.max_model_len = max_model_len
        self._admission = Admission(engine, capabilities, lacking)
        self._preparation = (
            Preparation(self._admission, tokenizer, max_model_len or _UNLIMITED)
            if encodes and tokenizer is not None
            else None
        )
        self._check_lock = threading.Lock()
        self._check_result: CheckResult | None = None

    # what an engine writes

    @abstractmethod
    def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionPiece]:
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

    def _describe(self) -> dict[str, Any]:
        """What `describe_execution` adds to, or puts in place of, what the kit knows."""
        return {}

    def _self_check(self) -> CheckResult:
        """Compare scoring with itself and with generation; by default on ids, where they are taken.

        Runs once, before the first score.
        """
        if self._preparation is None or self._known_tokenizer is None:
            return CheckResult("not checkable", "the runtime encodes by itself")
        compares = {Capability.GENERATE, Capability.LOGPROBS} <= self._capabilities
        return self_check(
            self._known_tokenizer,
            complete=self._complete_ids if compares else None,
            score=self._score_spans,
            max_model_len=self._known_window or _UNLIMITED,
            dtype=self._dtype or "unknown",
        )

    # the contract

    @property
    def preferred_batch_size(self) -> int:
        return self._most

    @property
    def requests_in_flight(self) -> int:
        return self._loop.running

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        self._begin(batch_size)
        prompts: list[RequestPrompt] = self._admission.check_all(self._prompt, requests)
        jobs = [self._completing(prompt, tells=False) for prompt in prompts]
        return self._all(jobs, batch_size)

    def generate_continuous(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        self._begin(batch_size)

        def job(request: GenerationRequest) -> RequestJob:
            return self._completing(self._prompt(request), tells=False)

        return self._completed(requests, job, batch_size)

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        self._begin(batch_size)
        if Capability.STREAM not in self._capabilities:
            raise UnsupportedRequestError(f"engine {self._engine} can't stream")

        def job(request: GenerationRequest) -> RequestJob:
            return self._completing(replace(self._prompt(request), is_live=True), tells=True)

        return self._completed(requests, job, batch_size)

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        self._begin(batch_size)
        jobs = self._admission.check_all(self._scoring, requests)
        self._ensure_checked()
        return self._all(jobs, batch_size)

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; the input is consumed on another thread."""
        self._begin(batch_size)
        return self._scored(requests, batch_size)

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        self._begin(batch_size)
        if self._preparation is None:
            jobs = self._admission.check_all(self._rolling, requests)
            self._ensure_checked()
            return self._all(jobs, batch_size)
        texts: list[list[TokenSpan]] = self._admission.check_all(
            self._preparation.rolling, requests
        )
        self._ensure_checked()
        jobs = [self._span_job(span) for windows in texts for span in windows]
        parts = [index for index, windows in enumerate(texts) for _ in windows]
        scores = iter(results_in_order(self._loop, jobs, self._limits(batch_size), parts))
        return [
            rolling_output(request, windows, [next(scores) for _ in windows])
            for request, windows in zip(requests, texts, strict=True)
        ]

    def check(self) -> CheckResult:
        self._loop.ensure_open()
        with self._check_lock:
            if not {Capability.LOGLIKELIHOOD, Capability.ROLLING} & self._capabilities:
                return CheckResult("not checkable", f"engine {self._engine} doesn't score")
            if self._check_result is None:
                self._check_result = self._self_check()
            return self._check_result

    def describe_execution(self) -> dict[str, Any]:
        check = self._check_result
        return {
            "backend": self._engine,
            "device": None,
            "dtype": self._dtype,
            "batching": "continuous",
            "attention": None,
            "max_model_len": self._known_window,
            "fallback": None,
            "self_check": check.outcome if check else "not run",
            **self._describe(),
        }

    def gc(self) -> None:
        self._loop.call(self._release_caches)

    def close(self) -> None:
        self._loop.close(self._release)

    # within

    def _begin(self, batch_size: int | None) -> None:
        self._loop.ensure_open()
        check_batch_size(batch_size)

    def _prompt(self, request: GenerationRequest) -> RequestPrompt:
        if self._preparation is None:
            self._admission.generation(request)
            text = request.rendered_prompt
            if text is None and request.messages is None:
                text = request.prompt
            ids = request.input_ids
            return RequestPrompt(request, None if ids is not None else text, ids)
        job = self._preparation.generation(request)
        return RequestPrompt(
            request,
            job.prompt_text,
            job.prompt.token_ids,
            job.truncated_tokens,
            job.prompt.stop_ids,
        )

    def _completing(self, prompt: RequestPrompt, *, tells: bool) -> RequestJob:
        return completion_job(prompt, self._known_tokenizer, self._complete, tells=tells)

    def _scoring(self, request: LoglikelihoodRequest) -> RequestJob:
        if self._preparation is None:
            self._admission.loglikelihood(request)
            return answer_job(request, self._score_pair)
        return score_job(self._preparation.loglikelihood(request), self._score)

    def _rolling(self, request: RollingLoglikelihoodRequest) -> RequestJob:
        self._admission.rolling(request)
        return answer_job(request, self._score_text)

    def _scored(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], batch_size: int | None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        def opening() -> RequestStream:
            self._ensure_checked()
            return self._loop.open(self._limits(batch_size))

        return self._pulled(requests, self._scoring, opening)

    def _completed(
        self,
        requests: Iterable[tuple[K, GenerationRequest]],
        job: Callable[[GenerationRequest], RequestJob],
        batch_size: int | None,
    ) -> Iterator[tuple[K, Any]]:
        return self._pulled(requests, job, lambda: self._loop.open(self._limits(batch_size)))

    def _pulled(
        self,
        requests: Iterable[tuple[K, Any]],
        job: Callable[[Any], RequestJob],
        opening: Callable[[], RequestStream],
    ) -> Iterator[tuple[K, Any]]:
        def prepared(request: Any) -> RequestJob | RequestFailure:
            try:
                with runtime_errors(PREPARING):
                    return job(request)
            except OWN_ERRORS as error:
                return RequestFailure(error, getattr(request, "metadata", {}))

        return PulledStream(requests, opening, prepared, self._engine)

    def _limits(self, batch_size: int | None) -> StreamLimits:
        return StreamLimits(running=batch_size or self._most, ahead=_READ_AHEAD)

    def _all(self, jobs: Sequence[RequestJob], batch_size: int | None) -> list[Any]:
        return results_in_order(self._loop, jobs, self._limits(batch_size))

    def _score_spans(self, spans: Sequence[TokenSpan]) -> list[TokenScore]:
        return self._all([self._span_job(span) for span in spans], None)

    def _span_job(self, span: TokenSpan) -> RequestJob:
        return score_job(ScoringJob(span, _itself, {}), self._score)

    def _complete_ids(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        """Greedy continuation of ids with its log-probabilities."""
        request = GenerationRequest(input_ids=list(token_ids), max_new_tokens=length, logprobs=2)
        prompt = RequestPrompt(request, "", list(token_ids), 0)
        (output,) = self._all([self._completing(prompt, tells=False)], None)
        return output

    def _ensure_checked(self) -> None:
        """Raise `EngineRuntimeError` if the self check failed: such a session must not score."""
        result = self.check()
        if result.outcome == "failed":
            raise EngineRuntimeError(
                f"engine {self._engine} failed its self check and refuses to score: {result.detail}"
            )


def _itself(score: TokenScore) -> TokenScore:
    return score
