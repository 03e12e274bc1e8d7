"""One stream into the session for the calls of all clients: each joins it, and leaves it alone."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Protocol, cast

from evalution_core import (
    CancellableStream,
    EngineRuntimeError,
    EvalutionError,
    GenerationRequest,
    SessionClosedError,
    StreamEvent,
    TextDelta,
)
from evalution_openai.server.mailbox import Mailbox
from evalution_openai.server.own_stream import Opening


class _Results(CancellableStream, Protocol):
    def __iter__(self) -> Iterator[tuple[int, StreamEvent]]: ...
    def close(self) -> None: ...


class SharedCall:
    """The requests of one client: those that wait for their turn, and those in the session."""

    def __init__(self, requests: Sequence[GenerationRequest], over: Callable[[], None]):
        self.events: Mailbox[tuple[int, StreamEvent] | None] = Mailbox()
        self.error: BaseException | None = None
        self.to_go = deque(range(len(requests)))
        self.under_way: dict[int, int] = {}
        self.stream: SharedStream | None = None
        self._requests = requests
        self._over: Callable[[], None] | None = over

    def take(self, number: int) -> GenerationRequest:
        """The next request that waits; it is in the session under that number then."""
        self.under_way[number] = index = self.to_go.popleft()
        return self._requests[index]

    def put_back(self) -> None:
        """Let what was in a stream that failed wait for another one."""
        self.to_go.extendleft(sorted(self.under_way.values(), reverse=True))
        self.under_way.clear()

    def tell(self, number: int, event: StreamEvent) -> None:
        index = self.under_way[number]
        self.events.put((index, event))
        if not isinstance(event, TextDelta):
            del self.under_way[number]
            if not (self.under_way or self.to_go):
                self.end()

    def end(self, error: BaseException | None = None) -> None:
        """No event follows, and the call's turn is over."""
        if self._over is not None:
            over, self._over = self._over, None
            self.error = error
            self.events.put(None)
            over()

    async def leave(self) -> None:
        """Give up what isn't finished."""
        if self.stream is not None and self._over is not None:
            self.stream.leave(self)


class SharedStream:
    """A stream of the session that stays open.

    The session takes the calls in turns, a request of each, so that a call with many holds up
    none with few. A runtime that fails costs the calls that had requests in it: the others go on in
    a stream that follows.

    Args:
        opening: begins a stream of the session, one that can cancel requests.
        succeed: gives the stream that follows this one, once it failed.
    """

    def __init__(self, opening: Opening, succeed: Callable[[], SharedStream]):
        self._loop = asyncio.get_running_loop()
        self._succeed = succeed
        self._changed = threading.Condition()
        self._ready: deque[SharedCall] = deque()
        self._calls: dict[int, SharedCall] = {}
        self._numbers = count()
        self._mail: deque[tuple[int, StreamEvent]] = deque()
        self._is_told = False
        self.is_over = False
        self._results = cast(_Results, opening(self._input()))
        threading.Thread(target=self._read, name="generation", daemon=True).start()

    # on the event loop

    def join(self, call: SharedCall) -> None:
        call.stream = self
        with self._changed:
            self._ready.append(call)
            self._changed.notify()

    def leave(self, call: SharedCall) -> None:
        with self._changed:
            call.to_go.clear()
            numbers = list(call.under_way)
            call.under_way.clear()
            for number in numbers:
                self._calls.pop(number, None)
        for number in numbers:
            self._results.cancel(number)
        call.end()

    def close(self) -> None:
        """Take nothing more, and cancel what runs."""
        with self._changed:
            self.is_over = True
            numbers, calls = list(self._calls), self._all_calls()
            self._calls.clear()
            self._changed.notify()
        for number in numbers:
            self._results.cancel(number)
        for call in calls:
            call.end(SessionClosedError("the server ends"))

    def _deliver(self) -> None:
        self._is_told = False
        with self._changed:
            while self._mail:
                number, event = self._mail.popleft()
                call = self._calls.get(number)
                if call is None:
                    continue  # its client has left
                if not isinstance(event, TextDelta):
                    del self._calls[number]
                call.tell(number, event)

    def _end(self, error: BaseException) -> None:
        """The session ended the stream: calls that lost a request fail, the others move on."""
        self._deliver()
        lost = set(error.in_flight if isinstance(error, EngineRuntimeError) else ())
        hit = {call for number, call in self._calls.items() if number in lost}
        for call in self._all_calls():
            if call in hit or not lost:
                call.end(error)
                continue
            call.put_back()
            try:
                self._succeed().join(call)
            except EvalutionError as failure:
                call.end(failure)

    def _all_calls(self) -> list[SharedCall]:
        return list(dict.fromkeys([*self._calls.values(), *self._ready]))

    # on the session's input thread

    def _input(self) -> Iterator[tuple[int, GenerationRequest]]:
        while (asked := self._next()) is not None:
            yield asked
            # Its client left in the moment before the session had it, when there was nothing to
            # cancel.
            if asked[0] not in self._calls:
                self._results.cancel(asked[0])

    def _next(self) -> tuple[int, GenerationRequest] | None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._ready or self.is_over)
                if self.is_over:
                    return None
                call = self._ready.popleft()
                if not call.to_go:
                    continue  # its client has left
                number = next(self._numbers)
                self._calls[number] = call
                request = call.take(number)
                if call.to_go:
                    self._ready.append(call)
                return number, request

    # on the thread that reads

    def _read(self) -> None:
        error: BaseException = EngineRuntimeError("the session ended its stream too early")
        try:
            with closing(self._results):
                for pair in self._results:
                    self._mail.append(pair)
                    if not self._is_told:
                        self._is_told = True
                        self._loop.call_soon_threadsafe(self._deliver)
        except BaseException as failure:  # noqa: BLE001 - the calls raise it where they are awaited
            error = failure
        with self._changed:
            self.is_over = True
            self._changed.notify()
        with suppress(RuntimeError):  # the event loop is gone, and whoever waited on it
            self._loop.call_soon_threadsafe(self._end, error)
