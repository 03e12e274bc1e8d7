"""The scheduler over workers that are played here: whatever ends, each request is answered once."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.workers import WorkerOptions
from evalution.workers.jobs import CallJob, call_job
from evalution.workers.parcel import pack_error
from evalution.workers.request_stream import RequestStream, StreamItem
from evalution.workers.seats import SeatState
from evalution.workers.supervision import Supervision
from evalution.workers.wire import (
    Abort,
    BuildFailed,
    Call,
    End,
    Item,
    LaneEnded,
    Message,
    Open,
    Pulled,
    Ready,
    Result,
    Traits,
)
from evalution.workers.worker import Ending, Listener
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    GenerationOutput,
    RequestFailure,
    SessionClosedError,
)

CAP = 3
TRAITS = Traits(frozenset(), None, CAP, False, None)


class PlayedLane:
    def __init__(self) -> None:
        self.items: list[Item] = []
        self.pulled = 0
        self.is_ended = False


class PlayedWorker:
    """Says and does nothing by itself: `step` reads what was sent and answers one request."""

    def __init__(self, play: Play):
        self.play = play
        self.inbox: list[Message] = []
        self.lanes: dict[int, PlayedLane] = {}
        self.calls: list[Call] = []
        self.given = 0
        self.is_gone = False

    def start(self, listener: Listener) -> None:
        self.listener = listener

    def send(self, *messages: Message) -> None:
        self.inbox += messages

    def kill(self, reason: str, *, with_stack: bool) -> None:
        self.end(reason)

    def end(self, reason: str) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.listener.ended(Ending(reason))

    @property
    def held(self) -> int:
        return sum(len(lane.items) for lane in self.lanes.values()) + len(self.calls)

    def read(self) -> None:
        for message in self.inbox:
            match message:
                case Open(lane=number):
                    self.lanes[number] = PlayedLane()
                case Item(lane=number):
                    self.lanes[number].items.append(message)
                    self.given += 1
                case End(lane=number):
                    self.lanes[number].is_ended = True
                case Abort(lane=number):
                    self.lanes[number].items.clear()
                    self.lanes[number].is_ended = True
                case Call():
                    self.calls.append(message)
                case _:
                    raise AssertionError(message)
        self.inbox.clear()

    def step(self, chance: random.Random) -> None:
        self.read()
        for number, lane in list(self.lanes.items()):
            running = lane.items[:CAP]
            if running:
                lane.pulled += 1
                self.listener.received([Pulled(number, lane.pulled)])
                if any(pickle.loads(item.payload) in self.play.poisons for item in running):
                    self.end("was ended by a poison")
                    return
                item = lane.items.pop(chance.randrange(len(running)))
                answer = GenerationOutput("", f"answer {pickle.loads(item.payload)}")
                self.listener.received([Result(item.number, pickle.dumps(answer))])
            elif lane.is_ended:
                del self.lanes[number]
                self.listener.received([LaneEnded(number)])
        for call in self.calls:
            self.listener.received([Result(call.number, pickle.dumps(call.method))])
        self.calls.clear()


class Play:
    """A scheduler, and time that passes when it is told to."""

    def __init__(self, workers: int, *, poisons: set[int] | None = None, restarts: int = 10_000):
        self.poisons = poisons or set()
        self.made: list[PlayedWorker] = []
        self.supervision = Supervision(
            workers, self._make, WorkerOptions(restarts=restarts, request_timeout=10.0)
        )
        self.scheduler = self.supervision.scheduler
        self.restart()
        self.scheduler.is_up = True

    def _make(self, index: int) -> PlayedWorker:
        self.made.append(PlayedWorker(self))
        return self.made[-1]

    def restart(self) -> None:
        down = [seat for seat in self.scheduler.seats if seat.state is SeatState.DOWN]
        self.scheduler.now = max([self.scheduler.now, *(seat.restart_at for seat in down)])
        self.supervision._start_workers()
        for seat in self.scheduler.seats:
            if seat.state is SeatState.BUILDING:
                self.worker(seat).listener.received([Ready(TRAITS)])

    def pass_time(self, seconds: float) -> None:
        self.scheduler.now += seconds
        self.supervision._kill_hung()

    def worker(self, seat: Any) -> PlayedWorker:
        assert isinstance(seat.worker, PlayedWorker)
        return seat.worker

    @property
    def alive(self) -> list[PlayedWorker]:
        return [self.worker(seat) for seat in self.scheduler.seats if seat.worker is not None]

    def stream(self, batch_size: int | None = None, run: int = 1) -> RequestStream:
        stream = RequestStream(
            self.scheduler.lock,
            "generate_continuous",
            batch_size=batch_size,
            unread_bound=10_000,
            run=run,
        )
        self.scheduler.open(stream)
        return stream

    def feed(self, stream: RequestStream, source: Iterator[int]) -> None:
        """Place what there is room for."""
        while not stream.input_ended and self.scheduler._assignment.has_room(stream):
            number = next(source, None)
            if number is None:
                self.scheduler.end_input(stream)
            else:
                item = StreamItem(pickle.dumps(number), stream=stream, key=number)
                self.scheduler.place(stream, item)


@given(
    st.integers(1, 3),
    st.sets(st.integers(0, 39), max_size=6),
    st.sampled_from([None, 1, 2, 7]),
    st.integers(0, 2**32),
)
def test_every_request_is_answered_once(
    workers: int, poisons: set[int], batch_size: int | None, seed: int
) -> None:
    chance = random.Random(seed)
    play = Play(workers, poisons=poisons)
    stream = play.stream(batch_size, run=chance.randint(1, 8))
    source = iter(range(40))
    for _ in range(10_000):
        play.feed(stream, source)
        if stream.input_ended and not stream._open:
            break
        if alive := play.alive:
            worker = chance.choice(alive)
            # A lone request whose worker ends twice is convicted, rightly or not.
            if worker.held > 1 and chance.random() < 0.1:
                worker.end("was killed from outside")
            else:
                worker.step(chance)
        play.restart()
    answers = list(stream.results())
    assert sorted(key for key, _ in answers) == list(range(40))
    failed = {key for key, answer in answers if isinstance(answer, RequestFailure)}
    assert failed == poisons
    assert all(a.text == f"answer {k}" for k, a in answers if k not in failed)


def test_work_goes_to_the_worker_that_is_free() -> None:
    play, chance = Play(2), random.Random(0)
    stream = play.stream()
    source = iter(range(100))
    busy, free = play.alive
    while not stream.input_ended:
        play.feed(stream, source)
        free.step(chance)
    busy.read()
    assert busy.given == CAP, "a worker that takes nothing is sent no more than waits for it"
    assert free.given == 100 - CAP


def test_a_cap_is_shared_out() -> None:
    play = Play(2)
    play.feed(play.stream(batch_size=3), iter(range(100)))
    for worker, share in zip(play.alive, (2, 1), strict=True):
        opened = [message for message in worker.inbox if isinstance(message, Open)]
        assert [message.batch_size for message in opened] == [share]


def test_neighbours_go_to_one_worker() -> None:
    play = Play(2)
    play.feed(play.stream(run=2), iter(range(4)))
    for worker, expected in zip(play.alive, ([0, 1], [2, 3]), strict=True):
        items = [m for m in worker.inbox if isinstance(m, Item)]
        assert [pickle.loads(item.payload) for item in items] == expected


def test_nothing_is_placed_while_too_much_is_unread() -> None:
    play, chance = Play(1), random.Random(0)
    stream = RequestStream(
        play.scheduler.lock, "generate_continuous", batch_size=2, unread_bound=2, run=1
    )
    play.scheduler.open(stream)
    source = iter(range(100))
    for _ in range(50):
        play.feed(stream, source)
        play.alive[0].step(chance)
    assert play.alive[0].given < 10
    results = stream.results()
    next(results)
    next(results)
    next(results)
    play.feed(stream, source)
    play.alive[0].read()
    assert next(source) < 20


def test_calls_are_answered_by_any_worker() -> None:
    play = Play(2)
    jobs = [call_job("identity") for _ in range(2)]
    for job in jobs:
        play.scheduler.submit(job)
    for worker in play.alive:
        worker.step(random.Random(0))
    assert [job.result.result(0) for job in jobs] == ["identity", "identity"]


def test_a_request_without_progress_ends_its_worker() -> None:
    play, chance = Play(1), random.Random(0)
    stream = play.stream()
    play.feed(stream, iter(range(2)))
    (first,) = play.made
    first.read()
    play.pass_time(11)
    assert not first.is_gone, "what waits for the session isn't late"
    first.listener.received([Pulled(0, 1)])
    play.pass_time(9)
    assert not first.is_gone
    play.pass_time(2)
    assert first.is_gone
    play.restart()
    play.alive[0].step(chance)


def test_a_silent_worker_is_ended() -> None:
    play = Play(1)
    play.pass_time(150)
    assert not play.made[0].is_gone
    play.made[0].listener.received([])
    play.pass_time(150)
    assert not play.made[0].is_gone
    play.pass_time(150)
    assert play.made[0].is_gone


def test_a_seat_is_given_up_and_then_the_session() -> None:
    play = Play(2, restarts=1)
    stream = play.stream()
    play.feed(stream, iter(range(100)))
    job: CallJob = call_job("identity")
    for _ in range(2):
        for worker in play.alive:
            worker.end("was killed by SIGKILL")
        play.supervision._start_workers()
        for worker in play.alive:
            error = pack_error(ConfigurationError("no such model"), "build")
            worker.listener.received([BuildFailed(error)])
            worker.end("exited with code 0")
        play.pass_time(1_000_000)
    with pytest.raises(EngineRuntimeError, match=r"2 times in a row.*no such model") as raised:
        list(stream.results())
    assert raised.value.in_flight
    with pytest.raises(EngineRuntimeError, match="2 times in a row"):
        play.scheduler.submit(job)


def test_restarts_in_a_row_wait_longer_and_longer() -> None:
    play = Play(1, restarts=4)
    waits: list[float] = []
    for _ in range(4):
        play.alive[0].end("was killed by SIGKILL")
        (seat,) = play.scheduler.seats
        waits.append(seat.restart_at - play.scheduler.now)
        play.restart()
    assert waits == [0.0, 0.5, 1.0, 2.0]


def test_an_error_of_the_session_itself_ends_the_stream() -> None:
    play = Play(2)
    stream = play.stream()
    play.feed(stream, iter(range(10)))
    first, second = play.alive
    second.read()
    error = pack_error(ConfigurationError("the self check failed"), "scoring")
    first.listener.received([LaneEnded(0, error)])
    with pytest.raises(ConfigurationError, match="the self check failed"):
        list(stream.results())
    assert Abort(0) in second.inbox


def test_a_session_that_drops_a_request_is_told_of() -> None:
    play = Play(1)
    stream = play.stream()
    play.feed(stream, iter(range(2)))
    play.alive[0].listener.received([LaneEnded(0)])
    for _, answer in stream.results():
        assert isinstance(answer, RequestFailure)
        assert "without an answer" in str(answer.error)


def test_closing_ends_what_is_open() -> None:
    play = Play(1)
    stream = play.stream()
    play.feed(stream, iter(range(100)))
    with play.scheduler.lock:
        play.scheduler.is_closing = True
        play.scheduler.shut_down(SessionClosedError("the session was closed meanwhile"))
    with pytest.raises(SessionClosedError, match="closed meanwhile"):
        list(stream.results())
