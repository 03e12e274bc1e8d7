"""Scoring on the runtime thread: spans of all open calls, in chunks that share prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    LoglikelihoodOutput,
    RequestFailure,
)
from evalution_enginekit.planning import grouped_order
from evalution_enginekit.runtime import runtime_errors
from evalution_enginekit.runtime_thread import IDLE, RuntimeThread
from evalution_enginekit.streams import ResultStream, StreamLimits
from evalution_enginekit.tokens import TokenScore, TokenSpan

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


class ScoringLoop:
    """Gives the engine one chunk a step, from each stream in turn."""

    def __init__(
        self, thread: RuntimeThread, score: Callable[[Sequence[TokenSpan]], SpanScores]
    ) -> None:
        self._thread = thread
        self._score = score
        self._streams: list[ScoringStream] = []
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
            rest = min((s.rest(_CHUNK_PATIENCE_S) for s in self._streams), default=IDLE)
            if rest > 0:
                return rest
            stream = next(s for s in self._streams if s.rest(_CHUNK_PATIENCE_S) == 0)
            self._streams.remove(stream)
            self._streams.append(stream)
            numbers = [next(self._numbers) for _ in range(stream.admissible())]
            jobs = [stream.admit(number) for number in numbers]
        try:
            self._run(stream, jobs)
        finally:
            with self._thread.lock:
                for number in numbers:
                    stream.release(number)
        return 0

    def shut_down(self, error: EvalutionError) -> None:
        for stream in self._streams:
            stream.fail(error)

    def _run(self, stream: ScoringStream, jobs: list[tuple[Any, ScoringJob]]) -> None:
        order = grouped_order([job.span for _, job in jobs])
        spans = [jobs[index][1].span for index in order]
        try:
            with runtime_errors("scoring"):
                scores = self._score(spans)
            if len(scores) != len(spans):
                raise EngineRuntimeError(f"scored {len(scores)} of {len(spans)} spans")
        except EvalutionError as error:
            lost = [key for key, _ in jobs]
            told = EngineRuntimeError(f"{error} ({len(lost)} in flight)", in_flight=lost)
            told.__cause__ = error.__cause__ or error
            stream.fail(told)
            return
        with self._thread.lock:
            for index, score in zip(order, scores, strict=True):
                key, job = jobs[index]
                stream.deliver(key, _conclusion(job, score))


def _conclusion(job: ScoringJob, score: TokenScore | EvalutionError) -> Any:
    if isinstance(score, EvalutionError):
        return RequestFailure(score, job.metadata)
    try:
        return job.conclude(score)
    except EvalutionError as error:
        return RequestFailure(error, job.metadata)


def complete_logprobs(span: TokenSpan, score: TokenScore) -> list[float]:
    """The score's log-probabilities, one for each token that was to be scored.

    Raises:
        EngineRuntimeError: some are missing: a shorter sum must not pass for the score.
    """
    expected, found = len(span.token_ids) - span.start, len(score.logprobs)
    if found != expected:
        raise EngineRuntimeError(
            f"{expected} tokens were to be scored and {found} log-probabilities came"
        )
    return list(score.logprobs)
