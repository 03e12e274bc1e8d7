"""Scoring on the runtime thread: spans of all open calls, in chunks that share prefixes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Generic, TypeVar, cast

from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    LoglikelihoodOutput,
    RequestFailure,
    RequestStream,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.encoding import TokenSpan
from evalution_core.requests import TopLogprobs, parse_item, read_metadata
from evalution_enginekit.planning import (
    TokenScore,
    WrongScoresError,
    check_logprobs,
    check_score,
    order_by_prefix,
)
from evalution_enginekit.runtime_thread import (
    IDLE,
    Liveness,
    RuntimeThread,
    end_steps,
    name_lost_requests,
    runtime_errors,
)
from evalution_enginekit.streams import PulledStream, ResultStream, StreamLimits

_CHUNK_PATIENCE_S = 0.005
"""Seconds that a chunk may fill after its last span: the choices of a question come together."""

_ROUNDING = 1e-2
"""Nats between two readings of one log-probability."""

K = TypeVar("K", bound=Hashable)
J = TypeVar("J")
SpanScores = Sequence[TokenScore | EvalutionError]


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """A span, and the function that makes its request's output of the score."""

    span: TokenSpan
    conclude: Callable[[TokenScore], Any]
    metadata: dict[str, Any]


ScoringStream = ResultStream[Any, ScoringJob, LoglikelihoodOutput | TokenScore]


@dataclass(slots=True)
class _Chunk:
    """Spans of one stream that the engine is given together, those with a shared prefix adjacent.

    `done` counts those whose score has come; `steps` is the engine at work on the others. While
    `fault` is set, which is what a lone span failed with, they score the canary in its place.
    """

    stream: ScoringStream
    jobs: list[tuple[int, Any, ScoringJob]]
    done: int = 0
    steps: Iterator[SpanScores] | None = None
    fault: EvalutionError | None = None

    @property
    def rest(self) -> list[tuple[int, Any, ScoringJob]]:
        return self.jobs[self.done :]

    def end(self) -> None:
        """Have the engine release it."""
        steps, self.steps = self.steps, None
        end_steps(steps, "scoring")


class ScoringLoop:
    """Gives the engine a chunk of one stream after the other, and advances it step by step.

    A chunk that fails is tried again in halves, so that one poisoned span costs itself alone; one
    with a score that is not a number as well, which attention spreads within a pass. After
    a few lone failures in a row the span that scored last is scored again: if it fails too, the
    runtime is taken for dead, and the stream ends.
    """

    def __init__(
        self,
        thread: RuntimeThread,
        score_tokens: Callable[[Sequence[TokenSpan]], Iterator[SpanScores]],
    ) -> None:
        self._thread = thread
        self._score_tokens = score_tokens
        self._streams: list[ScoringStream] = []
        self._chunks: deque[_Chunk] = deque()
        self._liveness: Liveness[TokenSpan] = Liveness()
        self._numbers = count()
        self._has_jumped = False

    def open(self, limits: StreamLimits) -> ScoringStream:
        stream: ScoringStream = ResultStream(self._thread, limits)
        with self._thread.lock:
            self._thread.ensure_open()
            self._streams.append(stream)
        return stream

    def step(self) -> float:
        self._drop_ended_chunks()
        with self._thread.lock:
            self._streams = [stream for stream in self._streams if not stream.ended]
            if not self._chunks:
                rest = min((s.rest(_CHUNK_PATIENCE_S) for s in self._streams), default=IDLE)
                if rest > 0:
                    return rest
                self._chunks.append(self._next_chunk())
        chunk = self._chunks[0]
        try:
            with runtime_errors("scoring"):
                if chunk.steps is None:
                    chunk.steps = iter(self._score_tokens(self._spans(chunk)))
                scores = next(chunk.steps, None)
                if chunk.fault is None:
                    self._deliver(chunk, scores)
                else:
                    self._acquit(chunk, chunk.fault, scores)
        except EvalutionError as error:
            chunk.end()
            self._retry(chunk, error)
        return 0

    def shut_down(self, error: EvalutionError) -> None:
        with self._thread.lock:
            for stream in {*self._streams, *(chunk.stream for chunk in self._chunks)}:
                stream.fail(error)
        self._drop_ended_chunks()

    def _next_chunk(self) -> _Chunk:
        """Take the chunk of the stream that waits longest, or one shorter than all others.

        Only one such goes before, so that long ones are delayed by half at most.
        """
        ready = [s for s in self._streams if s.rest(_CHUNK_PATIENCE_S) == 0]
        stream = ready[0] if self._has_jumped else min(ready, key=ScoringStream.admissible)
        self._has_jumped = stream is not ready[0]
        self._streams.remove(stream)
        self._streams.append(stream)
        numbers = islice(self._numbers, stream.admissible())
        jobs = [(number, *stream.admit(number)) for number in numbers]
        order = order_by_prefix([job.span for _, _, job in jobs])
        return _Chunk(stream, [jobs[index] for index in order])

    def _spans(self, chunk: _Chunk) -> list[TokenSpan]:
        if chunk.fault is None:
            return [job.span for _, _, job in chunk.rest]
        assert self._liveness.canary is not None
        return [self._liveness.canary]

    def _deliver(self, chunk: _Chunk, scores: SpanScores | None) -> None:
        """Hand on one step's scores; None means that the engine has no more."""
        if scores is None and chunk.rest:
            raise EngineRuntimeError(f"scored {chunk.done} of {len(chunk.jobs)} spans")
        if isinstance(scores, TokenScore):
            raise EngineRuntimeError("yield a list of TokenScore a step, not one score")
        found = list(scores or ())
        if len(found) > len(chunk.rest):
            raise EngineRuntimeError(f"scored more than the {len(chunk.jobs)} spans there were")
        if len(chunk.rest) > 1 and any(map(_is_nan, found)):
            raise WrongScoresError("a score is not a number")
        results = [
            (number, job.span, _conclude(job, score))
            for (number, _, job), score in zip(chunk.rest, found, strict=False)
        ]
        if len(found) == len(chunk.rest):
            chunk.end()
        with self._thread.lock:
            for number, span, result in results:
                self._liveness.record_success(None if isinstance(result, RequestFailure) else span)
                chunk.stream.deliver(number, result)
                chunk.stream.release(number)
            chunk.done += len(results)
            if not chunk.rest:
                self._chunks.popleft()

    def _retry(self, chunk: _Chunk, error: EvalutionError) -> None:
        with self._thread.lock:
            if chunk.fault is not None:
                self._give_up(chunk, chunk.fault)
            elif len(rest := chunk.rest) > 1:
                half = (len(rest) + 1) // 2
                self._chunks.popleft()
                self._chunks.extendleft(
                    [_Chunk(chunk.stream, rest[half:]), _Chunk(chunk.stream, rest[:half])]
                )
            elif not self._liveness.record_failure():
                self._fail_alone(chunk, error)
            elif self._liveness.canary is None:
                self._give_up(chunk, error)
            else:
                chunk.fault = error

    def _acquit(self, chunk: _Chunk, fault: EvalutionError, scores: SpanScores | None) -> None:
        """The canary has scored: it is the chunk's span that is bad, and not the runtime."""
        if scores is None or any(isinstance(score, EvalutionError) for score in scores):
            raise EngineRuntimeError("the canary has no score")
        if not scores:
            return
        chunk.end()
        with self._thread.lock:
            self._liveness.record_success(None)
            self._fail_alone(chunk, fault)

    def _fail_alone(self, chunk: _Chunk, error: EvalutionError) -> None:
        self._chunks.popleft()
        ((number, key, job),) = chunk.rest
        chunk.stream.deliver(number, RequestFailure(name_lost_requests(error, [key]), job.metadata))
        chunk.stream.release(number)

    def _give_up(self, chunk: _Chunk, error: EvalutionError) -> None:
        self._chunks.popleft()
        chunk.stream.fail(name_lost_requests(error, list(chunk.stream.running.values())))
        for number, _, _ in chunk.rest:
            chunk.stream.release(number)
        self._liveness.reset()

    def _drop_ended_chunks(self) -> None:
        with self._thread.lock:
            ended = [chunk for chunk in self._chunks if chunk.stream.ended]
            for chunk in ended:
                self._chunks.remove(chunk)
        # Without the lock, as every call of the engine.
        for chunk in ended:
            chunk.end()
        with self._thread.lock:
            for chunk in ended:
                for number, _, _ in chunk.rest:
                    chunk.stream.release(number)


def _is_nan(score: TokenScore | EvalutionError) -> bool:
    if not isinstance(score, TokenScore):
        return False
    values = cast("Sequence[float | None]", score.logprobs)
    return any(value is not None and math.isnan(value) for value in values)


def _conclude(job: ScoringJob, score: TokenScore | EvalutionError) -> Any:
    if isinstance(score, EvalutionError):
        return RequestFailure(score, job.metadata)
    try:
        return job.conclude(check_score(score))
    except EvalutionError as error:
        return RequestFailure(error, job.metadata)


def complete_logprobs(span: TokenSpan, score: TokenScore) -> list[float]:
    """The score's log-probabilities, one for each token that was to be scored.

    Raises:
        WrongScoresError: some are missing, or none: a shorter sum must not pass for the score.
    """
    expected, found = len(span.token_ids) - span.start, len(score.logprobs)
    if found != expected:
        raise WrongScoresError(
            f"{expected} tokens were to be scored and {found} log-probabilities came"
        )
    return check_logprobs(score.logprobs)


def complete_top_logprobs(span: TokenSpan, score: TokenScore) -> TopLogprobs | None:
    """The most likely tokens of each position, where the span asks for them.

    Raises:
        WrongScoresError: some are missing, or contradict the scored token's own value.
    """
    if span.top_logprobs is None:
        return None
    expected, found = len(span.token_ids) - span.start, score.top_logprobs or []
    whole = sum(len(top) >= span.top_logprobs for top in found)
    if not len(found) == expected == whole:
        raise WrongScoresError(
            f"the {span.top_logprobs} most likely tokens of {expected} positions were asked for, "
            f"and all those of {whole} came"
        )
    for token_id, own, top in zip(span.token_ids[span.start :], score.logprobs, found, strict=True):
        # A token that isn't listed is at most as likely as the last that is.
        listed = top.get(token_id, min(own, *top.values()))
        if abs(own - listed) > _ROUNDING:
            raise WrongScoresError(
                f"token {token_id} has the log-probability {own:.6g}, and by the most likely "
                f"tokens of its position {listed:.6g}: they belong to another position, or are "
                "processed"
            )
    return list(found)


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
    tops = [complete_top_logprobs(*pair) for pair in zip(windows, scores, strict=True)]
    return RollingLoglikelihoodOutput(
        math.fsum(logprobs),
        len(logprobs),
        request.metadata,
        token_ids=token_ids,
        token_logprobs=logprobs,
        top_logprobs=None if request.top_logprobs is None else [s for t in tops for s in t or ()],
    )


@dataclass(slots=True)
class _Text(Generic[K]):
    """A text of a stream; its windows are scored one by one. `left` counts those without score."""

    key: K
    request: RollingLoglikelihoodRequest
    windows: Sequence[TokenSpan]
    scores: list[TokenScore | None]
    left: int
    is_over: bool = False


class RollingStream(RequestStream[K, RollingLoglikelihoodOutput | RequestFailure], Generic[K, J]):
    """A stream of texts, on a stream of their windows.

    Args:
        requests: the input, read on another thread.
        opening: begins the stream of windows.
        prepare: a request's windows, or what is wrong with it.
        make_job: a job that scores one window.
        name: whose stream it is, for the names of threads.
    """

    def __init__(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        opening: Callable[[], ResultStream[Any, J, Any]],
        prepare: Callable[[RollingLoglikelihoodRequest], list[TokenSpan] | RequestFailure],
        make_job: Callable[[TokenSpan], J],
        name: str,
    ):
        self._texts: dict[int, _Text[K]] = {}

        def prepare_window(part: TokenSpan | RequestFailure) -> J | RequestFailure:
            return part if isinstance(part, RequestFailure) else make_job(part)

        parts = _read_windows(requests, self._texts, prepare)
        self._windows = PulledStream(parts, opening, prepare_window, name)

    def __next__(self) -> tuple[K, RollingLoglikelihoodOutput | RequestFailure]:
        while True:
            try:
                (number, index), score = next(self._windows)
            except EngineRuntimeError as error:
                renamed = self._rename_keys(error)
                raise renamed from renamed.__cause__
            text = self._texts.get(number)
            if text is None:
                continue
            if isinstance(score, RequestFailure):
                error = score.error
                if isinstance(error, EngineRuntimeError):
                    error = self._rename_keys(error)
                self._drop(number)
                return text.key, RequestFailure(
                    error, read_metadata(text.request) or score.metadata
                )
            text.scores[index] = score
            text.left -= 1
            # Another thread's `cancel` may have taken it meanwhile.
            if not text.left and self._texts.pop(number, None) is not None:
                scores = [found for found in text.scores if found is not None]
                try:
                    return text.key, rolling_output(text.request, text.windows, scores)
                except EvalutionError as error:
                    return text.key, RequestFailure(error, text.request.metadata)

    def close(self) -> None:
        self._windows.close()

    def cancel(self, key: Hashable) -> None:
        # A copy, made at once: the input's thread adds texts meanwhile.
        for number, text in list(self._texts.items()):
            if text.key == key:
                self._drop(number)

    def _drop(self, number: int) -> None:
        text = self._texts.pop(number, None)
        if text is not None:
            text.is_over = True
            for index in range(len(text.windows)):
                self._windows.cancel((number, index))

    def _rename_keys(self, error: EngineRuntimeError) -> EngineRuntimeError:
        """Return the error with the keys of texts in place of those of their windows."""
        numbers = dict.fromkeys(cast("tuple[int, int]", part)[0] for part in error.in_flight)
        keys = [text.key for text in map(self._texts.get, numbers) if text is not None]
        renamed = type(error)(str(error), in_flight=keys)
        renamed.__cause__ = error.__cause__
        return renamed


def _read_windows(
    requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
    texts: dict[int, _Text[K]],
    prepare: Callable[[RollingLoglikelihoodRequest], list[TokenSpan] | RequestFailure],
) -> Iterator[tuple[tuple[int, int], TokenSpan | RequestFailure]]:
    """Yield each window of each text, or the failure of a request that can't be scored."""
    for number, item in enumerate(requests):
        parsed = parse_item(item, number)
        key, request = (None, None) if isinstance(parsed, RequestFailure) else parsed
        found = parsed if isinstance(parsed, RequestFailure) else prepare(parsed[1])
        windows = [] if isinstance(found, RequestFailure) else found
        text = _Text(
            cast("K", key), cast("Any", request), windows, [None] * len(windows), len(windows)
        )
        texts[number] = text
        parts = enumerate([found] if isinstance(found, RequestFailure) else windows)
        for index, part in parts:
            if text.is_over:
                break
            yield (number, index), part
