"""The channels of an asynchronous session: callers that wait, and the streams that serve them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from evalution_core import (
    EngineRuntimeError,
    RequestFailure,
    RequestStream,
    SessionClosedError,
    TextDelta,
)
from evalution_core.requests import Output, Request

Event = TextDelta | Output | RequestFailure

_ROUND_S = 0.2
"""Seconds that a round stays open at most, or a steady flow would keep it from starting.
"""
_CLOSE_WAIT_S = 10.0
"""Seconds that `close` waits for the session to release what runs; one step is normal."""


class Call:
    """The requests of one caller, and the events that it has yet to read.

    `to_go` are the indices that wait for their turn, `in_flight` those in the session by their
    numbers there, `begun` those of which text has come. They belong to the channel; the events
    belong to the caller's event loop.
    """

    def __init__(self, requests: Sequence[Request], outbox: Outbox):
        self.requests = requests
        self.since = time.perf_counter()
        self.to_go = deque(range(len(requests)))
        self.in_flight: dict[int, int] = {}
        self.begun: set[int] = set()
        self._outbox = outbox
        self._events: deque[tuple[int, Event] | BaseException] = deque()
        self._reader: asyncio.Future[None] | None = None

    def send(self, event: tuple[int, Event] | BaseException) -> None:
        """Have the caller read an event, from any thread."""
        self._outbox.send(self, event)

    def put(self, event: tuple[int, Event] | BaseException) -> None:
        """Add an event, on the caller's event loop."""
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> tuple[int, Event]:
        """Return the next event as soon as there is one; raise one that is an error."""
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._events.popleft()
        if isinstance(event, BaseException):
            raise event
        return event

    def fail(self, error: BaseException) -> None:
        self.to_go.clear()
        self.in_flight.clear()
        self.send(error)


class Outbox:
    """Events for the tasks of one event loop: all that wait are delivered in one turn of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._events: deque[tuple[Call, tuple[int, Event] | BaseException]] = deque()
        self._is_scheduled = False

    def send(self, call: Call, event: tuple[int, Event] | BaseException) -> None:
        self._events.append((call, event))
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        while self._events:
            call, event = self._events.popleft()
            call.put(event)


class Channel:
    """Callers that wait for one kind of stream, and the readers that serve them.

    Args:
        open_stream: begins a stream of the session.
        on_start: called with the seconds that a request waited, when the session takes it.
        patience: how long a round stays open after a request; None: a stream stays open.
        window: requests in one round; None: any number.
        readers: streams at once.
    """

    def __init__(
        self,
        open_stream: Callable[[Iterable[tuple[int, Any]]], RequestStream[int, Any]],
        on_start: Callable[[float], None],
        *,
        patience: float | None,
        window: int | None = None,
        readers: int = 1,
    ):
        self.open_stream = open_stream
        self.on_start = on_start
        self.patience = patience
        self.window = window
        # An `RLock` beneath: a garbage collection under it may close this object.
        self.changed = threading.Condition()
        self.callers: deque[Call] = deque()
        self.numbers = count()
        self.is_closed = False
        self._readers = [_Reader(self) for _ in range(readers)]

    def join(self, call: Call) -> None:
        with self.changed:
            if self.is_closed:
                call.fail(SessionClosedError("the asynchronous session was closed meanwhile"))
                return
            self.callers.append(call)
            self.changed.notify()

    def leave(self, call: Call) -> None:
        """Give up what is not finished of a call."""
        if not (call.to_go or call.in_flight):
            return
        with self.changed:
            call.to_go.clear()
            with suppress(ValueError):  # a round would open for it, and find nothing
                self.callers.remove(call)
            numbers = list(call.in_flight)
            call.in_flight.clear()
        self.cancel(numbers)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Abort these requests in whatever stream they are; not under the lock."""
        for reader in self._readers:
            reader.cancel(numbers)

    def close(self) -> None:
        error = SessionClosedError("the asynchronous session was closed meanwhile")
        with self.changed:
            self.is_closed = True
            waiting = {*self.callers, *(c for r in self._readers for c in r.running.values())}
            self.callers.clear()
            numbers = [number for call in waiting for number in call.in_flight]
            for call in waiting:
                call.fail(error)
            self.changed.notify_all()
        self.cancel(numbers)
        for reader in self._readers:
            reader.join()

    def take(self) -> tuple[int, Call, Request] | None:
        """Take the next request in turn, under the lock; None if none waits."""
        while self.callers:
            call = self.callers.popleft()
            if call.to_go:
                number, index = next(self.numbers), call.to_go.popleft()
                call.in_flight[number] = index
                if call.to_go:
                    self.callers.append(call)
                return number, call, call.requests[index]
        return None

    def put_back(self, call: Call, numbers: Iterable[int]) -> None:
        """Let requests wait for another stream, before all others; under the lock."""
        indices = [call.in_flight.pop(number) for number in numbers]
        call.to_go.extendleft(sorted(indices, reverse=True))
        if call.to_go and call not in self.callers:
            self.callers.appendleft(call)


class _Reader:
    """One stream of the session after the other, each read on this object's thread."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._changed = channel.changed
        self._stream: RequestStream[int, Any] | None = None
        self._round = 0
        self._was_asked = False
        self._on_its_way = -1
        self._is_given_up = False
        self.running: dict[int, Call] = {}
        self._thread = threading.Thread(target=self._serve, name="session stream", daemon=True)
        self._thread.start()

    def cancel(self, numbers: Iterable[int]) -> None:
        """Abort those of these requests that are in this reader's stream."""
        with self._changed:
            mine = [number for number in numbers if self.running.pop(number, None) is not None]
            self._is_given_up |= self._on_its_way in mine
        if self._stream is not None:
            for number in mine:
                self._stream.cancel(number)

    def join(self) -> None:
        """Wait for the thread to end, unless this is it, as in a garbage collection there."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_WAIT_S)

    def _serve(self) -> None:
        channel = self._channel
        while True:
            with self._changed:
                self._changed.wait_for(lambda: channel.callers or channel.is_closed)
                if channel.is_closed:
                    return
            self._was_asked = False
            try:
                self._read_stream()
                error: BaseException = EngineRuntimeError("the session's stream ended too early")
                is_refused = not self._was_asked
            except BaseException as failure:  # noqa: BLE001 - the tasks that wait raise it
                error, is_refused = failure, not self.running
            with self._changed:
                self._round += 1
                lost = self._end_round(error, is_refused=is_refused)
                self._changed.notify_all()
            channel.cancel(lost)

    def _end_round(self, error: BaseException, *, is_refused: bool) -> list[int]:
        """Fail the callers that lost a request, and let the requests of all others wait again.

        Returns the requests of those callers that are in other streams.
        """
        elsewhere: list[int] = []
        calls = set(self.running.values())
        if is_refused:
            calls |= set(self._channel.callers)
            self._channel.callers.clear()
        lost = set(error.in_flight if isinstance(error, EngineRuntimeError) else ())
        lost &= self.running.keys()
        for call in calls:
            mine = [number for number, its_call in self.running.items() if its_call is call]
            is_hit = not lost or lost.intersection(mine)
            if is_refused or is_hit or any(call.in_flight[n] in call.begun for n in mine):
                elsewhere += [number for number in call.in_flight if number not in mine]
                call.fail(error)
            else:
                self._channel.put_back(call, mine)
        self.running.clear()
        return elsewhere

    def _read_stream(self) -> None:
        stream = self._stream = self._channel.open_stream(self._yield_requests(self._round))
        with stream:
            for number, event in stream:
                if self._channel.is_closed:
                    return
                with self._changed:
                    call = self.running.get(number)
                    if call is None:
                        continue  # whoever asked has left
                    index = call.in_flight[number]
                    if isinstance(event, TextDelta):
                        call.begun.add(index)
                    else:
                        del self.running[number], call.in_flight[number]
                # Not under the lock: the caller's thread would wake and wait for it.
                call.send((index, event))

    def _yield_requests(self, round_number: int) -> Iterator[tuple[int, Request]]:
        """Yield what waits, for as long as the stream of this round is the one that is read."""
        self._was_asked = True
        channel = self._channel
        closes = time.monotonic() + _ROUND_S
        given = 0
        while channel.window is None or given < channel.window:
            patience = channel.patience
            if patience is not None and time.monotonic() > closes:
                patience = 0.0  # requests that wait may still come along
            with self._changed:
                self._changed.wait_for(
                    lambda: channel.callers or channel.is_closed or self._round != round_number,
                    timeout=patience,
                )
                if channel.is_closed or self._round != round_number:
                    return
                if (taken := channel.take()) is None:
                    if patience is None:
                        continue
                    return
                number, call, request = taken
                self.running[number] = call
                self._on_its_way, self._is_given_up = number, False
            given += 1
            channel.on_start(time.perf_counter() - call.since)
            yield number, request
            # Given up in the moment before the stream had it, it was not in flight to be cancelled.
            if self._is_given_up and self._stream is not None:
                self._stream.cancel(number)
        with self._changed:
            if channel.callers:
                self._changed.notify()  # the round is full: another reader may begin the next one
