"""Supervised sessions over the engines of `worker_engines`, and the processes behind them."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from evalution.workers import SupervisedSession, WorkerOptions, build_supervised
from evalution.workers.assignment import SlotState
from evalution.workers.jobs import PooledStream, StreamItem
from evalution.workers.supervision import Supervision
from evalution.workers.wire import (
    Abort,
    Call,
    End,
    Item,
    Message,
    Open,
    Progressed,
    Ready,
    Result,
    StreamEnded,
    WorkerExit,
    WorkerListener,
)
from evalution_core import (
    GenerationOutput,
    Model,
    SessionInfo,
)
from evalution_core.kinds import RequestKind

HERE = Path(__file__).parent
MODEL = Model("mock")
WAIT_S = 60

Build = Callable[..., SupervisedSession]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of engines; workers take over this process's path, and so can import it too."""
    monkeypatch.syspath_prepend(HERE)
    return import_module("worker_engines")


@pytest.fixture
def build(engines: Any) -> Iterator[Build]:
    built: list[SupervisedSession] = []

    def start(engine: Any, workers: int = 1, **options: Any) -> SupervisedSession:
        session = build_supervised(engine, MODEL, workers=workers, options=WorkerOptions(**options))
        built.append(session)
        return session

    yield start
    for session in built:
        session.close()


class Processes:
    """What becomes of processes, of which few are children of this one."""

    def builders(self, folder: Path) -> list[int]:
        """Those that built a session and wrote their ids there."""
        return [int(path.name) for path in folder.iterdir()]

    def are_running(self, *pids: int) -> list[int]:
        """Those of them that are alive."""
        return [pid for pid in pids if _is_running(pid)]

    def wait_until_gone(self, *pids: int) -> None:
        patience = threading.Event()
        for _ in range(WAIT_S * 50):
            if not self.are_running(*pids):
                return
            patience.wait(0.02)
        raise AssertionError(f"still running: {self.are_running(*pids)}")


@pytest.fixture
def processes() -> Processes:
    return Processes()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


CAP = 3
INFO = SessionInfo(frozenset(), None, CAP)


class PlayedStream:
    def __init__(self) -> None:
        self.items: list[Item] = []
        self.is_ended = False


class PlayedWorker:
    """Says and does nothing by itself: `step` reads what was sent and answers one request."""

    def __init__(self, play: Play):
        self.play = play
        self.inbox: list[Message] = []
        self.worker_streams: dict[int, PlayedStream] = {}
        self.calls: list[Call] = []
        self.given = 0
        self.is_gone = False

    def start(self, listener: WorkerListener) -> None:
        self.listener = listener

    def send(self, *messages: Message) -> None:
        self.inbox += messages

    def kill(self, reason: str, *, with_stack: bool) -> None:
        self.end(reason)

    def end(self, reason: str) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.listener.ended(WorkerExit(reason))

    @property
    def held(self) -> int:
        return sum(
            len(worker_stream.items) for worker_stream in self.worker_streams.values()
        ) + len(self.calls)

    def read(self) -> None:
        for message in self.inbox:
            match message:
                case Open(stream=number):
                    self.worker_streams[number] = PlayedStream()
                case Item(stream=number):
                    self.worker_streams[number].items.append(message)
                    self.given += 1
                case End(stream=number):
                    self.worker_streams[number].is_ended = True
                case Abort(stream=number):
                    self.worker_streams[number].items.clear()
                    self.worker_streams[number].is_ended = True
                case Call():
                    self.calls.append(message)
                case _:
                    raise AssertionError(message)
        self.inbox.clear()

    def step(self, chance: random.Random) -> None:
        self.read()
        for number, worker_stream in list(self.worker_streams.items()):
            running = worker_stream.items[:CAP]
            if running:
                self.listener.received([Progressed((running[-1].number,))])
                if any(pickle.loads(item.payload) in self.play.poisons for item in running):
                    self.end("was ended by a poison")
                    return
                item = worker_stream.items.pop(chance.randrange(len(running)))
                answer = GenerationOutput("", f"answer {pickle.loads(item.payload)}")
                self.listener.received([Result(item.number, pickle.dumps(answer))])
            elif worker_stream.is_ended:
                del self.worker_streams[number]
                self.listener.received([StreamEnded(number)])
        for call in self.calls:
            self.listener.received([Result(call.number, pickle.dumps(call.method))])
        self.calls.clear()


class Play:
    """A scheduler, and time that passes on request; `cap` is what a worker prefers."""

    cap = CAP

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
        down = [slot for slot in self.scheduler.slots if slot.state is SlotState.DOWN]
        self.scheduler.now = max([self.scheduler.now, *(slot.restart_at for slot in down)])
        self.supervision._start_workers()
        for slot in self.scheduler.slots:
            if slot.state is SlotState.BUILDING:
                self.worker(slot).listener.received([Ready(INFO, None)])

    def pass_time(self, seconds: float) -> None:
        self.scheduler.now += seconds
        self.supervision._kill_hung()

    def worker(self, slot: Any) -> PlayedWorker:
        assert isinstance(slot.worker, PlayedWorker)
        return slot.worker

    @property
    def alive(self) -> list[PlayedWorker]:
        return [self.worker(slot) for slot in self.scheduler.slots if slot.worker is not None]

    def stream(self, batch_size: int | None = None, run: int = 1) -> PooledStream:
        stream = PooledStream(
            self.scheduler.lock,
            RequestKind.GENERATION,
            batch_size=batch_size,
            unread_bound=10_000,
            run=run,
        )
        self.scheduler.open(stream)
        return stream

    def feed(self, stream: PooledStream, source: Iterator[int]) -> None:
        """Place what there is room for."""
        while not stream.input_ended and self.scheduler._assignment.has_room(stream):
            number = next(source, None)
            if number is None:
                self.scheduler.end_input(stream)
            else:
                item = StreamItem(pickle.dumps(number), stream=stream, key=number)
                self.scheduler.place(stream, item)


@pytest.fixture(scope="session")
def stage() -> type[Play]:
    return Play
