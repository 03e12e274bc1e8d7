"""The calls of tasks: their requests, and the events that reach them on their event loops."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from evalution_core import RequestFailure, TextDelta
from evalution_core.requests import Output, Request
from evalution_enginekit.fair_queue import Account, Caller

Event = TextDelta | Output | RequestFailure

_SLOT_WAIT_S = 0.02
"""Seconds that a call waits for a slot before a far longer one may have to give its own."""
LONGER = 8
"""Times that a request costs more than the one that takes its slot."""


class Place(Protocol):
    """The channel that a call waits in."""

    def leave(self, call: Call) -> None: ...
    def make_room(self) -> bool: ...


class Call:
    """The requests of one call, and the events that its caller has yet to read.

    `costs` are the estimates of the requests in tokens, `account` the caller's while the call is in
    the channel. `to_go` are the indices that wait for their turn, `in_flight` those in the session
    by their numbers there, `taken` the times at which it took them, `begun` those of which text has
    come, `restarted` those that gave their slot to a shorter one. They belong to the channel; the
    events belong to the caller's event loop. At the end of a `with`, the channel gives up what is
    not finished.
    """

    channel: Place | None = None
    account: Account | None = None

    def __init__(
        self,
        requests: Sequence[Request],
        outbox: Outbox,
        caller: Caller | None = None,
        costs: Sequence[float] | None = None,
    ):
        self.requests = requests
        self.caller: Caller = (self,) if caller is None else caller
        self.costs = costs or [1.0] * len(requests)
        self.least_cost = min(self.costs, default=0.0)
        self.most_cost = max(self.costs, default=0.0)
        self.since = time.perf_counter()
        self._patience = _SLOT_WAIT_S
        self._due = self.since + self._patience
        self.to_go = deque(range(len(requests)))
        self.in_flight: dict[int, int] = {}
        self.taken: dict[int, float] = {}
        self.begun: set[int] = set()
        self.restarted: set[int] = set()
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
            self._reader = self._outbox.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._events.popleft()
        if isinstance(event, BaseException):
            raise event
        return event

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *error: object) -> None:
        if self.channel is not None:
            self.channel.leave(self)

    def rank(self) -> tuple[float, ...]:
        """Return the place of the next request among those of other calls; the least is next."""
        assert self.account is not None
        return self.account.rank(self.costs[self.to_go[0]])

    def is_due(self, now: float) -> bool:
        """Report whether it waited long enough for a slot; if so, it then waits twice as long."""
        if now < self._due:
            return False
        self._patience *= 2
        self._due = now + self._patience
        return True

    def find_cost(self, number: int) -> float:
        """Return the cost of a request in the session."""
        return self.costs[self.in_flight[number]]

    def may_restart(self, number: int, by: Call) -> bool:
        """Report whether a running request may give its slot to the cheapest of another call."""
        index = self.in_flight[number]
        is_fresh = index not in self.begun | self.restarted
        is_longer = self.costs[index] >= LONGER * by.least_cost
        return is_longer and is_fresh and self.account is not by.account

    def charge(self, index: int) -> None:
        """Count a request that the session takes."""
        if self.account is not None:
            self.account.charge(self.costs[index])

    def refund(self, index: int, tokens: float | None = None) -> None:
        """Give back what a request wasn't given after all; None: its whole estimate."""
        if self.account is not None:
            self.account.correct(-(self.costs[index] if tokens is None else tokens))

    def fail(self, error: BaseException) -> None:
        self.to_go.clear()
        self.in_flight.clear()
        self.send(error)


class Outbox:
    """Events for the tasks of one event loop: all that wait are delivered in one turn of it.

    It also has the channels look, all in one turn, for calls that wait for a slot.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._watched: set[Place] = set()
        self._events: deque[tuple[Call, tuple[int, Event] | BaseException]] = deque()
        self._is_scheduled = False

    def send(self, call: Call, event: tuple[int, Event] | BaseException) -> None:
        self._events.append((call, event))
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waits
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        while self._events:
            call, event = self._events.popleft()
            call.put(event)

    def watch(self, channel: Place) -> None:
        """Have a channel make room for its calls as long as any waits; on the event loop."""
        if not self._watched:
            self.loop.call_later(_SLOT_WAIT_S, self._make_room)
        self._watched.add(channel)

    def _make_room(self) -> None:
        self._watched = {channel for channel in self._watched if channel.make_room()}
        if self._watched:
            self.loop.call_later(_SLOT_WAIT_S, self._make_room)
