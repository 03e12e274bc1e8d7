"""Assigns work to workers: their slots, what waits for one, and the search for a poison request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

from evalution.workers.jobs import CallJob, Job, PooledStream, StreamItem
from evalution.workers.wire import Abort, Call, End, Item, Message, Open, Ready, Worker
from evalution_core import EvalutionError

_DEFAULT_CAP = 16
_CRASHES_ALONE = 2
"""One crash alone may have another cause: a worker can be killed from outside."""
_CRASHES_WITHOUT_REQUEST = 5
"""Of a call that only asks about the session: it holds no poison, and its failure ends a run."""


class PoisonRequestFinder:
    """Jobs that were in flight when a worker or its session failed, each to be run again alone.

    A request that ends a worker or session twice, alone, is poisonous; all others are answered.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def report_crash(self, jobs: Sequence[Job]) -> Job | None:
        """Note that a worker ended while it ran just these; return the one that is poisonous."""
        wanted = [job for job in jobs if not job.is_dropped]
        if len(jobs) == 1 and wanted:
            job = wanted[0]
            job.crashes_alone += 1
            most = _CRASHES_ALONE if job.has_request else _CRASHES_WITHOUT_REQUEST
            if job.crashes_alone >= most:
                return job
        self._waiting.extend(wanted)
        return None

    def next(self) -> Job | None:
        """Return the job that has waited longest; None if there is none."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.is_dropped:
                return job
        return None

    def clear(self) -> list[Job]:
        """Give up all of them; return them."""
        left = list(self._waiting)
        self._waiting.clear()
        return left


class SlotState(Enum):
    BUILDING = auto()
    READY = auto()
    KILLING = auto()
    """Being killed: it hangs, or its session can't be trusted any more."""
    DOWN = auto()
    """Gone; another one will be started."""
    RETIRED = auto()
    """Gone for good."""


@dataclass(eq=False, slots=True)
class WorkerStream:
    """The part of a stream on one worker: one call of a continuous method there."""

    number: int
    stream: PooledStream
    cap: int
    waiting: set[int] = field(default_factory=set[int])
    """Numbers of items that were sent, and not yet taken by the session."""
    open: dict[int, StreamItem] = field(default_factory=dict[int, StreamItem])
    progressed: float = 0.0
    """Moment at which the session last took or answered one, or was seen at work on it."""
    is_ended: bool = False
    is_aborted: bool = False

    @property
    def has_room(self) -> bool:
        """True if fewer items wait than the session runs: a round trip is then no idle time."""
        return not self.is_ended and not self.is_aborted and len(self.waiting) < self.cap


@dataclass(eq=False, slots=True)
class WorkerSlot:
    """The place of one worker, and of the one after it. `since` is when its state began."""

    index: int
    state: SlotState = SlotState.DOWN
    since: float = 0.0
    heard: float = 0.0
    restart_at: float = 0.0
    fruitless_ends: int = 0
    """Workers that ended in a row without having answered anything."""
    worker: Worker | None = None
    ready: Ready | None = None
    in_flight: dict[int, Job] = field(default_factory=dict[int, Job])
    worker_streams: dict[int, WorkerStream] = field(default_factory=dict[int, WorkerStream])
    current: dict[PooledStream, WorkerStream] = field(
        default_factory=dict[PooledStream, WorkerStream]
    )
    is_probing: bool = False
    """It runs a suspected job and nothing else."""
    kill_reason: str = ""
    error: EvalutionError | None = None
    """The error of its last build."""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def takes_work(self) -> bool:
        return self.state is SlotState.READY and not self.is_probing

    def change(self, state: SlotState, now: float) -> None:
        self.state, self.since = state, now

    def empty(self) -> list[Job]:
        """Forget the worker; return the jobs it had in flight."""
        left = list(self.in_flight.values())
        self.in_flight.clear()
        self.worker_streams.clear()
        self.current.clear()
        self.is_probing = False
        self.worker = None
        return left

    def open_stream(self, stream: PooledStream, share: int | None) -> WorkerStream:
        preferred = self.ready.info.preferred_batch_size if self.ready else None
        worker_stream = WorkerStream(
            next(self._numbers), stream, share or preferred or _DEFAULT_CAP
        )
        self.worker_streams[worker_stream.number] = worker_stream
        self._send(Open(worker_stream.number, stream.kind, stream.deltas, share))
        return worker_stream

    def place(self, worker_stream: WorkerStream, item: StreamItem) -> None:
        self.in_flight[item.number] = item
        worker_stream.waiting.add(item.number)
        worker_stream.open[item.number] = item
        self._send(Item(worker_stream.number, item.number, item.payload))

    def call(self, job: CallJob) -> None:
        self.in_flight[job.number] = job
        self._send(Call(job.number, job.method, job.payload))

    def probe(self, job: Job, share: int | None) -> None:
        """Run a suspected job alone; an item of a stream gets a worker stream of its own."""
        self.is_probing = True
        if isinstance(job, StreamItem):
            worker_stream = self.open_stream(job.stream, share)
            self.place(worker_stream, job)
            self.end(worker_stream)
        elif isinstance(job, CallJob):
            self.call(job)

    def end(self, worker_stream: WorkerStream) -> None:
        if not worker_stream.is_ended:
            worker_stream.is_ended = True
            self._send(End(worker_stream.number))

    def abort(self, stream: PooledStream) -> None:
        for worker_stream in self.worker_streams.values():
            if worker_stream.stream is stream and not worker_stream.is_aborted:
                worker_stream.is_aborted = True
                self._send(Abort(worker_stream.number))

    def note_progress(self, numbers: Sequence[int], now: float) -> None:
        for number in numbers:
            if job := self.in_flight.get(number):
                job.is_running, job.started = job.started is not None, now
        for worker_stream in self.worker_streams.values():
            worker_stream.waiting.difference_update(numbers)
            if not worker_stream.open.keys().isdisjoint(numbers):
                worker_stream.progressed = now

    def is_late(self, now: float, limit: float) -> bool:
        """Return whether a job has had no progress for `limit` seconds.

        One that was taken and not seen at work since may wait in the session for those that are, so
        it isn't late while its stream goes on.
        """
        seen = {
            number: worker_stream.progressed
            for worker_stream in self.worker_streams.values()
            for number in worker_stream.open
        }
        for number, job in self.in_flight.items():
            other = 0.0 if job.is_running else seen.get(number, 0.0)
            if job.started is not None and now - max(job.started, other) > limit:
                return True
        return False

    def finish(self, number: int, now: float) -> Job | None:
        """Remove a job that has its last answer."""
        job = self.in_flight.pop(number, None)
        if isinstance(job, StreamItem):
            for worker_stream in self.worker_streams.values():
                if worker_stream.open.pop(number, None):
                    worker_stream.progressed = now
                worker_stream.waiting.discard(number)
        return job

    def close_stream(self, number: int) -> tuple[WorkerStream, list[StreamItem]]:
        """Remove a stream that the session has ended; return it with its unanswered items."""
        worker_stream = self.worker_streams.pop(number)
        if self.current.get(worker_stream.stream) is worker_stream:
            del self.current[worker_stream.stream]
        for left in worker_stream.open:
            self.in_flight.pop(left, None)
        return worker_stream, list(worker_stream.open.values())

    def _send(self, message: Message) -> None:
        assert self.worker is not None
        self.worker.send(message)


class Assignment:
    """Waiting jobs, and the slots they may go to; all under the scheduler's lock."""

    def __init__(self, workers: int):
        self.slots = [WorkerSlot(index) for index in range(workers)]
        self.calls: deque[CallJob] = deque()
        self.streams: dict[PooledStream, None] = {}
        self.poison = PoisonRequestFinder()

    def has_room(self, stream: PooledStream) -> bool:
        """True if another of the stream's items would go to a worker at once."""
        is_open = stream.takes_more and not stream.backlog
        return is_open and self._find_slot(stream) is not None

    def assign(self) -> None:
        """Hand out everything that a free worker can take."""
        for slot in self.slots:
            if slot.state is SlotState.READY and not slot.in_flight:
                self._probe(slot)
        while self.calls and (free := [slot for slot in self.slots if slot.takes_work]):
            min(free, key=lambda slot: len(slot.in_flight)).call(self.calls.popleft())
        for stream in self.streams:
            self.place_backlog(stream)
            stream.notify()

    def place_backlog(self, stream: PooledStream) -> None:
        """Hand out the stream's waiting items; end its worker streams after the last one."""
        while stream.backlog and (slot := self._find_slot(stream)) is not None:
            worker_stream = slot.current.get(stream)
            if worker_stream is None:
                share = None if stream.batch_size is None else self._compute_share(stream, slot)
                worker_stream = slot.current[stream] = slot.open_stream(stream, share)
            slot.place(worker_stream, stream.backlog.popleft())
            stream.place_on(slot)
        if stream.input_ended and not stream.backlog:
            for slot in self.slots:
                if worker_stream := slot.current.get(stream):
                    slot.end(worker_stream)

    def abort(self, stream: PooledStream) -> None:
        for slot in self.slots:
            slot.abort(stream)

    def holds_stream(self, stream: PooledStream) -> bool:
        """True if a worker still has requests of this stream."""
        return any(
            worker_stream.stream is stream
            for slot in self.slots
            for worker_stream in slot.worker_streams.values()
        )

    def _probe(self, slot: WorkerSlot) -> None:
        job = self.poison.next()
        slot.is_probing = job is not None
        if isinstance(job, StreamItem) and job.stream.batch_size is not None:
            slot.probe(job, max(1, self._compute_share(job.stream, slot)))
        elif job is not None:
            slot.probe(job, None)

    def _find_slot(self, stream: PooledStream) -> WorkerSlot | None:
        """Return the worker with the fewest of the stream's items that takes another.

        An item that was taken from the source is placed however much is unread: the reader wakes
        the thread that feeds, and no other.
        """
        best: WorkerSlot | None = None
        fewest = 0
        for slot in self.slots:
            worker_stream = slot.current.get(stream)
            if not slot.takes_work or (worker_stream is not None and not worker_stream.has_room):
                continue
            if stream.batch_size is not None and not self._compute_share(stream, slot):
                continue
            if stream.stays_on(slot):
                return slot
            load = len(worker_stream.open) if worker_stream else 0
            if best is None or load < fewest:
                best, fewest = slot, load
        return best

    def _compute_share(self, stream: PooledStream, slot: WorkerSlot) -> int:
        """Return how many of a capped stream's requests may run on this worker."""
        assert stream.batch_size is not None
        alive = [other for other in self.slots if other.state is not SlotState.RETIRED]
        rank = alive.index(slot)
        return stream.batch_size // len(alive) + (rank < stream.batch_size % len(alive))
