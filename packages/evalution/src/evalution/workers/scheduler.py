"""The places of workers: what each has been given, and what its session has taken of it."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

from evalution.workers.jobs import CallJob, Job, ListPart, RequestStream, StreamItem
from evalution.workers.poison import (
    Suspects,
    build_error,
    failure_error,
    hopeless_error,
    poison_error,
)
from evalution.workers.wire import (
    Abort,
    BuildFailed,
    Call,
    CallFailed,
    Closed,
    End,
    Ending,
    Item,
    LaneEnded,
    Message,
    Open,
    Progressed,
    Pulled,
    Ready,
    Result,
    Traits,
    Worker,
    unpack_error,
)
from evalution_core import EngineRuntimeError, EvalutionError, RequestFailure, SessionClosedError

_DEFAULT_CAP = 16


class SeatState(Enum):
    BUILDING = auto()
    READY = auto()
    CONDEMNED = auto()
    """To be killed: it hangs, or its session can't be trusted any more."""
    DOWN = auto()
    """Gone; another one is to be started."""
    RETIRED = auto()
    """Gone for good."""


@dataclass(eq=False, slots=True)
class Lane:
    """A stream's part on one worker: one call of a continuous method there."""

    number: int
    stream: RequestStream
    cap: int
    waiting: deque[StreamItem] = field(default_factory=deque[StreamItem])
    """Sent, and not yet taken by the session."""
    open: dict[int, StreamItem] = field(default_factory=dict[int, StreamItem])
    pulled: int = 0
    is_ended: bool = False
    is_aborted: bool = False

    def take(self, total: int, now: float) -> None:
        """The session has taken `total` items so far."""
        while self.pulled < total:
            self.pulled += 1
            self.waiting.popleft().started = now

    @property
    def has_room(self) -> bool:
        """As many items wait for the session as it runs: so a round trip is no idle time."""
        return not self.is_ended and not self.is_aborted and len(self.waiting) < self.cap


@dataclass(eq=False, slots=True)
class Seat:
    """Where a worker runs, and another after it. `since` is when its state began."""

    index: int
    state: SeatState = SeatState.DOWN
    since: float = 0.0
    heard: float = 0.0
    restart_at: float = 0.0
    barren: int = 0
    """Workers that ended in a row without having answered anything."""
    worker: Worker | None = None
    traits: Traits | None = None
    in_flight: dict[int, Job] = field(default_factory=dict[int, Job])
    lanes: dict[int, Lane] = field(default_factory=dict[int, Lane])
    of_stream: dict[RequestStream, Lane] = field(default_factory=dict[RequestStream, Lane])
    is_probing: bool = False
    """It runs a group of suspects and nothing else."""
    verdict: str = ""
    """Why it is condemned."""
    error: EvalutionError | None = None
    """What its last build failed with."""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def takes_work(self) -> bool:
        return self.state is SeatState.READY and not self.is_probing

    def change(self, state: SeatState, now: float) -> None:
        self.state, self.since = state, now

    def empty(self) -> list[Job]:
        """Forget the worker; returns what it had in flight."""
        left = list(self.in_flight.values())
        self.in_flight.clear()
        self.lanes.clear()
        self.of_stream.clear()
        self.is_probing = False
        self.worker = None
        return left

    def open_lane(self, stream: RequestStream, share: int | None) -> Lane:
        preferred = self.traits.preferred_batch_size if self.traits else None
        lane = Lane(next(self._numbers), stream, share or preferred or _DEFAULT_CAP)
        self.lanes[lane.number] = lane
        self._send(Open(lane.number, stream.method, share))
        return lane

    def place(self, lane: Lane, item: StreamItem) -> None:
        self.in_flight[item.number] = item
        lane.waiting.append(item)
        lane.open[item.number] = item
        self._send(Item(lane.number, item.number, item.payload))

    def call(self, job: CallJob, now: float) -> None:
        if isinstance(job, ListPart):
            job.started = now
        self.in_flight[job.number] = job
        self._send(Call(job.number, job.method, job.payload))

    def probe(
        self, group: Sequence[Job], shares: dict[RequestStream, int | None], now: float
    ) -> None:
        """Run a group of suspects; streams' items in lanes of their own, which end with them."""
        self.is_probing = True
        lanes: dict[RequestStream, Lane] = {}
        for job in group:
            if isinstance(job, StreamItem):
                if job.stream not in lanes:
                    lanes[job.stream] = self.open_lane(job.stream, shares[job.stream])
                self.place(lanes[job.stream], job)
            elif isinstance(job, CallJob):
                self.call(job, now)
        for lane in lanes.values():
            self.end(lane)

    def end(self, lane: Lane) -> None:
        if not lane.is_ended:
            lane.is_ended = True
            self._send(End(lane.number))

    def abort(self, stream: RequestStream) -> None:
        for lane in self.lanes.values():
            if lane.stream is stream and not lane.is_aborted:
                lane.is_aborted = True
                self._send(Abort(lane.number))

    def note_progress(self, numbers: Sequence[int], now: float) -> None:
        for number in numbers:
            if job := self.in_flight.get(number):
                job.started = now

    def finish(self, number: int) -> Job | None:
        """Take a job off that has its last answer."""
        job = self.in_flight.pop(number, None)
        if isinstance(job, StreamItem):
            for lane in self.lanes.values():
                lane.open.pop(number, None)
        return job

    def close_lane(self, number: int) -> tuple[Lane, list[StreamItem]]:
        """The session is rid of the lane; returns it with the items that have no answer."""
        lane = self.lanes.pop(number)
        if self.of_stream.get(lane.stream) is lane:
            del self.of_stream[lane.stream]
        for left in lane.open:
            self.in_flight.pop(left, None)
        return lane, list(lane.open.values())

    def _send(self, message: Message) -> None:
        assert self.worker is not None
        self.worker.send(message)


class Assignment:
    """What waits for a worker, and the seats it may go to; all under the scheduler's lock."""

    def __init__(self, workers: int):
        self.seats = [Seat(index) for index in range(workers)]
        self.calls: deque[CallJob] = deque()
        self.streams: dict[RequestStream, None] = {}
        self.suspects: Suspects[Any] = Suspects()

    def has_room(self, stream: RequestStream) -> bool:
        """Whether another of the stream's items would go to a worker at once."""
        return not stream.backlog and self._seat_for(stream) is not None

    def assign(self, now: float) -> None:
        """Hand out all that there is a free worker for."""
        for seat in self.seats:
            if seat.state is SeatState.READY and not seat.in_flight:
                self._probe(seat, now)
        while self.calls and (free := [seat for seat in self.seats if seat.takes_work]):
            min(free, key=lambda seat: len(seat.in_flight)).call(self.calls.popleft(), now)
        for stream in self.streams:
            self.place_backlog(stream)
            stream.notify()

    def place_backlog(self, stream: RequestStream) -> None:
        """Hand out the stream's waiting items; after the last one, the sessions are told so."""
        while stream.backlog and (seat := self._seat_for(stream)) is not None:
            lane = seat.of_stream.get(stream)
            if lane is None:
                share = None if stream.batch_size is None else self._share(stream, seat)
                lane = seat.of_stream[stream] = seat.open_lane(stream, share)
            seat.place(lane, stream.backlog.popleft())
            stream.placed_on(seat)
        if stream.input_ended and not stream.backlog:
            for seat in self.seats:
                if lane := seat.of_stream.get(stream):
                    seat.end(lane)

    def abort(self, stream: RequestStream) -> None:
        for seat in self.seats:
            seat.abort(stream)

    def has_lanes(self, stream: RequestStream) -> bool:
        """Whether a worker is still at it."""
        return any(lane.stream is stream for seat in self.seats for lane in seat.lanes.values())

    def _probe(self, seat: Seat, now: float) -> None:
        seat.is_probing = False
        group = self.suspects.next_group()
        if group is not None:
            streams = {job.stream for job in group if isinstance(job, StreamItem)}
            shares = {
                stream: None if stream.batch_size is None else max(1, self._share(stream, seat))
                for stream in streams
            }
            seat.probe(group, shares, now)

    def _seat_for(self, stream: RequestStream) -> Seat | None:
        """The worker with the fewest of the stream's items that takes another."""
        if not stream.takes_more:
            return None
        best: Seat | None = None
        fewest = 0
        for seat in self.seats:
            lane = seat.of_stream.get(stream)
            if not seat.takes_work or (lane is not None and not lane.has_room):
                continue
            if stream.batch_size is not None and not self._share(stream, seat):
                continue
            if stream.stays_on(seat):
                return seat
            load = len(lane.open) if lane else 0
            if best is None or load < fewest:
                best, fewest = seat, load
        return best

    def _share(self, stream: RequestStream, seat: Seat) -> int:
        """How many of a capped stream's requests may run on this worker."""
        assert stream.batch_size is not None
        alive = [other for other in self.seats if other.state is not SeatState.RETIRED]
        rank = alive.index(seat)
        return stream.batch_size // len(alive) + (rank < stream.batch_size % len(alive))


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
