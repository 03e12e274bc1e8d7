"""Session bases: the contract on streams of jobs, and `TokenSession` for runtimes on token ids."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeVar

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
    RequestStream,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    SessionInfo,
    StreamEvent,
    UnsupportedRequestError,
)
from evalution_core.encoding import TokenSpan
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_enginekit.distributions import DistributionReader, Rows, score_spans
from evalution_enginekit.generation import (
    GenerationJob,
    GenerationLoop,
    GenerationStream,
    PromptQueue,
    TokenEvent,
)
from evalution_enginekit.planning import order_by_prefix
from evalution_enginekit.request_encoding import (
    RequestEncoder,
    RequestValidator,
    catch_failure,
    parse_batch_size,
)
from evalution_enginekit.runtime_thread import RuntimeThread, runtime_errors
from evalution_enginekit.scoring import (
    RollingStream,
    ScoringJob,
    ScoringLoop,
    ScoringStream,
    SpanScores,
    rolling_output,
)
from evalution_enginekit.self_check import self_check
from evalution_enginekit.streams import (
    PulledStream,
    ResultStream,
    StreamLimits,
    collect_results,
)
from evalution_enginekit.tokenizer import Tokenizer

READ_AHEAD = 2
"""Requests that wait prepared, so that a free slot is filled at once."""
_BATCH_SIZE = 16
_REQUESTS_OF_ROWS = 8
"""Requests for distributions that an engine is given at once."""
_UNLIMITED = 1 << 31
"""Stands for an unknown window: then the runtime decides what is too long."""

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")
G = TypeVar("G")
S = TypeVar("S")


class KitSession(BaseInferenceSession, Generic[G, S]):
    """The contract on streams of jobs: `G` to generate, `S` to score.

    Args:
        engine: the engine's public name, for messages.
        capabilities: what this session can do.
        tokenizer: text to ids and back, where callers may have it.
        max_model_len: how many tokens the model can be fed, where that is known.
        batch_size: requests in flight when a call leaves it to the session.
        dtype: name of the arithmetic, which sets the self check's tolerance; None: unknown.
        encodes: whether requests become ids here; needs a tokenizer.
        lacking: why a capability of the engine is missing here, for messages.
        model_vocabulary: ids that the model has an embedding for; None: as the tokenizer.
    """

    def __init__(
        self,
        *,
        engine: str,
        capabilities: frozenset[Capability],
        tokenizer: Tokenizer | None,
        max_model_len: int | None,
        batch_size: int,
        dtype: str | None,
        encodes: bool = True,
        lacking: Mapping[Capability, str] | None = None,
        model_vocabulary: int | None = None,
    ):
        self._engine = engine
        self._capabilities = capabilities
        self._tokenizer = tokenizer
        notice = None if tokenizer is None else tokenizer.notice
        self._notices = [] if notice is None else [notice]
        self._window = max_model_len or _UNLIMITED
        self._batch_size = batch_size
        self._info = SessionInfo(capabilities, max_model_len, batch_size)
        self._dtype = dtype
        self._validator = RequestValidator(engine, capabilities, lacking)
        self._encoder = (
            RequestEncoder(self._validator, tokenizer, self._window, model_vocabulary)
            if encodes and tokenizer is not None
            else None
        )
        self._check_lock = threading.Lock()
        self._check_result: CheckResult | None = None

    # what a base for one kind of runtime adds

    @abstractmethod
    def _ensure_open(self) -> None:
        """Raise `SessionClosedError` once the session is closed."""

    @abstractmethod
    def _completion_maker(self, *, deltas: bool = False) -> Callable[[GenerationRequest], G]:
        """Return the function that checks and encodes a request; `deltas`: its text as it grows."""

    @abstractmethod
    def _make_probe_job(self, token_ids: Sequence[int], length: int) -> G:
        """Return a greedy completion of ids with log-probabilities, for the self check."""

    @abstractmethod
    def _score_maker(self) -> Callable[[LoglikelihoodRequest], S]:
        """Return the function that checks and encodes a request."""

    @abstractmethod
    def _make_span_job(self, span: TokenSpan) -> S:
        """Return a job whose result is the `TokenScore` of a span."""

    @abstractmethod
    def _open_generation(self, batch_size: int | None) -> ResultStream[Any, G, Any]:
        """Open a stream of jobs to generate."""

    @abstractmethod
    def _open_scoring(self, batch_size: int | None) -> ResultStream[Any, S, Any]:
        """Open a stream of jobs to score."""

    def _collect_scores(
        self, jobs: Sequence[S], batch_size: int | None, owners: Sequence[int] | None = None
    ) -> list[Any]:
        """Return the results of jobs to score, as `collect_results`."""
        return collect_results(self._open_scoring(batch_size), jobs, owners)

    def _self_check(self) -> CheckResult:
        """Compare scoring with itself and with generation; by default on ids, where they are taken.

        Runs once, before the first score.
        """
        if self._encoder is None or self._tokenizer is None:
            return CheckResult("not checkable", "the runtime encodes by itself")
        compares = {Capability.GENERATE, Capability.LOGPROBS} <= self._capabilities
        return self_check(
            self._tokenizer,
            complete=self._complete_ids if compares else None,
            score=lambda spans: self._collect_scores([*map(self._make_span_job, spans)], None),
            max_model_len=self._window,
            dtype=self._dtype or "unknown",
        )

    def _describe(self) -> dict[str, Any]:
        """Return facts that `describe_execution` adds to, or puts in place of, those of the kit."""
        return {}

    # the contract

    @property
    def info(self) -> SessionInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer

    @property
    def preferred_batch_size(self) -> int:
        """Requests in flight when a call leaves it to the session, as in `info`."""
        return self._batch_size

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        batch_size = self._begin(batch_size)
        jobs = self._validator.check_all(self._completion_maker(), requests)
        return collect_results(self._open_generation(batch_size), jobs)

    def generate_continuous(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        opening = partial(self._open_generation, self._begin(batch_size))
        return self._pull(requests, self._completion_maker(), opening)

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        batch_size = self._begin(batch_size)
        if Capability.STREAM not in self._capabilities:
            raise UnsupportedRequestError(f"engine {self._engine} can't stream")
        opening = partial(self._open_generation, batch_size)
        return self._pull(requests, self._completion_maker(deltas=True), opening)

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        batch_size = self._begin(batch_size)
        jobs = self._validator.check_all(self._score_maker(), requests)
        self._ensure_checked()
        return self._collect_scores(jobs, batch_size)

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; the input is consumed on another thread."""
        opening = partial(self._open_checked, self._begin(batch_size))
        return self._pull(requests, self._score_maker(), opening)

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        batch_size = self._begin(batch_size)
        texts = self._validator.check_all(self._encode_windows, requests)
        self._ensure_checked()
        jobs = [self._make_span_job(span) for windows in texts for span in windows]
        owners = [index for index, windows in enumerate(texts) for _ in windows]
        scores = iter(self._collect_scores(jobs, batch_size, owners))
        return [
            rolling_output(request, windows, [next(scores) for _ in windows])
            for request, windows in zip(requests, texts, strict=True)
        ]

    def loglikelihood_rolling_continuous(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[K, RollingLoglikelihoodOutput | RequestFailure]]:
        """Scores in completion order; `batch_size` counts windows of texts."""
        opening = partial(self._open_checked, self._begin(batch_size))
        prepare = catch_failure(self._encode_windows)
        return RollingStream(requests, opening, prepare, self._make_span_job, self._engine)

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
        is_continuous = Capability.CONTINUOUS_BATCHING in self._capabilities
        return {
            "backend": self._engine,
            "device": None,
            "dtype": self._dtype,
            "batching": "continuous" if is_continuous else "fixed batches",
            "attention": None,
            "max_model_len": self._info.max_model_len,
            "eos_ids": None if self._tokenizer is None else sorted(self._tokenizer.eos_ids),
            "tokenizer": None if self._tokenizer is None else self._tokenizer.source,
            "notices": list(self._notices),
            "fallback": None,
            "self_check": check.outcome if check else "not run",
            **self._describe(),
        }

    # within

    def _begin(self, batch_size: int | None) -> int | None:
        """Check that a call may begin; return its cap on what runs at once."""
        self._ensure_open()
        return parse_batch_size(batch_size)

    def _ensure_checked(self) -> None:
        """Raise `EngineRuntimeError` if the self check failed: such a session must not score."""
        result = self.check()
        if result.outcome == "failed":
            raise EngineRuntimeError(
                f"engine {self._engine} failed its self check and refuses to score: {result.detail}"
            )

    def _open_checked(self, batch_size: int | None) -> ResultStream[Any, S, Any]:
        self._ensure_checked()
        return self._open_scoring(batch_size)

    def _encode_windows(self, request: RollingLoglikelihoodRequest) -> list[TokenSpan]:
        assert self._encoder is not None
        return self._encoder.encode_rolling(request)

    def _complete_ids(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        job = self._make_probe_job(token_ids, length)
        return collect_results(self._open_generation(1), [job])[0]

    def _pull(
        self,
        requests: Iterable[tuple[K, Q]],
        make_job: Callable[[Q], Any],
        opening: Callable[[], ResultStream[Any, Any, Any]],
    ) -> RequestStream[K, Any]:
        return PulledStream(requests, opening, catch_failure(make_job), self._engine)


class TokenSession(KitSession[GenerationJob, ScoringJob]):
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

    _encoder: RequestEncoder
    _tokenizer: Tokenizer

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
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=parse_batch_size(batch_size) or _BATCH_SIZE,
            dtype=dtype,
            model_vocabulary=model_vocabulary,
        )
        self._is_continuous = Capability.CONTINUOUS_BATCHING in capabilities
        self._scoring_window = scoring_window
        self._thread = RuntimeThread(f"the {engine} session")
        self._generation = GenerationLoop(
            self._thread, tokenizer, self._generate_tokens, continuous=self._is_continuous
        )
        self._scoring = ScoringLoop(self._thread, self._score_spans)
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
        each other. `ScoringLoop.step` calls this, on the session's runtime thread.
        """
        ...

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        """Yield the rows of all scored positions, span after span, in blocks of any length.

        A row has the log-probabilities of the whole vocabulary, as `log_softmax_rows` makes it of
        logits; `count_block_rows` says how many to hold at once. Spans that come one after the
        other often share a prefix. For an engine that declares `distributions`; it may be
        suspended between two blocks while the thread does other work, or closed.
        """
        raise EngineRuntimeError(
            f"engine {self._engine} declares distributions and doesn't write _compute_rows"
        )

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
        """The tokens that the model can be fed, as in `info`."""
        return self._window

    @property
    def requests_in_flight(self) -> int:
        return self._generation.running

    def gc(self) -> None:
        self._thread.ensure_open()
        with runtime_errors("freeing caches"):
            self._thread.call(self._release_caches)

    def close(self) -> None:
        self._thread.close(self._release)

    def distributions(
        self, requests: Iterable[tuple[K, DistributionRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, DistributionRows | RequestFailure]]:
        at_once = self._begin(batch_size) or _REQUESTS_OF_ROWS
        if Capability.DISTRIBUTIONS not in self._capabilities:
            raise UnsupportedRequestError(f"engine {self._engine} can't give distributions")
        self._ensure_checked()
        reader = DistributionReader(self._thread, self._compute_rows)
        return reader.read(requests, catch_failure(self._encoder.encode_distribution), at_once)

    # within

    def _ensure_open(self) -> None:
        self._thread.ensure_open()

    def _score_spans(self, spans: Sequence[TokenSpan]) -> Iterator[SpanScores]:
        """Score spans; by rows where the engine has them and the most likely tokens are wanted."""
        if Capability.DISTRIBUTIONS in self._capabilities:
            return score_spans(self._score_tokens, self._compute_rows, spans)
        return self._score_tokens(spans)

    def _completion_maker(
        self, *, deltas: bool = False
    ) -> Callable[[GenerationRequest], GenerationJob]:
        return partial(self._encoder.encode_generation, is_live=deltas)

    def _make_probe_job(self, token_ids: Sequence[int], length: int) -> GenerationJob:
        return self._encoder.make_probe(token_ids, length)

    def _score_maker(self) -> Callable[[LoglikelihoodRequest], ScoringJob]:
        return self._encoder.encode_loglikelihood

    def _make_span_job(self, span: TokenSpan) -> ScoringJob:
        return ScoringJob(span, lambda score: score, {})

    def _open_generation(self, batch_size: int | None) -> GenerationStream:
        cap = batch_size or self._batch_size
        limits = StreamLimits(running=cap, ahead=READ_AHEAD if self._is_continuous else cap)
        return self._generation.open(limits)

    def _open_scoring(self, batch_size: int | None) -> ScoringStream:
        window = min(batch_size or self._scoring_window, self._scoring_window)
        return self._scoring.open(StreamLimits(running=window, ahead=window))

    def _collect_scores(
        self,
        jobs: Sequence[ScoringJob],
        batch_size: int | None,
        owners: Sequence[int] | None = None,
    ) -> list[Any]:
        order = order_by_prefix([job.span for job in jobs])
        return collect_results(self._open_scoring(batch_size), jobs, owners, order)
