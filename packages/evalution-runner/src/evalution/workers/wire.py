"""The messages between a worker and its parent, the pipe they take, and pickling for it.

Both ends are one program: the parent starts the child itself and nobody else holds an end of the
pipe, so pickles are safe here. Requests and results are pickled one by one, so that one which can't
be fails alone, and travel in batches.
"""

from __future__ import annotations

import pickle
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from io import BufferedReader
from multiprocessing import spawn
from typing import Any, BinaryIO, NamedTuple, Protocol

from evalution.environment import Environment
from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text
from evalution_core import (
    BaseEngine,
    ConfigurationError,
    EngineRuntimeError,
    EngineSpec,
    EvalutionError,
    InvalidRequestError,
    Model,
    SessionInfo,
)
from evalution_core.kinds import RequestKind

PROTOCOL = 5
SpecialIds = tuple[tuple[int, ...], int | None, int | None]
_LENGTH = struct.Struct("!Q")
_HEADER = struct.Struct("!QQ")
"""Length of the pickled messages, and the number of buffers behind them."""


class Start(NamedTuple):
    """The first message to a process: its pickled engine and model, and its deadlines.

    An engine of another environment is an `EngineSpec`, since its class may be absent here. `main`
    is what `spawn.prepare` needs of this program's main module. `beat` is the time between
    heartbeats in seconds, `stack_file` the path that a crash writes its stack to.
    """

    engine: bytes
    model: bytes
    main: dict[str, Any]
    beat: float
    silence: float | None
    stack_file: str = ""


class Open(NamedTuple):
    """Begin one continuous call, `stream` from now on; with `deltas`, texts come as they grow."""

    stream: int
    kind: RequestKind
    deltas: bool
    batch_size: int | None


class Item(NamedTuple):
    stream: int
    number: int
    payload: bytes


class End(NamedTuple):
    """No item follows in the stream."""

    stream: int


class Abort(NamedTuple):
    """The stream's results are not wanted any more."""

    stream: int


class Call(NamedTuple):
    """Call a method of the session once; the payload is its arguments."""

    number: int
    method: str
    payload: bytes


ANSWERER = "describe_answerer"
"""The call for what decides a worker's answers: its `identity`, and of its `execution` a part."""


class Close(NamedTuple):
    """Close the session and end the process."""


class Ready(NamedTuple):
    """The session is built; `special_ids` are leading ids, BOS and EOS, None without tokenizer.

    `environment` is that of the worker, where it isn't this program's.
    """

    info: SessionInfo
    special_ids: SpecialIds | None
    environment: Environment | None = None


class BuildFailed(NamedTuple):
    error: bytes


class Result(NamedTuple):
    """An answer: an output, a delta, a `RequestFailure`, or what a call returned.

    `buffers` are large parts of it, which a pipe takes as they are, in no pickle.
    """

    number: int
    payload: bytes
    is_last: bool = True
    buffers: Sequence[pickle.PickleBuffer] = ()


class CallFailed(NamedTuple):
    number: int
    error: bytes


class Progressed(NamedTuple):
    """Requests that the session has taken from their stream, or was seen to work on."""

    numbers: tuple[int, ...]


class StreamEnded(NamedTuple):
    """The session has ended the stream; with `is_fatal`, it can't be trusted after this error."""

    stream: int
    error: bytes | None = None
    is_fatal: bool = False


class Closed(NamedTuple):
    error: bytes | None = None


Message = (
    Start
    | Open
    | Item
    | End
    | Abort
    | Call
    | Close
    | Ready
    | BuildFailed
    | Result
    | CallFailed
    | Progressed
    | StreamEnded
    | Closed
)


def pack_messages(messages: Sequence[Message]) -> bytes:
    return pickle.dumps(list(messages), PROTOCOL)


def unpack_messages(payload: bytes) -> list[Message]:
    return pickle.loads(payload)


class Carrier(Protocol):
    """Takes batches of messages to the other end, by a pipe or another way."""

    def send(self, messages: Sequence[Message]) -> None:
        """Raises `OSError` or `ValueError` if the other end or this one is closed."""
        ...


class Channel:
    """Batches of messages over two pipes; one thread may send while another receives.

    Buffers follow their batch as they are: 32 MiB in a pickle take twice the time and three times
    the memory.
    """

    def __init__(self, incoming: BufferedReader, outgoing: BinaryIO):
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, messages: Sequence[Message]) -> None:
        """Raises `OSError` or `ValueError` if the other end or this one is closed."""
        found: list[pickle.PickleBuffer] = []
        payload = pickle.dumps(list(messages), PROTOCOL, buffer_callback=found.append)
        buffers = [buffer.raw() for buffer in found]
        lengths = b"".join(_LENGTH.pack(buffer.nbytes) for buffer in buffers)
        self._outgoing.write(_HEADER.pack(len(payload), len(buffers)) + lengths + payload)
        for buffer in buffers:
            self._outgoing.write(buffer)
        self._outgoing.flush()

    def receive(self) -> list[Message]:
        """The next batch; an empty one is a sign of life. Raises `EOFError` at the end."""
        length, count = _HEADER.unpack(self._read(_HEADER.size))
        lengths = [_LENGTH.unpack(self._read(_LENGTH.size))[0] for _ in range(count)]
        payload = self._read(length)
        return pickle.loads(payload, buffers=[self._read(size) for size in lengths])

    def _read(self, size: int) -> bytearray:
        found = bytearray(size)
        if self._incoming.readinto(found) < size:
            raise EOFError("the other end of the pipe is closed")
        return found


class Outbox:
    """Sends messages from a thread of its own, so that no caller waits for the carrier.

    Messages that come while a batch is being written make the next batch.
    """

    def __init__(self, carrier: Carrier, name: str):
        self._carrier = carrier
        self._changed = threading.Condition()
        self._waiting: list[Message] = []
        self._progressed: set[int] = set()
        self._is_due = False
        self._is_writing = False
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, *messages: Message) -> None:
        with self._changed:
            self._waiting.extend(messages)
            self._changed.notify_all()

    def note_progress(self, number: int, *, at_once: bool) -> None:
        """Note progress of a request; unless `at_once`, it goes along with the next message."""
        with self._changed:
            self._progressed.add(number)
            if at_once:
                self._is_due = True
                self._changed.notify_all()

    def beat(self) -> None:
        """Give a sign of life."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def close(self) -> None:
        """Send nothing more; the thread ends. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all is written; False if it isn't in time, or can't be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or not (self._waiting or self._is_writing), timeout
            )
            return not (self._waiting or self._is_writing)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_due or self._is_closed)
                if self._is_closed:
                    return
                batch, self._waiting, self._is_due = self._waiting, [], False
                if self._progressed:
                    batch = [Progressed(tuple(self._progressed)), *batch]
                    self._progressed.clear()
                self._is_writing = True
            try:
                self._carrier.send(batch)
            except (OSError, ValueError):  # the reading side of this process learns why
                self.close()
                return


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of a worker: its reason as a predicate, and its stack where it left one."""

    reason: str
    stack: str | None = None


class WorkerListener(Protocol):
    """Receives the messages and the end of one worker, on the worker's own thread."""

    def received(self, messages: Sequence[Message]) -> None:
        """Messages, or none as a heartbeat."""
        ...

    def ended(self, end: WorkerExit) -> None:
        """The worker and all it had started are gone; nothing else follows."""
        ...


class Worker(Protocol):
    """A worker: starts at once, builds the session, and then obeys messages.

    The scheduler asks nothing else of a worker, so that one in a local process and one on another
    machine are supervised alike.
    """

    def start(self, listener: WorkerListener) -> None: ...

    def send(self, *messages: Message) -> None:
        """Send without waiting; messages to a worker that has ended are lost."""
        ...

    def kill(self, reason: str, *, with_stack: bool) -> None:
        """End the worker and all it has started; `ended` gets the reason."""
        ...


_MAIN = b"__main__"


def pack_configuration(value: BaseEngine | EngineSpec | Model) -> bytes:
    """Pickle an engine or model.

    Raises:
        ConfigurationError: it can't be pickled; the message names the option or field.
    """
    problem = _find_pickling_problem(value)
    if problem is None:
        return pickle.dumps(value, PROTOCOL)
    is_engine = isinstance(value, BaseEngine)
    name = f"engine {type(value).__name__}" if is_engine else "the model"
    for field in fields(value) if is_dataclass(value) else ():
        member = getattr(value, field.name)
        if inner := _find_pickling_problem(member):
            what = "option" if is_engine else "field"
            name = f"{what} {field.name!r} of {name}, a {type(member).__name__},"
            problem = inner
            break
    raise ConfigurationError(
        f"{name} can't be sent to a worker process, since it can't be pickled: {problem}; use "
        "classes and functions from the top of a module, and plain values, or run without "
        "worker processes"
    )


def _find_pickling_problem(value: object) -> str | None:
    try:
        with wrap_errors("pickling"):  # a __reduce__ may raise anything
            pickle.dumps(value, PROTOCOL)
    except EvalutionError as error:
        return str(error.__cause__ or error)
    return None


def main_module(*pickles: bytes) -> dict[str, Any]:
    """Return what a child needs to import this program's main module, if a pickle refers to it.

    Raises:
        ConfigurationError: one does, and the main module is no file: a prompt or a notebook.
    """
    if not any(_MAIN in data for data in pickles):
        return {}
    data = spawn.get_preparation_data("evalution worker")
    found = {name: value for name, value in data.items() if name.startswith("init_main_from")}
    if not found:
        main = getattr(sys.modules["__main__"], "__file__", None)
        where = f"{main}, which can't be imported" if main else "a prompt or a notebook"
        raise ConfigurationError(
            f"the engine or model uses a class that is defined in {where}, so a worker process "
            "can't get at it; put the class into a module of its own"
        )
    return found


def pack_request(request: object) -> bytes:
    """Pickle a request or the arguments of a call.

    Raises:
        InvalidRequestError: it can't be pickled.
    """
    try:
        with wrap_errors("pickling"):
            return pickle.dumps(request, PROTOCOL)
    except EvalutionError as error:
        raise InvalidRequestError(
            f"the request can't be sent to a worker process: {error.__cause__ or error}"
        ) from error.__cause__


def pack_error(error: BaseException, doing: str) -> bytes:
    """Pickle an error; a foreign one becomes an `EngineRuntimeError`."""
    if isinstance(error, EvalutionError):
        known = error
    else:
        known = EngineRuntimeError(mask_text(f"{doing}: {type(error).__name__}: {error}"))
        known.__cause__ = error
    text = f"{type(known).__name__}: {mask_text(str(known))}"
    pickled = None if _find_pickling_problem(known) else pickle.dumps(known, PROTOCOL)
    return pickle.dumps((pickled, text), PROTOCOL)


def unpack_error(data: bytes) -> EvalutionError:
    """Return the error of `pack_error`, with class, text and cause.

    Where its class can't be imported, class and text become the text of an `EngineRuntimeError`.
    """
    pickled, text = pickle.loads(data)
    if pickled is not None:
        try:
            with wrap_errors("unpickling"):
                error = pickle.loads(pickled)
        except EvalutionError:
            error = None
        if isinstance(error, EvalutionError):
            return error
    return EngineRuntimeError(text)
