"""Session bases: what all sessions share, and `TokenSession` for runtimes on token ids."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

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
    SessionInfo,
    StreamEvent,
    UnsupportedRequestError,
)
from evalution_core.encoding import TokenSpan
from evalution_enginekit.generation import GenerationLoop, GenerationStream, PromptQueue, TokenEvent
from evalution_enginekit.planning import TokenScore, order_by_prefix
from evalution_enginekit.request_encoding import (
    RequestEncoder,
    RequestValidator,
    catch_failure,
    parse_batch_size,
)
from evalution_enginekit.runtime_thread import RuntimeThread
from evalution_enginekit.scoring import (
    RollingStream,
    ScoringJob,
    ScoringLoop,
    ScoringStream,
    SpanScores,
    rolling_output,
)
from evalution_enginekit.self_check import self_check
from evalution_enginekit.streams import PulledStream, StreamLimits
from evalution_enginekit.tokenizer import Tokenizer

_log = logging.getLogger("evalution.session")

READ_AHEAD = 2
"""Requests that wait prepared, so that a free slot is filled at once."""
_BATCH_SIZE = 16


class KitSession(BaseInferenceSession):
    """The part of a session that doesn't depend on how its runtime is called.

    Args:
        engine: the engine's public name, for messages.
        capabilities: what this session can do.
        max_model_len: how many tokens the model can be fed, where that is known.
        preferred_batch_size: requests in flight when a call leaves it to the session.
        dtype: name of the arithmetic; None: unknown.
        lacking: why a capability of the engine is missing here, for messages.
    """

    def __init__(
        self,
        *,
        engine: str,
        capabilities: frozenset[Capability],
        max_model_len: int | None,
        preferred_batch_size: int,
        dtype: str | None,
        lacking: Mapping[Capability, str] | None = None,
    ):
        self._engine = engine
        self._capabilities = capabilities
        self._known_window = max_model_len
        self._info = SessionInfo(capabilities, max_model_len, preferred_batch_size)
        self._dtype = dtype
        self._validator = RequestValidator(engine, capabilities, lacking)
        self._is_described = False
        self._check_lock = threading.Lock()
        self._check_result: CheckResult | None = None

    @abstractmethod
    def _ensure_open(self) -> None:
        """Raise `SessionClosedError` once the session is closed."""

    @abstractmethod
    def _self_check(self) -> CheckResult:
        """Compare the scoring path with itself and others; runs once, before the first score."""

    @abstractmethod
    def _score_spans(
        self, spans: Sequence[TokenSpan], batch_size: int | None = None
    ) -> list[TokenScore]:
        """Scores in the order of `spans`; the first error of a span is raised."""

    @abstractmethod
    def _complete_ids(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        """Greedy continuation of ids with its log-probabilities, through the next-token path."""

    def _describe(self) -> dict[str, Any]:
        """Facts that `describe_execution` adds to, or puts in place of, those of the kit."""
        return {}

    @property
    def info(self) -> SessionInfo:
        return self._info

    def check(self) -> CheckResult:
        self._ensure_open()
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
            "batching": self._batching,
            "attention": None,
            "max_model_len": self._known_window,
            "fallback": None,
            "self_check": check.outcome if check else "not run",
            **self._describe(),
        }

    @property
    def _batching(self) -> str:
        return (
            "continuous"
            if Capability.CONTINUOUS_BATCHING in self._capabilities
            else "fixed batches"
        )

    def _begin(self, batch_size: int | None, *, streams: bool = False) -> int | None:
        """Check that a call may begin; return its cap on what runs at once."""
        self._ensure_open()
        cap = parse_batch_size(batch_size)
        if streams and Capability.STREAM not in self._capabilities:
            raise UnsupportedRequestError(f"engine {self._engine} can't stream")
        if not self._is_described and _log.isEnabledFor(logging.INFO):
            self._is_described = True
            _log.info("%s is ready: %s", self._engine, self.describe_execution())
        return cap

    def _compare_paths(self, tokenizer: Tokenizer, max_model_len: int) -> CheckResult:
        """Run the self check on ids, against the next-token path if it gives log-probabilities."""
        compares = {Capability.GENERATE, Capability.LOGPROBS} <= self._capabilities
        return self_check(
            tokenizer,
            complete=self._complete_ids if compares else None,
            score=self._score_spans,
            max_model_len=max_model_len,
            dtype=self._dtype or "unknown",
        )

    def _ensure_checked(self) -> None:
        """Raise `EngineRuntimeError` if the self check failed: such a session must not score."""
        result = self.check()
        if result.outcome == "failed":
            raise EngineRuntimeError(
                f"engine {self._engine} failed its self check and refuses to score: {result.detail}"
            )


def make_span_job(span: TokenSpan) -> ScoringJob:
    """Return a job that gives the score of a span as it is."""
    return ScoringJob(span, _itself, {})


def make_rolling_outputs(
    requests: Sequence[RollingLoglikelihoodRequest],
    texts: Sequence[Sequence[TokenSpan]],
    scores: Iterator[TokenScore],
) -> list[RollingLoglikelihoodOutput]:
    """Return the outputs of texts from their windows and the scores of all windows in order."""
    return [
        rolling_output(request, windows, [next(scores) for _ in windows])
        for request, windows in zip(requests, texts, strict=True)
    ]


def _itself(score: TokenScore) -> TokenScore:
    return score


K = TypeVar("K", bound=Hashable)


class TokenSession(KitSession):
    """A session for a runtime that takes and gives token ids.

    A subclass writes `_generate_tokens` and `_score_tokens`, and `_release` for closing; all three
    run on the session's one runtime thread. Everything else of the contract is here: rendering,
    tokenizing, validation, stop strings, windows, order, streams, threads and the closed state.

    Args:
        engine: the engine's public name, for messages.
        capabilities: what this session can do, at most what the engine declares.
        tokenizer: text to ids and back.
        max_model_len: how many tokens the model can be fed.
        batch_size: requests in flight when a call leaves it to the session; None or "auto": 16.
        scoring_window: spans in one call of `_score_tokens`, unless a call caps it lower.
        dtype: name of the arithmetic (`float32`, …), which sets the self check's tolerance.
        model_vocabulary: ids that the model has an embedding for; None: as the tokenizer.
    """

    def __init__(
        self,
        *,
        engine: str,
        capabilities: frozenset[Capability],
        tokenizer: Tokenizer,
        max_model_len: int,
        batch_size: int | Literal["auto"] | None = None,
        scoring_window: int = 64,
        dtype: str = "float32",
        model_vocabulary: int | None = None,
    ):
        super().__init__(
            engine=engine,
            capabilities=capabilities,
            max_model_len=max_model_len,
            preferred_batch_size=parse_batch_size(batch_size) or _BATCH_SIZE,
            dtype=dtype,
        )
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._batch_size = parse_batch_size(batch_size) or _BATCH_SIZE
        self._scoring_window = scoring_window
        self._encoder = RequestEncoder(self._validator, tokenizer, max_model_len, model_vocabulary)
        self._thread = RuntimeThread(f"the {engine} session")
        self._generation = GenerationLoop(
            self._thread,
            tokenizer,
            self._generate_tokens,
            continuous=Capability.CONTINUOUS_BATCHING in capabilities,
        )
        self._scoring = ScoringLoop(self._thread, self._score_tokens)
        self._thread.add(self._generation)
        self._thread.add(self._scoring)

    # what an engine writes

    @abstractmethod
    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        """Run prompts from `feed`, yielding the events of each runtime step; return when idle.

        Before each step drop what `feed.cancelled()` names and take what fits. A prompt ends by
        itself at a stop id or its limit. Called again when there are prompts once more.
        """
        ...

    @abstractmethod
    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[SpanScores]:
        """Yield the scores of each runtime step, in the order of `spans`, until all have theirs.

        In place of a score, an error is that span's alone. Spans that share a prefix are next to
        each other.
        """
        ...

    def _release(self) -> None:
        """Free the runtime; called once, when nothing runs any more."""

    def _release_caches(self) -> None:
        """Free what can be computed again; may come between two steps of a generation."""

    # the contract

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def preferred_batch_size(self) -> int:
        return self._batch_size

    @property
    def requests_in_flight(self) -> int:
        return self._generation.running

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        batch_size = self._begin(batch_size)
        jobs = self._validator.check_all(self._encoder.generation, requests)
        stream = self._generation.open(self._generation_limits(batch_size))
        outputs: dict[int, GenerationOutput] = {}
        try:
            for index, job in enumerate(jobs):
                stream.submit(index, job)
            stream.finish_input()
            for index, result in stream.results():
                if isinstance(result, RequestFailure):
                    raise result.error
                assert isinstance(result, GenerationOutput)
                outputs[index] = result
        finally:
            stream.close()
        return [outputs[index] for index in range(len(jobs))]

    def generate_continuous(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        batch_size = self._begin(batch_size)
        return self._generated(requests, batch_size, deltas=False)  # pyright: ignore[reportReturnType]

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        batch_size = self._begin(batch_size, streams=True)
        return self._generated(requests, batch_size, deltas=True)

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        batch_size = self._begin(batch_size)
        jobs: list[ScoringJob] = self._validator.check_all(self._encoder.loglikelihood, requests)
        self._ensure_checked()
        scores = self._score_spans([job.span for job in jobs], batch_size)
        return [job.conclude(score) for job, score in zip(jobs, scores, strict=True)]

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order, planned over windows of `batch_size` or `scoring_window`.

        The input is consumed on another thread, at most two windows ahead.
        """
        batch_size = self._begin(batch_size)
        return self._scored(requests, batch_size)

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        batch_size = self._begin(batch_size)
        texts: list[list[TokenSpan]] = self._validator.check_all(self._encoder.rolling, requests)
        self._ensure_checked()
        spans = [span for windows in texts for span in windows]
        return make_rolling_outputs(requests, texts, iter(self._score_spans(spans, batch_size)))

    def loglikelihood_rolling_continuous(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[K, RollingLoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; `batch_size` counts windows of texts."""
        batch_size = self._begin(batch_size)
        prepare = catch_failure(self._encoder.rolling)
        return RollingStream(
            requests, self._open_scoring(batch_size), prepare, make_span_job, self._engine
        )

    def gc(self) -> None:
        self._thread.ensure_open()
        self._thread.call(self._release_caches)

    def close(self) -> None:
        self._thread.close(self._release)

    # within

    def _ensure_open(self) -> None:
        self._thread.ensure_open()

    def _self_check(self) -> CheckResult:
        return self._compare_paths(self._tokenizer, self._max_model_len)

    def _generation_limits(self, batch_size: int | None) -> StreamLimits:
        cap = batch_size or self._batch_size
        ahead = READ_AHEAD if Capability.CONTINUOUS_BATCHING in self._capabilities else cap
        return StreamLimits(running=cap, ahead=ahead)

    def _generated(
        self,
        requests: Iterable[tuple[K, GenerationRequest]],
        batch_size: int | None,
        *,
        deltas: bool,
    ) -> Iterator[tuple[K, StreamEvent]]:
        def opening() -> GenerationStream:
            return self._generation.open(self._generation_limits(batch_size), deltas=deltas)

        prepare = catch_failure(self._encoder.generation)
        return PulledStream(requests, opening, prepare, self._engine)

    def _scored(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], batch_size: int | None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        prepare = catch_failure(self._encoder.loglikelihood)
        return PulledStream(  # pyright: ignore[reportReturnType]
            requests, self._open_scoring(batch_size), prepare, self._engine
        )

    def _open_scoring(self, batch_size: int | None) -> Callable[[], ScoringStream]:
        window = min(batch_size or self._scoring_window, self._scoring_window)

        def opening() -> ScoringStream:
            self._ensure_checked()
            return self._scoring.open(StreamLimits(running=window, ahead=window))

        return opening

    def _score_spans(
        self, spans: Sequence[TokenSpan], batch_size: int | None = None
    ) -> list[TokenScore]:
        window = min(batch_size or self._scoring_window, self._scoring_window)
        stream = self._scoring.open(StreamLimits(running=window, ahead=window))
        scores: dict[int, TokenScore] = {}
        try:
            for index in order_by_prefix(spans):
                stream.submit(index, make_span_job(spans[index]))
            stream.finish_input()
            for index, score in stream.results():
                if isinstance(score, RequestFailure):
                    raise score.error
                assert isinstance(score, TokenScore)
                scores[index] = score
        finally:
            stream.close()
        return [scores[index] for index in range(len(spans))]

    def _complete_ids(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        stream = self._generation.open(StreamLimits(running=1, ahead=0))
        try:
            stream.submit(0, self._encoder.probe(token_ids, length))
            stream.finish_input()
            for _, result in stream.results():
                if isinstance(result, RequestFailure):
                    raise result.error
                assert isinstance(result, GenerationOutput)
                return result
        finally:
            stream.close()
        raise EngineRuntimeError("the next-token path gave no result")
