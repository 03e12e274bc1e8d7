"""Scoring on the runtime thread: spans of all open calls, in chunks that share prefixes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    LoglikelihoodOutput,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_enginekit.planning import grouped_order
from evalution_enginekit.runtime import runtime_errors
from evalution_enginekit.runtime_thread import IDLE, RuntimeThread
from evalution_enginekit.streams import ResultStream, StreamLimits
from evalution_enginekit.tokens import TokenScore, TokenSpan, WrongScoresError

_DEAD_AFTER = 3
"""Spans that fail one after the other, each by itself, until the runtime is given up."""
_CHUNK_PATIENCE_S = 0.005
"""How long a chunk may fill after its last span came: the choices of a question come together."""

SpanScores = Sequence[TokenScore | EvalutionError]


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """A span and what its score becomes."""

    span: TokenSpan
    conclude: Callable[[TokenScore], Any]
    metadata: dict[str, Any]


ScoringStream = ResultStream[Any, ScoringJob, LoglikelihoodOutput | TokenScore]


@dataclass(slots=True)
class _Chunk:
    """Spans of one stream that the engine is given together, those with a shared prefix adjacent.

    `done` counts those whose score has come; `steps` is the engine at work on the others.
    """

    stream: ScoringStream
    jobs: list[tuple[int, Any, ScoringJob]]
    done: int = 0
    steps: Iterator[SpanScores] | None = None

    @property
    def rest(self) -> list[tuple[int, Any, ScoringJob]]:
        return self.jobs[self.done :]


class ScoringLoop:
    """Gives the engine a chunk of one stream after the other, and advances it step by step.

    A chunk that fails is tried again in halves, so that one poisoned span costs itself alone. After
    a few lone failures in a row the runtime is taken for dead, and the stream ends.
    """

    def __init__(
        self, thread: RuntimeThread, score: Callable[[Sequence[TokenSpan]], Iterator[SpanScores]]
    ) -> None:
        self._thread = thread
        self._score = score
        self._streams: list[ScoringStream] = []
        self._chunks: deque[_Chunk] = deque()
        self._failures = 0
        self._numbers = count()

    def open(self, limits: StreamLimits) -> ScoringStream:
        stream: ScoringStream = ResultStream(self._thread, limits)
        with self._thread.lock:
            self._thread.ensure_open()
            self._streams.append(stream)
        return stream

    def step(self) -> float:
        with self._thread.lock:
            self._streams = [stream for stream in self._streams if not stream.ended]
            self._drop_ended_chunks()
            if not self._chunks:
                rest = min((s.rest(_CHUNK_PATIENCE_S) for s in self._streams), default=IDLE)
                if rest > 0:
                    return rest
                self._chunks.append(self._next_chunk())
        chunk = self._chunks[0]
        try:
            with runtime_errors("scoring"):
                if chunk.steps is None:
                    spans = [job.span for _, _, job in chunk.rest]
                    chunk.steps = iter(self._score(spans))
                scores = next(chunk.steps, None)
                self._deliver(chunk, scores)
        except EvalutionError as error:
            self._retry(chunk, error)
        return 0

    def shut_down(self, error: EvalutionError) -> None:
        with self._thread.lock:
            for stream in {*self._streams, *(chunk.stream for chunk in self._chunks)}:
                stream.fail(error)
            self._drop_ended_chunks()

    def _next_chunk(self) -> _Chunk:
        stream = next(s for s in self._streams if s.rest(_CHUNK_PATIENCE_S) == 0)
        self._streams.remove(stream)
        self._streams.append(stream)
        numbers = islice(self._numbers, stream.admissible())
        jobs = [(number, *stream.admit(number)) for number in numbers]
        order = grouped_order([job.span for _, _, job in jobs])
        return _Chunk(stream, [jobs[index] for index in order])

    def _deliver(self, chunk: _Chunk, scores: SpanScores | None) -> None:
        """Hand on one step's scores; None means that the engine has no more."""
        if scores is None and chunk.rest:
            raise EngineRuntimeError(f"scored {chunk.done} of {len(chunk.jobs)} spans")
        found = list(scores or ())
        if len(found) > len(chunk.rest):
            raise EngineRuntimeError(f"scored more than the {len(chunk.jobs)} spans there were")
        results = [
            (number, _conclusion(job, score))
            for (number, _, job), score in zip(chunk.rest, found, strict=False)
        ]
        with self._thread.lock:
            for number, result in results:
                chunk.stream.deliver(number, result)
                chunk.stream.release(number)
            chunk.done += len(results)
            if results:
                self._failures = 0
            if not chunk.rest:
                self._chunks.popleft()

    def _retry(self, chunk: _Chunk, error: EvalutionError) -> None:
        rest = chunk.rest
        with self._thread.lock:
            self._chunks.popleft()
            if len(rest) > 1:
                half = (len(rest) + 1) // 2
                self._chunks.extendleft(
                    [_Chunk(chunk.stream, rest[half:]), _Chunk(chunk.stream, rest[:half])]
                )
                return
            self._failures += 1
            ((number, key, job),) = rest
            if self._failures < _DEAD_AFTER:
                told = _with_ids(error, [key])
                chunk.stream.deliver(number, RequestFailure(told, job.metadata))
                chunk.stream.release(number)
                return
            chunk.stream.fail(_with_ids(error, list(chunk.stream.running.values())))
            chunk.stream.release(number)
            self._failures = 0

    def _drop_ended_chunks(self) -> None:
        for chunk in [chunk for chunk in self._chunks if chunk.stream.ended]:
            self._chunks.remove(chunk)
            chunk.steps = None
            for number, _, _ in chunk.rest:
                chunk.stream.release(number)


def _with_ids(error: EvalutionError, lost: Sequence[Hashable]) -> EngineRuntimeError:
    kind = WrongScoresError if isinstance(error, WrongScoresError) else EngineRuntimeError
    told = kind(f"{error} ({len(lost)} in flight)", in_flight=lost)
    told.__cause__ = error.__cause__ or error
    return told


def _conclusion(job: ScoringJob, score: TokenScore | EvalutionError) -> Any:
    if isinstance(score, EvalutionError):
        return RequestFailure(score, job.metadata)
    if not isinstance(score, TokenScore):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a score must be a TokenScore or an error, got {score!r}")
    try:
        return job.conclude(score)
    except EvalutionError as error:
        return RequestFailure(error, job.metadata)


def complete_logprobs(span: TokenSpan, score: TokenScore) -> list[float]:
    """The score's log-probabilities, one for each token that was to be scored.

    Raises:
        WrongScoresError: some are missing: a shorter sum must not pass for the score.
    """
    expected, found = len(span.token_ids) - span.start, len(score.logprobs)
    if found != expected:
        raise WrongScoresError(
            f"{expected} tokens were to be scored and {found} log-probabilities came"
        )
    return list(score.logprobs)


def rolling_output(
    request: RollingLoglikelihoodRequest,
    windows: Sequence[TokenSpan],
    scores: Sequence[TokenScore],
) -> RollingLoglikelihoodOutput:
    """The scores of a text's windows as the output of its request.

    Raises:
        WrongScoresError: log-probabilities are missing.
    """
    scored = zip(windows, scores, strict=True)
    logprobs = [value for span, score in scored for value in complete_logprobs(span, score)]
    token_ids = [i for span in windows for i in span.token_ids[span.start :]]
    return RollingLoglikelihoodOutput(
        math.fsum(logprobs),
        len(logprobs),
        request.metadata,
        token_ids=token_ids,
        token_logprobs=logprobs,
    )
