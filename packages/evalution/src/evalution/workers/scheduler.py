"""Gives requests to workers, one free for another that is busy, and loses none when one ends."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evalution.workers.assignment import Assignment
from evalution.workers.jobs import CallJob, Job, ListPart
from evalution.workers.parcel import unpack_error
from evalution.workers.request_stream import RequestStream, StreamItem
from evalution.workers.seats import Seat, SeatState
from evalution.workers.verdicts import build_error, failure_error, hopeless_error, poison_error
from evalution.workers.wire import (
    BuildFailed,
    CallFailed,
    Closed,
    LaneEnded,
    Message,
    Progressed,
    Pulled,
    Ready,
    Result,
)
from evalution.workers.worker import Ending, Worker
from evalution_core import EngineRuntimeError, EvalutionError, RequestFailure, SessionClosedError

_log = logging.getLogger(__name__)

_ABORT_WAIT_S = 10.0
"""How long closing a stream waits for the workers to let go; it normally takes one step."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How often in a row a worker may end, and the seconds before its second restart."""

    restarts: int
    backoff: float


class Scheduler:
    """All state of one session's workers, under one lock that is never held during a wait.

    What it doesn't do is wait for time to pass: `Supervision` does, and sets `now`.

    Args:
        workers: how many seats there are.
        limits: when a seat is given up.
        wake: called when a worker has to be started or killed.
    """

    def __init__(self, workers: int, limits: Limits, wake: Callable[[], None]):
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.now = 0.0
        self.is_up = False
        self.is_closing = False
        self.failure: EvalutionError | None = None
        self.close_errors: list[EvalutionError] = []
        self._assignment = Assignment(workers)
        self._limits = limits
        self._wake = wake
        self._here = threading.local()

    @property
    def seats(self) -> list[Seat]:
        return self._assignment.seats

    def ready_seats(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.state is SeatState.READY]

    @property
    def in_flight(self) -> int:
        """Requests that workers have not let go of."""
        with self.lock:
            jobs = [job for seat in self.seats for job in seat.in_flight.values()]
            return sum(job.weight for job in jobs if isinstance(job, StreamItem | ListPart))

    # what callers ask for

    def ensure_open(self) -> None:
        """Raise `SessionClosedError` after the end, or what ended everything before it."""
        if self.is_closing:
            raise SessionClosedError("the session is closed; build a new session")
        if self.failure is not None:
            raise EngineRuntimeError(str(self.failure)) from self.failure.__cause__

    def submit(self, job: CallJob, seat: Seat | None = None) -> None:
        """Run a call, on any worker or on that of one seat."""
        with self.lock:
            self.ensure_open()
            if seat is not None:
                seat.call(job, self.now)
            else:
                self._assignment.calls.append(job)
                self._assignment.assign(self.now)

    def open(self, stream: RequestStream) -> None:
        with self.lock:
            self.ensure_open()
            self._assignment.streams[stream] = None

    def wait_for_room(self, stream: RequestStream) -> bool:
        """Block until another item may be placed; False if the stream has ended meanwhile."""
        with self.lock:
            stream.wait_for(lambda: stream.has_ended or self._assignment.has_room(stream))
            return not stream.has_ended

    def place(self, stream: RequestStream, item: StreamItem) -> None:
        """Hand an item out as soon as a worker is free for it."""
        with self.lock:
            if not stream.has_ended:
                stream.add(item)
                self._assignment.place_backlog(stream)

    def end_input(self, stream: RequestStream, error: BaseException | None = None) -> None:
        """No item follows; `error` is what the input ended with."""
        with self.lock:
            stream.end_input(error)
            self._assignment.place_backlog(stream)

    def release(self, stream: RequestStream) -> None:
        """End a stream, and wait until the workers have let go of its requests."""
        with self.lock:
            stream.close()
            self._assignment.abort(stream)
            # A garbage collection on a worker's own thread can't wait for what that thread hears.
            timeout = 0.0 if getattr(self._here, "is_own", False) else _ABORT_WAIT_S
            is_free = stream.wait_for(lambda: not self._assignment.has_lanes(stream), timeout)
            if not is_free and timeout:
                _log.warning("workers still hold an aborted stream after %.0f s", timeout)
            self._assignment.streams.pop(stream, None)

    # what workers tell

    def received(self, seat: Seat, worker: Worker, messages: Sequence[Message]) -> None:
        values = [_value(message) for message in messages]
        self._here.is_own = True
        with self.lock:
            if seat.worker is not worker:
                return
            seat.heard = self.now
            for message, value in zip(messages, values, strict=True):
                self._apply(seat, message, value)
            if messages:
                self._assignment.assign(self.now)

    def ended(self, seat: Seat, worker: Worker, ending: Ending) -> None:
        self._here.is_own = True
        with self.lock:
            if seat.worker is not worker:
                return
            lost = seat.empty()
            seat.change(SeatState.DOWN, self.now)
            if self.is_closing:
                seat.change(SeatState.RETIRED, self.now)
            elif not self.is_up:
                self.fail(seat.error or build_error(ending))
            else:
                self._replay(lost, ending)
                self._retire_or_restart(seat, ending)
            self.changed.notify_all()
            self._assignment.assign(self.now)
            self._wake()

    def fail(self, error: EvalutionError) -> None:
        """Nothing can be answered any more; every later call raises this."""
        self.failure = self.failure or error
        self.shut_down(error)

    def shut_down(self, error: EvalutionError) -> None:
        """End everything that is open with `error`."""
        jobs: list[Job] = [*self._assignment.calls, *self._assignment.suspects.clear()]
        jobs += [job for seat in self.seats for job in seat.in_flight.values()]
        self._assignment.calls.clear()
        for stream in self._assignment.streams:
            stream.fail(error)
        for job in jobs:
            if isinstance(job, CallJob):
                job.fail(error)
        self.changed.notify_all()

    # within

    def _apply(self, seat: Seat, message: Message, value: Any) -> None:
        match message:
            case Result(number, _, is_last):
                seat.barren = 0
                job = seat.finish(number) if is_last else seat.in_flight.get(number)
                if job is not None:
                    job.started = self.now
                    job.deliver(value, is_last=is_last)
            case CallFailed(number):
                seat.barren = 0
                if job := seat.finish(number):
                    job.fail(value)
            case Pulled(number, total):
                if lane := seat.lanes.get(number):
                    lane.take(total, self.now)
            case Progressed(numbers):
                seat.note_progress(numbers, self.now)
            case LaneEnded(number, _, is_fatal):
                self._lane_ended(seat, number, value, is_fatal=is_fatal)
            case _:
                self._apply_state(seat, message, value)

    def _apply_state(self, seat: Seat, message: Message, value: Any) -> None:
        match message:
            case Ready(traits):
                seat.traits = traits
                seat.change(SeatState.READY, self.now)
                self.changed.notify_all()
            case BuildFailed():
                seat.error = value
            case Closed():
                if value is not None:
                    self.close_errors.append(value)
            case _:
                raise AssertionError(f"no message of a worker: {message!r}")

    def _lane_ended(
        self, seat: Seat, number: int, error: EvalutionError | None, *, is_fatal: bool
    ) -> None:
        lane, left = seat.close_lane(number)
        lane.stream.notify()
        if error is not None and is_fatal and left:
            self._session_failed(seat, left, error)
        elif error is not None:
            lane.stream.fail(error)
            self._assignment.abort(lane.stream)
        else:
            for item in left:
                item.fail(EngineRuntimeError("the session ended without an answer to this request"))

    def _session_failed(self, seat: Seat, lost: list[StreamItem], error: EvalutionError) -> None:
        """Its process lives: what was lost is run again there, until one request alone fails.

        That may be its own fault or the session's, so it gets a fresh worker for the second time.
        """
        for item in lost:
            item.restart()
        convicted = self._assignment.suspects.accuse(lost)
        for item in convicted:
            item.fail(failure_error(item, error))
        if len(lost) == 1 and not convicted and seat.state is SeatState.READY:
            seat.verdict = f"was ended, since its session failed: {error}"
            seat.change(SeatState.CONDEMNED, self.now)
            self._wake()

    def _replay(self, lost: list[Job], ending: Ending) -> None:
        for job in lost:
            job.restart()
        for job in self._assignment.suspects.accuse(lost):
            job.fail(poison_error(job, ending))

    def _retire_or_restart(self, seat: Seat, ending: Ending) -> None:
        seat.barren += 1
        if seat.barren <= self._limits.restarts:
            wait = self._limits.backoff * 2 ** (seat.barren - 2) if seat.barren > 1 else 0.0
            seat.restart_at = self.now + wait
            _log.warning("worker %d %s; another one is started", seat.index, ending.reason)
            return
        seat.change(SeatState.RETIRED, self.now)
        _log.warning("worker %d is given up: it %s", seat.index, seat.error or ending.reason)
        if all(other.state is SeatState.RETIRED for other in self.seats):
            self.fail(hopeless_error(seat.barren, ending, seat.error))


def _value(message: Message) -> Any:
    """What a message carries, unpickled."""
    match message:
        case Result(_, payload):
            try:
                return pickle.loads(payload)
            except Exception as error:  # noqa: BLE001 - what a runtime put into an answer
                text = f"the worker's answer can't be read: {type(error).__name__}: {error}"
                return RequestFailure(EngineRuntimeError(text))
        case LaneEnded(_, error) | BuildFailed(error) | Closed(error) | CallFailed(_, error):
            return None if error is None else unpack_error(error)
        case _:
            return None
