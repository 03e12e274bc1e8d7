"""The way of generation calls into a session: an event loop asks, and threads ask the session.

Each call of a client is a stream of its own into the session, which runs the requests of all open
streams side by side. So a call joins while others run, and a client that is gone takes its own
requests with it by closing its stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from threading import Event
from typing import cast

from evalution_core import (
    BaseInferenceSession,
    GenerationOutput,
    GenerationRequest,
    RequestFailure,
    StreamEvent,
    TextDelta,
)

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
        await self._turns.acquire()
        self._waited(time.perf_counter() - began)
        call = _Call(opening, requests, stays_open=self._refills)
        done = asyncio.get_running_loop().run_in_executor(self._threads, call.run)
        done.add_done_callback(call.end)
        # The turn is free when the session has let go, however slowly the events are read.
        done.add_done_callback(lambda _: self._turns.release())
        try:
            while (event := await call.events.get()) is not None:
                yield event
            await done
        finally:
            call.abort()
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
        async with aclosing(self.finished(requests)) as outputs:
            found = {index: output async for index, output in outputs}
        return [found[index] for index in range(len(requests))]

    async def finished(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, GenerationOutput]]:
        """The outputs as they come; raises as `outputs`. Requests are taken when there is room."""
        if not requests:
            return
        async with aclosing(self.events(requests, deltas=False)) as events:
            async for index, event in events:
                if isinstance(event, RequestFailure):
                    raise event.error
                assert isinstance(event, GenerationOutput)
                yield index, event

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
