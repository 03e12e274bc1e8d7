"""The worker process: builds a session from a pickled engine and serves it to its parent.

The child is a fresh interpreter, never a fork. Its pipe takes the place of standard input and
output; what the engine prints goes to standard error. It has a process group of its own and ignores
Ctrl-C, which its parent handles. When the pipe ends, for whatever reason, so does the process, with
all that it has started. Each call and each stream of the session runs on a thread of its own.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import spawn
from pathlib import Path
from typing import Any, TextIO

from evalution.environment import Environment, make_tokenizer_record, read_environment
from evalution.journal.records import list_decisive
from evalution.redaction import register_secrets
from evalution.workers.jobs import Event
from evalution.workers.process import MARK, PACKAGES, kill_tree, read_versions
from evalution.workers.rows import RowServer
from evalution.workers.wire import (
    ANSWERER,
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
    Message,
    Open,
    Outbox,
    Ready,
    Result,
    Start,
    StreamEnded,
    pack_error,
)
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    EngineSpec,
    EvalutionError,
    Model,
    RequestFailure,
    TextDelta,
    load_engine,
)
from evalution_core.kinds import RequestKind
from evalution_core.requests import Request
from evalution_core.streams import open_stream

Events = Iterator[tuple[int, Event]]


def build_session(engine: bytes, model: bytes) -> BaseInferenceSession:
    """Build the session of a pickled engine, or its name and options, and of a pickled model.

    The pickles come from the program that started this worker, and from nowhere else.
    """
    source, weights = _unpack_engine(engine), pickle.loads(model)
    assert isinstance(weights, Model)
    register_secrets(source)
    register_secrets(weights)
    session = source.build(weights)
    if not isinstance(session, BaseInferenceSession):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EngineRuntimeError(f"build() must return a BaseInferenceSession, got {session!r}")
    return session


def _unpack_engine(packed: bytes) -> BaseEngine:
    source = pickle.loads(packed)
    if isinstance(source, EngineSpec):
        return load_engine(source.kind).from_options(source.params)
    assert isinstance(source, BaseEngine)
    return source


def describe_environment(packed: bytes) -> Environment:
    """Return the software that a pickled engine runs on here."""
    return read_environment(_unpack_engine(packed))


class Service:
    """Serves one session to the parent's messages; answers go into the outbox."""

    def __init__(self, session: BaseInferenceSession, outbox: Outbox):
        self._session = session
        self._outbox = outbox
        self._streams: dict[int, _OpenStream] = {}
        self._rows = RowServer(session)
        self._row_calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        # All on one thread: a generator of the session may keep a state of the runtime's for it.
        _start_thread(self._serve_rows, "distributions")

    def describe(self) -> Ready:
        """Return the facts about the session that its callers need from the start."""
        tokenizer = self._session.tokenizer
        special_ids = None
        if tokenizer is not None:
            special_ids = (tuple(tokenizer.leading_ids), tokenizer.bos_id, tokenizer.eos_id)
        return Ready(self._session.info, special_ids)

    def handle(self, message: Message) -> None:
        match message:
            case Item(stream=number):
                if stream := self._streams.get(number):
                    stream.put(message)
            case Open(stream=number, kind=kind):
                stream = _OpenStream(message, self._find_call(kind, message.deltas), self._outbox)
                self._streams[number] = stream
                _start_thread(partial(self._run, stream), f"{kind.continuous_call} {number}")
            case End(stream=number):
                if stream := self._streams.get(number):
                    stream.end()
            case Abort(stream=number):
                if stream := self._streams.get(number):
                    stream.abort()
            case Call(method="read_rows" | "close_rows"):
                self._row_calls.put(message)
            case Call():
                _start_thread(partial(self._call, message), f"call {message.method}")
            case _:
                raise AssertionError(f"no message for a worker: {message!r}")

    def close(self) -> bytes | None:
        """Close the session; return its error, packed."""
        try:
            self._session.close()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            return pack_error(error, "close")
        return None

    def _run(self, stream: _OpenStream) -> None:
        stream.run()
        del self._streams[stream.number]

    def _find_call(self, kind: RequestKind, deltas: bool) -> Callable[..., Events]:
        if kind is RequestKind.GENERATION and Capability.STREAM in self._session.capabilities:
            # Its deltas show progress, and let an abort through at every token.
            deltas = True
        return getattr(self._session, "stream" if deltas else kind.continuous_call)

    def _serve_rows(self) -> None:
        while True:
            self._call(self._row_calls.get())

    def _call(self, call: Call) -> None:
        buffers: list[pickle.PickleBuffer] = []
        try:
            payload = pickle.dumps(self._invoke(call), PROTOCOL, buffer_callback=buffers.append)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            self._outbox.put(CallFailed(call.number, pack_error(error, call.method)))
        else:
            self._outbox.put(Result(call.number, payload, buffers=buffers))

    def _invoke(self, call: Call) -> Any:
        arguments, options = pickle.loads(call.payload)
        if call.method == "read_rows":
            self._outbox.note_progress(call.number, at_once=True)
            return self._rows.read(*arguments)
        if call.method == "close_rows":
            return self._rows.close(*arguments)
        if call.method == ANSWERER:
            execution = list_decisive(self._session.describe_execution())
            return {"identity": self._session.identity(), "execution": execution}
        if call.method == make_tokenizer_record.__name__:
            return make_tokenizer_record(self._session)
        if call.method in ("encode", "decode"):
            assert self._session.tokenizer is not None
            return getattr(self._session.tokenizer, call.method)(*arguments, **options)
        return getattr(self._session, call.method)(*arguments, **options)


class _OpenStream:
    """One open stream of the session, from its first item until the session has ended it."""

    def __init__(self, opened: Open, call: Callable[..., Events], outbox: Outbox):
        self.number = opened.stream
        self._call = call
        self._shows_deltas = opened.deltas
        self._name = "stream" if opened.deltas else opened.kind.continuous_call
        self._batch_size = opened.batch_size
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
            self._outbox.put(StreamEnded(self.number, pack_error(error, self._name), is_fatal))
        else:
            self._outbox.put(StreamEnded(self.number))

    def _run(self) -> None:
        call = partial(self._call, batch_size=self._batch_size)
        with open_stream(call, self._requests()) as events:
            for number, outcome in events:
                if self._aborted.is_set():
                    return
                self._answer(number, outcome)

    def _requests(self) -> Iterator[tuple[int, Request]]:
        while (item := self._items.get()) is not None and not self._aborted.is_set():
            self._outbox.note_progress(item.number, at_once=True)
            self._waiting.add(item.number)
            yield item.number, pickle.loads(item.payload)

    def _answer(self, number: int, outcome: Event) -> None:
        if number not in self._waiting:
            # Its row is out of reach here, and may already have a score that can't be trusted.
            raise EngineRuntimeError(
                f"{self._name}: the session answered a request twice, or one that it was not asked"
            )
        is_delta = isinstance(outcome, TextDelta)
        if not is_delta:
            self._waiting.remove(number)
        if is_delta and not self._shows_deltas:
            self._outbox.note_progress(number, at_once=False)
            return
        try:
            payload = pickle.dumps(outcome, PROTOCOL)
        except Exception as error:  # noqa: BLE001 - a foreign object in it may raise anything
            text = f"the answer can't be sent from the worker: {type(error).__name__}: {error}"
            payload = pickle.dumps(RequestFailure(EngineRuntimeError(text)), PROTOCOL)
        self._outbox.put(Result(number, payload, is_last=not is_delta))


def _start_thread(function: Callable[[], None], name: str) -> None:
    threading.Thread(target=function, name=f"evalution worker {name}", daemon=True).start()


_FLUSH_S = 10.0


def main() -> None:
    """Serve until the parent sends `Close` or is gone."""
    gc.freeze()  # what was imported stays: no collection has to look at it, least of all the last
    if (found := read_versions()) != sys.argv[1:]:
        names = " and ".join(PACKAGES)
        sys.exit(f"{sys.executable} has {names} {found}, its parent has {sys.argv[1:]}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, mark = os.getppid(), os.environ[MARK].rpartition("/")[2]
    channel = _take_channel()
    (start,) = channel.receive()
    assert isinstance(start, Start)
    stacks = open(start.stack_file, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    _enable_stack_dumps(stacks)
    outbox = Outbox(channel, "evalution worker sender")
    try:
        _start_thread(lambda: _watch_parent(start, mark, parent), "watch")
        try:
            if start.main:
                spawn.prepare(start.main)
            session = build_session(start.engine, start.model)
            is_foreign = isinstance(pickle.loads(start.engine), EngineSpec)
            environment = describe_environment(start.engine) if is_foreign else None
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            outbox.put(BuildFailed(pack_error(error, "building the session")))
            outbox.flush(_FLUSH_S)
            return
        _enable_stack_dumps(stacks)  # the build may have taken the signals for itself
        _start_thread(lambda: _send_heartbeats(outbox, start, stacks), "life")
        service = Service(session, outbox)
        outbox.put(service.describe()._replace(environment=environment))
        _serve(channel, service, outbox)
    except EOFError:
        # No answer is awaited any more, and what runs may hold a device.
        _end_as_orphan(start, mark)


def _end_as_orphan(start: Start, mark: str) -> None:
    """Remove the folder of the stack, which a killed parent leaves, and end all processes here."""
    shutil.rmtree(Path(start.stack_file).parent, ignore_errors=True)
    kill_tree(os.getpid(), mark)


def _enable_stack_dumps(file: TextIO) -> None:
    """Have all threads' stacks written on a crash, and on the signal of the parent.

    `faulthandler` writes them by native code, even while some other call holds Python's lock.
    """
    faulthandler.enable(file)
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR2, file)


def _take_channel() -> Channel:
    """Return the pipe, taken away from whatever reads standard input or prints."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return Channel(incoming, outgoing)


def _watch_parent(start: Start, mark: str, parent: int) -> None:
    """End the process when its parent is gone, also while it loads a model.

    The end of the pipe doesn't show it then, nor where another child of the parent's has it open.
    """
    pause = threading.Event()
    while sys.platform == "win32" or os.getppid() == parent:
        pause.wait(start.beat)
    _end_as_orphan(start, mark)


def _send_heartbeats(outbox: Outbox, start: Start, stacks: TextIO) -> None:
    """Send heartbeats.

    While a native call holds Python's lock, the parent ends the process; without a parent, a
    watchdog of `faulthandler` does.
    """
    pause = threading.Event()
    while True:
        outbox.beat()
        if start.silence is not None:
            faulthandler.dump_traceback_later(2 * start.silence, exit=True, file=stacks)
        pause.wait(start.beat)


def _serve(channel: Channel, service: Service, outbox: Outbox) -> None:
    while True:
        for message in channel.receive():
            if isinstance(message, Close):
                outbox.put(Closed(service.close()))
                outbox.flush(_FLUSH_S)
                return
            service.handle(message)
