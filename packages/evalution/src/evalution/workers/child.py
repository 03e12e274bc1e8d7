"""In the worker: the session, built of a pickled engine and model."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import spawn
from typing import Any, cast

from evalution.runs.rolling import rolling_continuous
from evalution.workers.process import StackDumps, kill_tree
from evalution.workers.wire import (
    PROTOCOL,
    Abort,
    BuildFailed,
    Call,
    CallFailed,
    Channel,
    Close,
    Closed,
    End,
    Item,
    LaneEnded,
    Message,
    Open,
    Outbox,
    Ready,
    Result,
    Start,
    Traits,
    pack_error,
)
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    EvalutionError,
    HasMaxModelLen,
    HasPreferredBatchSize,
    HasTokenizer,
    Model,
    RequestFailure,
    SpecialTokens,
    TextDelta,
    hide,
)


def constructed(engine: bytes, model: bytes) -> tuple[BaseInferenceSession, frozenset[Capability]]:
    """The session, and what its engine declares.

    The pickles come from the program that started this worker, and from nowhere else.
    """
    source, weights = pickle.loads(engine), pickle.loads(model)
    assert isinstance(source, BaseEngine)
    hide(source)  # unpickled, they were not made here: a message may hold their keys
    hide(weights)
    assert isinstance(weights, Model)
    session = source.build(weights)
    if not isinstance(session, BaseInferenceSession):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EngineRuntimeError(f"build() must return a BaseInferenceSession, got {session!r}")
    return session, source.capabilities


Events = Iterator[tuple[int, Any]]


class Service:
    """Serves one session to the parent's messages; answers go into the outbox."""

    def __init__(
        self, session: BaseInferenceSession, declared: frozenset[Capability], outbox: Outbox
    ):
        self._session = session
        self._declared = declared
        self._outbox = outbox
        self._lanes: dict[int, _Lane] = {}

    def traits(self) -> Traits:
        session = self._session
        tokenizer = session.tokenizer if isinstance(session, HasTokenizer) else None
        special = None
        if isinstance(tokenizer, SpecialTokens):
            special = (tuple(tokenizer.leading_ids), tokenizer.bos_id, tokenizer.eos_id)
        preferred = isinstance(session, HasPreferredBatchSize)
        return Traits(
            self._capabilities,
            session.max_model_len if isinstance(session, HasMaxModelLen) else None,
            session.preferred_batch_size if preferred else None,
            tokenizer is not None,
            special,
        )

    @property
    def _capabilities(self) -> frozenset[Capability]:
        narrowed = self._session.capabilities
        return self._declared if narrowed is None else narrowed

    def handle(self, message: Message) -> None:
        match message:
            case Item(lane=number):
                if lane := self._lanes.get(number):
                    lane.put(message)
            case Open(lane=number, method=method, batch_size=batch_size):
                lane = _Lane(number, self._method(method), method, batch_size, self._outbox)
                self._lanes[number] = lane
                _start(lambda: self._run(lane), f"{method} {number}")
            case End(lane=number):
                if lane := self._lanes.get(number):
                    lane.end()
            case Abort(lane=number):
                if lane := self._lanes.get(number):
                    lane.abort()
            case Call():
                _start(lambda: self._call(message), f"call {message.method}")
            case _:
                raise AssertionError(f"no message for a worker: {message!r}")

    def close(self) -> bytes | None:
        """Close the session; its error, packed."""
        try:
            self._session.close()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            return pack_error(error, "close")
        return None

    def _run(self, lane: _Lane) -> None:
        lane.run()
        del self._lanes[lane.number]

    def _method(self, name: str) -> Callable[..., Events]:
        session = self._session
        if name == "loglikelihood_rolling":
            return cast("Callable[..., Events]", partial(rolling_continuous, session))
        if name == "generate_continuous" and Capability.STREAM in self._capabilities:
            # Its deltas show that a request goes on, and let an abort through at every token.
            name = "stream"
        return getattr(session, name)

    def _call(self, call: Call) -> None:
        try:
            payload = pickle.dumps(self._called(call), PROTOCOL)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            self._outbox.put(CallFailed(call.number, pack_error(error, call.method)))
        else:
            self._outbox.put(Result(call.number, payload))

    def _called(self, call: Call) -> Any:
        arguments, options = pickle.loads(call.payload)
        if call.method in ("encode", "decode"):
            assert isinstance(self._session, HasTokenizer)
            return getattr(self._session.tokenizer, call.method)(*arguments, **options)
        return getattr(self._session, call.method)(*arguments, **options)


class _Lane:
    """One open stream of the session, from its first item until the session is rid of it."""

    def __init__(
        self,
        number: int,
        method: Callable[..., Events],
        name: str,
        batch_size: int | None,
        outbox: Outbox,
    ):
        self.number = number
        self._method = method
        self._shows_deltas = name == "stream"
        self._name = name
        self._batch_size = batch_size
        self._outbox = outbox
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._waiting: set[int] = set()
        self._aborted = threading.Event()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def end(self) -> None:
        self._items.put(None)

    def abort(self) -> None:
        self._aborted.set()
        self._items.put(None)

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            lost = isinstance(error, EngineRuntimeError) and bool(error.in_flight)
            is_fatal = lost or not isinstance(error, EvalutionError)
            self._outbox.put(LaneEnded(self.number, pack_error(error, self._name), is_fatal))
        else:
            self._outbox.put(LaneEnded(self.number))

    def _run(self) -> None:
        events = self._method(self._requests(), batch_size=self._batch_size)
        try:
            for number, outcome in events:
                if self._aborted.is_set():
                    return
                self._answer(number, outcome)
        finally:
            if close := getattr(events, "close", None):
                close()

    def _requests(self) -> Iterator[tuple[int, Any]]:
        while (item := self._items.get()) is not None and not self._aborted.is_set():
            self._outbox.note_pulled(self.number)
            self._waiting.add(item.number)
            yield item.number, pickle.loads(item.payload)

    def _answer(self, number: int, outcome: Any) -> None:
        if number not in self._waiting:
            # Its row is out of reach here, and may have a score by now that is worth nothing.
            raise EngineRuntimeError(
                f"{self._name}: the session answered a request twice, or one that it was not asked"
            )
        is_delta = isinstance(outcome, TextDelta)
        if not is_delta:
            self._waiting.remove(number)
        if is_delta and not self._shows_deltas:
            self._outbox.note_progress(number)
            return
        try:
            payload = pickle.dumps(outcome, PROTOCOL)
        except Exception as error:  # noqa: BLE001 - a foreign object in it may raise anything
            text = f"the answer can't be sent from the worker: {type(error).__name__}: {error}"
            payload = pickle.dumps(RequestFailure(EngineRuntimeError(text)), PROTOCOL)
        self._outbox.put(Result(number, payload, is_last=not is_delta))


def _start(function: Callable[[], None], name: str) -> None:
    threading.Thread(target=function, name=f"evalution worker {name}", daemon=True).start()


_FLUSH_S = 10.0


def main() -> None:
    """Serve until the parent says `Close` or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _own_channel()
    (start,) = channel.receive()
    assert isinstance(start, Start)
    dumps = StackDumps(start.stack_file)
    if start.cores is not None and sys.platform == "linux":
        os.sched_setaffinity(0, start.cores)
    outbox = Outbox(channel, "evalution worker sender")
    try:
        try:
            session, declared = _build(start)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            outbox.put(BuildFailed(pack_error(error, "building the session")))
            outbox.flush(_FLUSH_S)
            return
        dumps.listen()
        threading.Thread(
            target=_live, args=(outbox, dumps, start), name="evalution worker life", daemon=True
        ).start()
        service = Service(session, declared, outbox)
        outbox.put(Ready(service.traits()))
        _serve(channel, service, outbox)
    except EOFError:
        # Nobody waits for an answer, and what runs may hold a device.
        kill_tree(os.getpid(), start.mark)


def _own_channel() -> Channel:
    """The pipe, taken away from whatever reads standard input or prints."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return Channel(incoming, outgoing)


def _build(start: Start) -> tuple[BaseInferenceSession, frozenset[Capability]]:
    if start.main:
        spawn.prepare(start.main)
    return constructed(start.engine, start.model)


def _live(outbox: Outbox, dumps: StackDumps, start: Start) -> None:
    """Beat: tell the parent, and put off the end that a process without a beat comes to.

    The process ends with its parent.
    """
    pause = threading.Event()
    while True:
        if sys.platform != "win32" and os.getppid() != start.parent:
            # The pipe may be held open by some other child of the parent's.
            kill_tree(os.getpid(), start.mark)
        outbox.beat()
        if start.silence is not None:
            dumps.expect_life(start.silence)
        pause.wait(start.beat)


def _serve(channel: Channel, service: Service, outbox: Outbox) -> None:
    while True:
        for message in channel.receive():
            if isinstance(message, Close):
                outbox.put(Closed(service.close()))
                outbox.flush(_FLUSH_S)
                return
            service.handle(message)
