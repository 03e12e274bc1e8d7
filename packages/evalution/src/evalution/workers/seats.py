"""The places of workers: what each has been given, and what its session has taken of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

from evalution.workers.jobs import CallJob, Job, ListPart
from evalution.workers.request_stream import RequestStream, StreamItem
from evalution.workers.wire import Abort, Call, End, Item, Message, Open, Traits
from evalution.workers.worker import Worker
from evalution_core import EvalutionError

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
