"""Generation on the runtime thread: admits prompts of all open streams, turns events to results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol, TypeVar

from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    RequestFailure,
    TextDelta,
)
from evalution_enginekit.completion import Completion, join_deltas
from evalution_enginekit.runtime import end_steps, runtime_errors
from evalution_enginekit.runtime_thread import IDLE, RuntimeThread
from evalution_enginekit.streams import ResultStream, StreamLimits
from evalution_enginekit.tokenizer import Tokenizer
from evalution_enginekit.tokens import TokenEvent, TokenPrompt

_BATCH_PATIENCE_S = 0.05
"""Seconds that a batch of fixed size may fill after the last request came."""


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A prepared request; its prompt gets a key of its own when it is admitted."""

    prompt: TokenPrompt
    prompt_text: str
    metadata: dict[str, Any]
    truncated_tokens: int = 0


GenerationStream = ResultStream[Any, GenerationJob, GenerationOutput | TextDelta]


@dataclass(frozen=True, slots=True)
class _Running:
    stream: GenerationStream
    key: Hashable
    job: GenerationJob
    completion: Completion


class PromptQueue:
    """Prompts for `_generate_tokens`. Ask for `cancelled` first, then `take` what fits."""

    def __init__(self, loop: GenerationLoop, thread: RuntimeThread):
        self._loop = loop
        self._thread = thread

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from any thread, when there may be prompts to take or keys to cancel.

        For an engine that waits for its runtime's events: `loop.call_soon_threadsafe`, say. It has
        to return at once, and holds until `_generate_tokens` returns.
        """
        self._thread.on_wake = notify

    def take(self, limit: int) -> list[TokenPrompt]:
        """Up to `limit` more prompts to run; none where callers want no more for now."""
        return self._loop.admit(limit)

    def cancelled(self) -> list[int]:
        """Keys to drop: aborted, or ended by a stop string. The runtime must let go of them."""
        return self._loop.take_cancelled()


class GenerationLoop:
    """Drives the engine's `_generate_tokens` one yield at a time, for all streams at once."""

    def __init__(
        self,
        thread: RuntimeThread,
        tokenizer: Tokenizer,
        generate: Callable[[PromptQueue], Iterator[Sequence[TokenEvent]]],
        *,
        continuous: bool,
    ):
        self._thread = thread
        self._tokenizer = tokenizer
        self._generate = generate
        self._patience = 0.0 if continuous else _BATCH_PATIENCE_S
        self._asked = False
        self._streams: list[GenerationStream] = []
        self._with_deltas: set[GenerationStream] = set()
        self._running: dict[int, _Running] = {}
        self._finished: set[int] = set()
        self._steps: Iterator[Sequence[TokenEvent]] | None = None
        self._numbers = count()

    def open(self, limits: StreamLimits, *, deltas: bool = False) -> GenerationStream:
        """A new stream of jobs; with `deltas`, text comes before each output as it is certain."""
        stream: GenerationStream = ResultStream(self._thread, limits)
        with self._thread.lock:
            self._thread.ensure_open()
            self._streams.append(stream)
            if deltas:
                self._with_deltas.add(stream)
        return stream

    @property
    def running(self) -> int:
        """Prompts that the engine has not released."""
        return len(self._running)

    def step(self) -> float:
        with self._thread.lock:
            self._forget_ended_streams()
            rest = 0.0 if self._running else self._rest()
        if rest > 0:
            return rest
        try:
            with runtime_errors("generation"):
                if self._steps is None:
                    self._asked = False
                    self._steps = iter(self._generate(PromptQueue(self, self._thread)))
                events = next(self._steps, None)
                with self._thread.lock:
                    for event in events or ():
                        self._apply(event)
        except EvalutionError as error:
            self._end_steps()
            self._fail(error)
            return 0
        if events is None:
            self._end_steps()
            self._settle_returned()
        elif not self._asked:
            self._end_steps()
            self._fail_unasked()
        return 0

    def shut_down(self, error: EvalutionError) -> None:
        self._end_steps()
        with self._thread.lock:
            for key in list(self._running):
                self._release(key)
            for stream in self._streams:
                stream.fail(error)

    def admit(self, limit: int) -> list[TokenPrompt]:
        """Start up to `limit` jobs, one of each stream in turn."""
        admitted: list[TokenPrompt] = []
        with self._thread.lock:
            self._asked = self._asked or limit > 0
            ready = [s for s in self._streams if s.rest(self._patience) == 0]
            while ready and len(admitted) < limit:
                admitted += [self._start(stream) for stream in ready[: limit - len(admitted)]]
                ready = [stream for stream in ready if stream.admissible() > 0]
        return admitted

    def take_cancelled(self) -> list[int]:
        """Running keys that are finished or that nobody wants now; they count as let go."""
        with self._thread.lock:
            dropped = [
                key
                for key, running in self._running.items()
                if key in self._finished or not running.stream.wants(key)
            ]
            for key in dropped:
                self._release(key)
            return dropped

    def _end_steps(self) -> None:
        steps, self._steps = self._steps, None
        end_steps(steps, "generation")
        self._thread.on_wake = None

    def _rest(self) -> float:
        return min((stream.rest(self._patience) for stream in self._streams), default=IDLE)

    def _start(self, stream: GenerationStream) -> TokenPrompt:
        # Whoever was served goes last: with one slot free at a time, the first would have them all.
        self._streams.remove(stream)
        self._streams.append(stream)
        number = next(self._numbers)
        key, job = stream.admit(number)
        prompt = replace(job.prompt, key=number)
        completion = Completion(self._tokenizer, prompt, prompt.stop)
        self._running[number] = _Running(stream, key, job, completion)
        return prompt

    def _apply(self, event: TokenEvent) -> None:
        running = self._running.get(event.key)
        if running is None or event.key in self._finished:
            return
        if event.error is not None:
            running.stream.deliver(event.key, RequestFailure(event.error, running.job.metadata))
            self._release(event.key)
            return
        completion = running.completion
        ended_by_itself = completion.take(event)
        if running.stream in self._with_deltas and (delta := completion.delta()) is not None:
            running.stream.deliver_part(event.key, delta, join_deltas)
        if completion.finish is None:
            return
        job = running.job
        output = completion.output(job.prompt_text, job.metadata, job.truncated_tokens)
        running.stream.deliver(event.key, output)
        if ended_by_itself:
            self._release(event.key)
        else:
            self._finished.add(event.key)

    def _settle_returned(self) -> None:
        """The engine returned: it is rid of everything, also of what it never finished."""
        if not self._asked:
            self._fail_unasked()
        with self._thread.lock:
            for key, running in list(self._running.items()):
                if key not in self._finished:
                    error = EngineRuntimeError(
                        "the engine ended generation before this request was finished",
                        in_flight=[running.key],
                    )
                    failure = RequestFailure(error, running.job.metadata)
                    running.stream.deliver(key, failure)
                self._release(key)

    def _fail_unasked(self) -> None:
        self._fail(EngineRuntimeError("the engine asked for none of the waiting prompts"))

    def _fail(self, error: EvalutionError) -> None:
        """The runtime failed: each stream that lost requests ends, and learns which.

        One whose requests only wait goes on, unless nothing was running: then it would fail again.
        """
        with self._thread.lock:
            lost: dict[GenerationStream, list[Hashable]] = {}
            for key, running in list(self._running.items()):
                if key not in self._finished and running.stream.wants(key):
                    lost.setdefault(running.stream, []).append(running.key)
                self._release(key)
            for stream in self._streams:
                keys = lost.get(stream, [])
                if not keys and (lost or not stream.admissible()):
                    continue
                lost_error = EngineRuntimeError(f"{error} ({len(keys)} in flight)", in_flight=keys)
                lost_error.__cause__ = error.__cause__ or error
                stream.fail(lost_error)

    def _release(self, key: int) -> None:
        running = self._running.pop(key)
        self._finished.discard(key)
        running.stream.release(key)

    def _forget_ended_streams(self) -> None:
        over = [s for s in self._streams if s.ended and not s.running]
        for stream in over:
            self._streams.remove(stream)
            self._with_deltas.discard(stream)


class Decoding(Protocol):
    """A sequence that an engine is generating."""

    @property
    def is_done(self) -> bool:
        """True once a step gave it a stop id or its last token."""
        ...


S = TypeVar("S", bound=Decoding)


def batch_continuously(
    feed: PromptQueue,
    slots: int,
    begin: Callable[[TokenPrompt], S],
    step: Callable[[list[S]], Sequence[TokenEvent]],
) -> Iterator[Sequence[TokenEvent]]:
    """Continuous batching for an engine whose step advances all running sequences by a token.

    Returned by `_generate_tokens` of such an engine: `begin` makes a sequence of a prompt, `step`
    runs all of them once and returns their events. A sequence leaves when it is done or its key
    was cancelled, and its slot is taken before the next step.
    """
    running: dict[int, S] = {}
    while True:
        for key in feed.cancelled():
            running.pop(key, None)
        for prompt in feed.take(slots - len(running)):
            running[prompt.key] = begin(prompt)
        if not running:
            return
        events = step(list(running.values()))
        running = {key: sequence for key, sequence in running.items() if not sequence.is_done}
        yield events
