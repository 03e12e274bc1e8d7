"""The channels of an asynchronous session: callers that wait, and the streams that serve them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from math import inf
from typing import Any

from evalution_core import (
    EngineRuntimeError,
    GenerationOutput,
    InvalidRequestError,
    RequestFailure,
    RequestStream,
    SessionClosedError,
    TextDelta,
    UnsupportedRequestError,
)
from evalution_core.requests import Output, Request
from evalution_enginekit.calls import LONGER, Call
from evalution_enginekit.fair_queue import Accounts

_ROUND_S = 0.2
"""Seconds that a round stays open at most, or a steady flow would keep it from starting."""
_KEPT_S, _LEAST_KEPT = 1.0, 7
"""Seconds that such a slot is kept for the next short request; slots from which one is kept."""
_CLOSE_WAIT_S = 10.0
"""Seconds that `close` waits for the session to release what runs; one step is normal."""


class Channel:
    """Callers that wait for one kind of stream, and the readers that serve them.

    Args:
        open_stream: begins a stream of the session.
        on_start: called with the seconds that a request waited, when the session takes it.
        accounts: what each caller was given, shared with the session's other channels.
        find_saving: returns the tokens that a request cost less than its estimate.
        patience: how long a round stays open after a request; None: a stream stays open.
        window: requests in one round; None: any number.
        readers: streams at once.
        slots: requests of a stream that run at once, the first that it took; None: unknown.
    """

    def __init__(
        self,
        open_stream: Callable[[Iterable[tuple[int, Any]]], RequestStream[int, Any]],
        on_start: Callable[[float], None],
        accounts: Accounts,
        find_saving: Callable[[Request, Output], float],
        *,
        patience: float | None,
        window: int | None = None,
        readers: int = 1,
        slots: int | None = None,
    ):
        self.open_stream = open_stream
        self.on_start = on_start
        self.find_saving = find_saving
        self.patience = patience
        self.window = window
        self.slots = slots
        self.accounts = accounts
        self.changed = threading.Condition(accounts.lock)
        self.callers: list[Call] = []
        self._kept_until = self._short = 0.0
        self._least, self._most = inf, 0.0
        self.numbers = count()
        self.is_closed = False
        self._readers = [_Reader(self) for _ in range(readers)]

    def join(self, call: Call) -> bool:
        """Add a call; return True if one may come to need room, which `make_room` makes."""
        with self.changed:
            if self.is_closed:
                call.fail(SessionClosedError("the asynchronous session was closed meanwhile"))
                return False
            call.channel = self
            call.account = self.accounts.open(call.caller)
            self.callers.append(call)
            self.changed.notify()
            self._least = min(self._least, call.least_cost)
            self._most = max(self._most, call.most_cost)
            return self._may_need_room()

    def leave(self, call: Call) -> None:
        """End a call, and give up what is not finished of it."""
        with self.changed:
            if call.account is not None:
                if call.in_flight:
                    self._refund_rest(call)
                self.accounts.close(call.account)
                call.account = None
            if not (call.to_go or call.in_flight):
                return
            call.to_go.clear()
            with suppress(ValueError):  # a round would open for it, and find nothing
                self.callers.remove(call)
            dropped = self.drop(list(call.in_flight))
            call.in_flight.clear()
            self.changed.notify_all()
        self.abort(dropped)

    def _refund_rest(self, call: Call) -> None:
        """Give back what requests in flight weren't given; under the lock.

        That is all of one that waits in the stream for a slot. Another has had its prompt, and as
        many tokens as the fastest request has in such a time.
        """
        now = time.perf_counter()
        running = sorted(number for reader in self._readers for number in reader.running)
        prepared = set(running[self.slots :] if self.slots is not None else ())
        for number, index in call.in_flight.items():
            made = self.accounts.count_made(now - call.taken[index])
            output = GenerationOutput("", "", completion_tokens=made)
            saving = self.find_saving(call.requests[index], output)
            call.refund(index, None if number in prepared else saving)

    def settle(self, call: Call, index: int, event: Output | RequestFailure) -> None:
        """Correct the charge of a request that ended; under the lock."""
        if not isinstance(event, RequestFailure):
            call.refund(index, self.find_saving(call.requests[index], event))
            if isinstance(event, GenerationOutput):
                seconds = time.perf_counter() - call.taken[index]
                self.accounts.note_made(event.completion_tokens or 0, seconds)
        elif isinstance(event.error, InvalidRequestError | UnsupportedRequestError):
            call.refund(index)  # it was refused before it ran
        if self.callers:
            self.changed.notify_all()

    def make_room(self) -> bool:
        """Free slots for calls that wait behind far longer ones, where it can be done unnoticed.

        For each call that is due, the youngest request of another caller that costs eight times as
        much, of which no text has come, begins again later, at most once; so do those that the
        stream has yet to start. Of seven slots or more, that one is kept for requests as short
        until none comes for a second. Returns True while a call may come to need room.
        """
        if self.slots is None:
            return False
        with self.changed:
            running = {n: c for reader in self._readers for n, c in reader.running.items()}
            numbers = sorted(running)
            started, prepared = numbers[: self.slots], numbers[self.slots :]
            waiting = {*self.callers, *(running[number] for number in prepared)}
            waiting -= {running[number] for number in started}
            given = _find_slots(waiting, running, started) if prepared else {}
            if not given:
                if 0 < self._kept_until <= time.perf_counter():  # it is free for all by now
                    self._kept_until = 0.0
                    self.changed.notify_all()
                calls = {*self.callers, *running.values()}
                self._least = min((call.least_cost for call in calls), default=inf)
                self._most = max((call.most_cost for call in calls), default=0.0)
                return bool(prepared or self.callers) and self._may_need_room()
            for number in given:
                running[number].restarted.add(running[number].in_flight[number])
            helped = set(given.values())
            if self.slots >= _LEAST_KEPT:
                self._short = LONGER * max(max(call.costs) for call in helped)
                self._kept_until = time.perf_counter() + _KEPT_S
            numbers = [*given, *(number for number in prepared if running[number] not in helped)]
            for number in numbers:
                self.put_back(running[number], [number])
            dropped = self.drop(numbers)
            self.changed.notify_all()
        self.abort(dropped)
        return True

    def _may_need_room(self) -> bool:
        """Report whether a slot is kept, or one request costs eight times as much as another.

        Requests that ended since the last look by `make_room` count too.
        """
        differ = LONGER * self._least <= self._most
        return self.slots is not None and (differ or self._kept_until > 0)

    def drop(self, numbers: Sequence[int]) -> list[list[int]]:
        """Give up requests, under the lock; return those of each reader, for `abort`."""
        return [reader.drop(numbers) for reader in self._readers]

    def abort(self, dropped: Sequence[Sequence[int]]) -> None:
        """Abort what `drop` returned in the streams that have it; not under the lock."""
        for reader, numbers in zip(self._readers, dropped, strict=True):
            reader.abort(numbers)

    def close(self) -> None:
        error = SessionClosedError("the asynchronous session was closed meanwhile")
        with self.changed:
            self.is_closed = True
            waiting = {*self.callers, *(c for r in self._readers for c in r.running.values())}
            self.callers.clear()
            dropped = self.drop([number for call in waiting for number in call.in_flight])
            for call in waiting:
                call.fail(error)
            self.changed.notify_all()
        self.abort(dropped)
        for reader in self._readers:
            reader.join()

    def find_next(self) -> Call | None:
        """Return the call whose request is next, under the lock, if any may run.

        That is the one whose caller was given least; of equals, the one that has waited longest.
        """
        callers = self.callers = [call for call in self.callers if call.to_go]
        if self.slots is not None and time.perf_counter() < self._kept_until:
            running = chain.from_iterable(reader.running.items() for reader in self._readers)
            long = sum(call.find_cost(number) >= self._short for number, call in running)
            if long >= self.slots - 1:
                callers = [call for call in callers if call.costs[call.to_go[0]] < self._short]
        return min(callers, key=Call.rank, default=None)

    def take(self, call: Call) -> tuple[int, Request]:
        """Take a call's next request, under the lock; return its number in the session, and it."""
        now, number, index = time.perf_counter(), next(self.numbers), call.to_go.popleft()
        if call.costs[index] < self._short and now < self._kept_until:
            self._kept_until = now + _KEPT_S
        call.in_flight[number] = index
        call.taken[index] = now
        call.charge(index)
        if not call.to_go:
            self.callers.remove(call)
        return number, call.requests[index]

    def put_back(self, call: Call, numbers: Iterable[int]) -> None:
        """Let requests wait for another stream, before all others; under the lock."""
        indices = [call.in_flight.pop(number) for number in numbers]
        for index in indices:
            call.refund(index)
        call.to_go.extendleft(sorted(indices, reverse=True))
        if call.to_go and call not in self.callers:
            self.callers.insert(0, call)


def _find_slots(
    waiting: Iterable[Call], running: Mapping[int, Call], started: Sequence[int]
) -> dict[int, Call]:
    """Choose running requests to begin again later, each with the call that gets its slot."""
    now, given = time.perf_counter(), dict[int, Call]()
    longest = max((running[number].find_cost(number) for number in started), default=0.0)
    short = [call for call in waiting if LONGER * call.least_cost <= longest]
    for call in sorted(short, key=lambda call: (call.least_cost, call.since)):
        if call.is_due(now):
            longer = [n for n in started if n not in given and running[n].may_restart(n, call)]
            given.update(dict.fromkeys(longer[-1:], call))
    return given


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

    def drop(self, numbers: Iterable[int]) -> list[int]:
        """Give up those of these requests that are this reader's, under the lock; return them."""
        mine = [number for number in numbers if self.running.pop(number, None) is not None]
        self._is_given_up |= self._on_its_way in mine
        return mine

    def abort(self, numbers: Iterable[int]) -> None:
        """Abort requests in the stream; not under the lock."""
        if self._stream is not None:
            for number in numbers:
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
                dropped = channel.drop(self._end_round(error, is_refused=is_refused))
                self._changed.notify_all()
            channel.abort(dropped)

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
                        self._channel.settle(call, index, event)
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
                call = self._changed.wait_for(
                    lambda: channel.is_closed or self._round != round_number or channel.find_next(),
                    timeout=patience,
                )
                if not isinstance(call, Call):
                    return
                number, request = channel.take(call)
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
