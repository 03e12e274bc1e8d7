"""What a worker process and its parent say to each other, and the pipe they say it through.

Both ends are one program: the parent starts the child itself and nobody else holds an end of the
pipe, so pickles are safe here. Requests and results are pickled one by one, so that one which can't
be is that one's failure, and travel in batches of whatever has come together.
"""

from __future__ import annotations

import pickle
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing import spawn
from typing import Any, BinaryIO, NamedTuple, Protocol

from evalution.error_boundary import wrap_errors
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    Model,
    scrub,
)

PROTOCOL = 5
_LENGTH = struct.Struct("!Q")


class Start(NamedTuple):
    """The first message: what to build, where a crash writes its stack, how to behave."""

    engine: bytes
    model: bytes
    main: dict[str, Any]
    stack_file: str
    cores: tuple[int, ...] | None
    beat: float
    silence: float | None
    mark: str
    parent: int


class Open(NamedTuple):
    """Begin one call of a continuous method; `lane` is its number from now on."""

    lane: int
    method: str
    batch_size: int | None


class Item(NamedTuple):
    lane: int
    number: int
    payload: bytes


class End(NamedTuple):
    """No item follows in the lane."""

    lane: int


class Abort(NamedTuple):
    """Nobody wants the lane's results any more."""

    lane: int


class Call(NamedTuple):
    """Call a method of the session once; the payload is its arguments."""

    number: int
    method: str
    payload: bytes


class Close(NamedTuple):
    """Close the session and end the process."""


class Traits(NamedTuple):
    """What a session is known to be from its build on; None where it doesn't tell."""

    capabilities: frozenset[Capability]
    max_model_len: int | None
    preferred_batch_size: int | None
    has_tokenizer: bool
    special_ids: tuple[tuple[int, ...], int | None, int | None] | None


class Ready(NamedTuple):
    traits: Traits


class BuildFailed(NamedTuple):
    error: bytes


class Result(NamedTuple):
    """An answer: an output, a delta, a `RequestFailure`, or what a call returned."""

    number: int
    payload: bytes
    is_last: bool = True


class CallFailed(NamedTuple):
    number: int
    error: bytes


class Pulled(NamedTuple):
    """How many of its items the session has taken from the lane so far."""

    lane: int
    total: int


class Progressed(NamedTuple):
    """Requests that the session has been seen to work on."""

    numbers: tuple[int, ...]


class LaneEnded(NamedTuple):
    """The session is rid of the lane; with `is_fatal`, it can't be trusted after this error."""

    lane: int
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
    | Pulled
    | Progressed
    | LaneEnded
    | Closed
)


def pack_messages(messages: Sequence[Message]) -> bytes:
    return pickle.dumps(list(messages), PROTOCOL)


def unpack_messages(payload: bytes) -> list[Message]:
    return pickle.loads(payload)


class Carrier(Protocol):
    """Takes batches of messages to the other end, whatever the way."""

    def send(self, messages: Sequence[Message]) -> None:
        """Raises `OSError` or `ValueError` if the other end or this one is closed."""
        ...


class Channel:
    """Batches of messages over two pipes; one thread may send while another receives."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO):
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, messages: Sequence[Message]) -> None:
        """Raises `OSError` or `ValueError` if the other end or this one is closed."""
        payload = pack_messages(messages)
        self._outgoing.write(_LENGTH.pack(len(payload)) + payload)
        self._outgoing.flush()

    def receive(self) -> list[Message]:
        """The next batch; an empty one is a sign of life. Raises `EOFError` at the end."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return unpack_messages(self._read(length))

    def _read(self, size: int) -> bytes:
        found = self._incoming.read(size)
        if len(found) < size:
            raise EOFError("the other end of the pipe is closed")
        return found


class Outbox:
    """Sends from a thread of its own, so that nobody who has a message waits for the carrier.

    Messages that come while a batch is being written make the next batch.
    """

    def __init__(self, carrier: Carrier, name: str):
        self._carrier = carrier
        self._changed = threading.Condition()
        self._waiting: list[Message] = []
        self._pulled: dict[int, int] = {}
        self._progressed: set[int] = set()
        self._beats = 0
        self._is_writing = False
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, *messages: Message) -> None:
        with self._changed:
            self._waiting.extend(messages)
            self._changed.notify_all()

    def note_pulled(self, lane: int) -> None:
        """Count another item of the lane as taken; only the latest count is sent."""
        with self._changed:
            self._pulled[lane] = self._pulled.get(lane, 0) + 1
            self._waiting.append(Pulled(lane, self._pulled[lane]))
            self._changed.notify_all()

    def note_progress(self, number: int) -> None:
        """A request goes on; told with whatever is sent next."""
        with self._changed:
            self._progressed.add(number)

    def beat(self) -> None:
        """Give a sign of life."""
        with self._changed:
            self._beats += 1
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
                self._changed.wait_for(lambda: self._waiting or self._beats or self._is_closed)
                if self._is_closed:
                    return
                batch, self._waiting, self._beats = self._waiting, [], 0
                if self._progressed:
                    batch.append(Progressed(tuple(self._progressed)))
                    self._progressed.clear()
                self._is_writing = True
            try:
                self._carrier.send(_latest(batch))
            except (OSError, ValueError):  # the reading side of this process learns why
                self.close()
                return


def _latest(batch: Sequence[Message]) -> Sequence[Message]:
    """The batch with the last `Pulled` of each lane alone, still before what follows it."""
    last = {message.lane: message for message in batch if isinstance(message, Pulled)}
    return [m for m in batch if not isinstance(m, Pulled) or last[m.lane] is m]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker came to its end: a sentence's predicate, and its stack where it left one."""

    reason: str
    stack: str | None = None


class Listener(Protocol):
    """Hears of one worker, on the worker's own thread."""

    def received(self, messages: Sequence[Message]) -> None:
        """Any sign of life; often with messages."""
        ...

    def ended(self, ending: Ending) -> None:
        """The last that is heard: the worker and all it had started are gone."""
        ...


class Worker(Protocol):
    """Starts at once and begins to build; then does what it is told by messages.

    The scheduler asks nothing else of a worker, so that one in a local process and one on another
    machine are supervised alike.
    """

    def start(self, listener: Listener) -> None: ...

    def send(self, *messages: Message) -> None:
        """Send without waiting; messages to a worker that has ended are lost."""
        ...

    def kill(self, reason: str, *, with_stack: bool) -> None:
        """End the worker and all it has started; `ended` tells the reason."""
        ...


_MAIN = b"__main__"


def pack_configuration(value: BaseEngine | Model) -> bytes:
    """A pickle of an engine or model.

    Raises:
        ConfigurationError: it can't be pickled; names the option or field.
    """
    kind = type(value)
    name = f"engine {kind.__name__}" if isinstance(value, BaseEngine) else "the model"
    problem = _problem_of(value)
    if problem is None:
        return pickle.dumps(value, PROTOCOL)
    if is_dataclass(value):
        for field in fields(value):
            inner = _problem_of(getattr(value, field.name))
            if inner is not None:
                what = "option" if isinstance(value, BaseEngine) else "field"
                found = type(getattr(value, field.name)).__name__
                name = f"{what} {field.name!r} of {name}, a {found},"
                problem = inner
                break
    raise ConfigurationError(
        f"{name} can't be sent to a worker process, since it can't be pickled: {problem}; use "
        "classes and functions that stand at the top of a module, and plain values, or run without "
        "worker processes"
    )


def _problem_of(value: object) -> str | None:
    try:
        with wrap_errors("pickling"):  # a __reduce__ may raise anything
            pickle.dumps(value, PROTOCOL)
    except EvalutionError as error:
        return str(error.__cause__ or error)
    return None


def main_module(*pickles: bytes) -> dict[str, Any]:
    """What a child needs to import this program's main module; empty if no pickle refers to it.

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
    """A pickle of what a call sends.

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
    """An error as the contract's class for it; a foreign one becomes an `EngineRuntimeError`."""
    if isinstance(error, EvalutionError):
        known = error
    else:
        known = EngineRuntimeError(scrub(f"{doing}: {type(error).__name__}: {error}"))
        known.__cause__ = error
    text = f"{type(known).__name__}: {scrub(str(known))}"
    return pickle.dumps((_pickled_error(known), text), PROTOCOL)


def unpack_error(data: bytes) -> EvalutionError:
    """The error of `pack_error`, with class, text and cause.

    Where its class can't be had, class and text become the text of an `EngineRuntimeError`.
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


def _pickled_error(error: EvalutionError) -> bytes | None:
    if _problem_of(error) is None:
        return pickle.dumps(error, PROTOCOL)
    return None
