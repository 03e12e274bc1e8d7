"""The ways into a session: what an event loop asks for, and the threads that ask the session.

Each generation call of a client is a stream of its own into the session, which runs the requests
of all open streams side by side. So a call joins while others run, and a client that is gone takes
its own requests with it by closing its stream. Requests to score come in larger numbers and end
sooner: those that wait are scored together, a window at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import dataclass
from threading import Event
from typing import Generic, TypeVar, cast

from evalution_core import (
    BaseInferenceSession,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    StreamEvent,
    TextDelta,
    UnsupportedRequestError,
)

R = TypeVar("R")
A = TypeVar("A")

_WINDOW = 64
"""Requests scored in one call of the session."""
_WORKERS = 2
"""Scoring calls at once: one is prepared while the other is computed."""
_POKE = -1

Keyed = Iterator[tuple[int, StreamEvent]]
Opening = Callable[[Iterable[tuple[int, GenerationRequest]]], Keyed]


class GenerationLane:
    """Generation calls, at most `limit` of them in the session at once, first come first served.

    Args:
        session: where they go.
        limit: calls in the session.
        refills: whether the session takes input that stays open, which lets a call be aborted
            before it has given anything.
        streams: whether the session gives text while it grows.
        waited: told how many seconds each call waited for its turn.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        *,
        limit: int,
        refills: bool,
        streams: bool,
        waited: Callable[[float], None],
    ):
        self._session = session
        self._turns = asyncio.Semaphore(limit)
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="generation")
        self._refills = refills
        self._streams = streams
        self._waited = waited

    async def events(
        self, requests: Sequence[GenerationRequest], *, deltas: bool
    ) -> AsyncGenerator[tuple[int, StreamEvent]]:
        """What becomes of each request, by its index; with `deltas`, its text as it grows.

        Closing the iterator early aborts what still runs.
        """
        session = self._session
        opening = cast(Opening, session.stream if deltas else session.generate_continuous)
        began = time.perf_counter()
        async with self._turns:
            self._waited(time.perf_counter() - began)
            call = _Call(opening, requests, stays_open=self._refills)
            done = asyncio.get_running_loop().run_in_executor(self._threads, call.run)
            done.add_done_callback(call.end)
            try:
                while (event := await call.events.get()) is not None:
                    yield event
                await done
            finally:
                call.abort()
                # The turn is free when the session has let go.
                await asyncio.wait([done])

    async def stream_of(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, TextDelta | GenerationOutput]]:
        """Text as it grows, or at once where the session can't stream; then the output.

        Raises:
            EvalutionError: a request was refused, or the session failed; the others are aborted.
        """
        async with aclosing(self.events(requests, deltas=self._streams)) as events:
            async for index, event in events:
                if isinstance(event, RequestFailure):
                    raise event.error
                if isinstance(event, GenerationOutput) and not self._streams:
                    yield index, TextDelta(event.text, tuple(event.token_ids or ()))
                yield index, event

    async def outputs(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """The outputs in the order of the requests; what waits is aborted by the first failure.

        Raises:
            EvalutionError: a request was refused, or the session failed.
        """
        found: dict[int, GenerationOutput] = {}
        if requests:
            async with aclosing(self.events(requests, deltas=False)) as events:
                async for index, event in events:
                    if isinstance(event, RequestFailure):
                        raise event.error
                    assert isinstance(event, GenerationOutput)
                    found[index] = event
        return [found[index] for index in range(len(requests))]

    def close(self) -> None:
        self._threads.shutdown(wait=False)


class _Call:
    """One stream into the session, pulled on a thread and read on the event loop."""

    def __init__(
        self, opening: Opening, requests: Sequence[GenerationRequest], *, stays_open: bool
    ):
        self._opening = opening
        self._requests = requests
        self._stays_open = stays_open
        self._loop = asyncio.get_running_loop()
        self._over = Event()
        self._aborted = False
        self.events: asyncio.Queue[tuple[int, StreamEvent] | None] = asyncio.Queue()

    def run(self) -> None:
        left = len(self._requests)
        stream = cast("Generator[tuple[int, StreamEvent]]", self._opening(self._input()))
        try:
            with closing(stream):
                for key, event in stream:
                    if self._aborted:
                        return
                    self._loop.call_soon_threadsafe(self.events.put_nowait, (key, event))
                    left -= not isinstance(event, TextDelta)
                    if not left:
                        return
        finally:
            self._over.set()

    def abort(self) -> None:
        self._aborted = True
        self._over.set()

    def end(self, done: asyncio.Future[None]) -> None:
        self.events.put_nowait(None)

    def _input(self) -> Iterator[tuple[int, GenerationRequest]]:
        """The requests; then, if the call is aborted, one that is refused.

        `run` waits for the session's next result, and this is one that comes at once: an iterator
        can't be closed by another thread while it is at work.
        """
        yield from enumerate(self._requests)
        if self._stays_open:
            self._over.wait()
            if self._aborted:
                yield _POKE, GenerationRequest()


@dataclass(slots=True)
class _Waiting(Generic[R, A]):
    request: R
    result: asyncio.Future[A | RequestFailure]
    since: float


class ScoringLane(Generic[R, A]):
    """Requests of all callers, scored together as they come; a bad one fails alone.

    Args:
        score: answers a window of requests, by their indices.
        waited: told how many seconds each request waited for its turn.
    """

    def __init__(
        self,
        score: Callable[[list[R]], Iterable[tuple[int, A | RequestFailure]]],
        waited: Callable[[float], None],
    ):
        self._score = score
        self._waited = waited
        self._waiting: deque[_Waiting[R, A]] = deque()
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="scoring")
        self._idle = _WORKERS
        self._running: set[asyncio.Task[None]] = set()

    async def results(self, requests: Sequence[R]) -> list[A | RequestFailure]:
        """Results in the order of the requests.

        Raises:
            EvalutionError: the session failed.
        """
        loop = asyncio.get_running_loop()
        asked = [
            _Waiting[R, A](request, loop.create_future(), time.perf_counter())
            for request in requests
        ]
        self._waiting.extend(asked)
        self._start()
        return await asyncio.gather(*(one.result for one in asked))

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _start(self) -> None:
        while self._idle and self._waiting:
            window: list[_Waiting[R, A]] = []
            while self._waiting and len(window) < _WINDOW:
                one = self._waiting.popleft()
                if not one.result.done():  # whoever asked may be gone
                    window.append(one)
            if not window:
                return
            self._idle -= 1
            task = asyncio.get_running_loop().create_task(self._run(window))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, window: list[_Waiting[R, A]]) -> None:
        now = time.perf_counter()
        for one in window:
            self._waited(now - one.since)
        requests = [one.request for one in window]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._threads, lambda: dict(self._score(requests)))
        except Exception as error:  # noqa: BLE001 - each of them awaits it
            for one in window:
                if not one.result.done():
                    one.result.set_exception(error)
        else:
            for index, one in enumerate(window):
                if not one.result.done():
                    one.result.set_result(answers[index])
        finally:
            self._idle += 1
            self._start()


def loglikelihoods(
    session: BaseInferenceSession,
) -> Callable[
    [list[LoglikelihoodRequest]], Iterable[tuple[int, LoglikelihoodOutput | RequestFailure]]
]:
    return lambda requests: session.loglikelihood_continuous(enumerate(requests))


def rolling(
    session: BaseInferenceSession,
) -> Callable[
    [list[RollingLoglikelihoodRequest]],
    Iterable[tuple[int, RollingLoglikelihoodOutput | RequestFailure]],
]:
    """The list call, asked again without those that it refuses."""

    def score(
        requests: list[RollingLoglikelihoodRequest],
    ) -> Iterator[tuple[int, RollingLoglikelihoodOutput | RequestFailure]]:
        keyed = list(enumerate(requests))
        while keyed:
            try:
                outputs = session.loglikelihood_rolling([request for _, request in keyed])
            except (InvalidRequestError, UnsupportedRequestError) as error:
                refused = error.failures or dict.fromkeys(range(len(keyed)), error)
                for index, failure in refused.items():
                    key, request = keyed[index]
                    yield key, RequestFailure(failure, request.metadata)
                keyed = [pair for at, pair in enumerate(keyed) if at not in refused]
            else:
                yield from zip((key for key, _ in keyed), outputs, strict=True)
                return

    return score
