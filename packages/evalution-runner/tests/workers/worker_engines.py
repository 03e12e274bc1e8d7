"""Engines that get into trouble, for tests of workers; a child process imports them by name."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    InvalidRequestError,
    Model,
    RequestFailure,
    SessionInfo,
    TextDelta,
    speed_only,
)
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, MockSession

POISON = "poison"


def hang() -> None:
    threading.Event().wait()


def hang_with_the_lock() -> None:
    ctypes.PyDLL(None).pause()


def crash() -> None:
    ctypes.string_at(0)


def fail() -> None:
    raise ValueError("planted")


TROUBLES: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "crash": crash,
    "hang": hang,
    "hang_with_the_lock": hang_with_the_lock,
    "fail": fail,
    "none": lambda: None,
}
Trouble = Literal["kill", "exit", "crash", "hang", "hang_with_the_lock", "fail", "none"]


@dataclass(slots=True)
class Troubled(BaseEngine):
    """The mock, but a text with `poison` in it ends or hangs the process.

    `folder`: each process that builds writes its id there, as an empty file's name. `forks`: it has
    a child that holds all its files open. `pace`: seconds a step takes at least.
    """

    trouble: Trouble = "kill"
    poison: str = POISON
    folder: str | None = None
    batch_size: int = speed_only(default=8)
    forks: bool = False
    pace: float = 0.0

    capabilities = MOCK_CAPABILITIES

    def build(self, model: Model) -> TroubledSession:
        if self.forks and os.fork() == 0:
            hang()
        if self.folder is not None:
            Path(self.folder, str(os.getpid())).touch()
        return TroubledSession(self)


class TroubledSession(MockSession):
    def __init__(self, engine: Troubled):
        super().__init__("mock", 512, engine.batch_size)
        self._poison = engine.poison
        self._trouble = TROUBLES[engine.trouble]
        self._pace = engine.pace

    def _step(self, sequences: list[Any]) -> list[Any]:
        for sequence in sequences:
            self._look_at(sequence._prompt.token_ids)
        time.sleep(self._pace)
        return super()._step(sequences)

    def _score(self, token_ids: Sequence[int], start: int) -> Any:
        self._look_at(token_ids)
        return super()._score(token_ids, start)

    def _look_at(self, token_ids: Sequence[int]) -> None:
        if self._poison.encode() in bytes(i for i in token_ids if i < 256):
            self._trouble()


@dataclass(slots=True)
class Undescribable(Troubled):
    """Ends its process when it describes itself, the first `ends` times; needs `folder`."""

    ends: int = 2

    def build(self, model: Model) -> TroubledSession:
        Troubled.build(self, model)
        return UndescribableSession(self)


class UndescribableSession(TroubledSession):
    def __init__(self, engine: Undescribable):
        super().__init__(engine)
        self._folder, self._ends = engine.folder, engine.ends

    def describe_execution(self) -> dict[str, Any]:
        if len(os.listdir(self._folder)) <= self._ends:
            os._exit(3)
        return super().describe_execution()


@dataclass(slots=True)
class Various(Troubled):
    """Another model in each process."""

    def build(self, model: Model) -> TroubledSession:
        return VariousSession(self)


class VariousSession(TroubledSession):
    def identity(self) -> Any:
        return {"weights": os.getpid()}


class Foreign:
    """Can only be unpickled in the process that made it."""

    def __reduce__(self) -> Any:
        return _refuse_elsewhere, (os.getpid(),)


def _refuse_elsewhere(pid: int) -> None:
    if pid != os.getpid():
        raise ValueError("planted: not in this process")


@dataclass(slots=True)
class Unreadable(Troubled):
    """Describes itself by values that no other process can read."""

    def build(self, model: Model) -> TroubledSession:
        return UnreadableSession(self)


class UnreadableSession(TroubledSession):
    def describe_execution(self) -> dict[str, Any]:
        return {"planted": Foreign()}

    def identity(self) -> Any:
        return {"planted": Foreign()}


@dataclass(slots=True)
class Unbuildable(BaseEngine):
    """Fails to build in one way or another; `folder` as for `Troubled`."""

    how: Literal["refuse", "fail", "exit", "once", "hang", "later"] = "refuse"
    folder: str | None = None

    def build(self, model: Model) -> Any:
        if self.folder is not None:
            Path(self.folder, str(os.getpid())).touch()
        match self.how:
            case "refuse":
                raise ConfigurationError("planted: no such model")
            case "fail":
                raise ValueError("planted: foreign")
            case "exit":
                os._exit(3)
            case "once":
                try:
                    Path(f"{self.folder}.first").touch(exist_ok=False)
                except FileExistsError:
                    return TroubledSession(Troubled())
                os._exit(3)
            case "hang":
                hang()
            case "later":
                assert self.folder is not None
                if len(list(Path(self.folder).iterdir())) > 1:
                    raise ConfigurationError("planted: only once")
                return TroubledSession(Troubled())
        return None


@dataclass(slots=True)
class Parental(BaseEngine):
    """Starts a process of its own, in a group of its own, and writes its id into a file."""

    pid_file: str = ""

    capabilities = MOCK_CAPABILITIES

    def build(self, model: Model) -> MockSession:
        code = "import time; time.sleep(1000)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        Path(self.pid_file).write_text(f"{os.getpid()} {child.pid}")
        child.returncode = 0  # nobody here waits for it
        return MockSession("mock", 512, 8)


class HeftySession(MockSession):
    def __init__(self, size: int):
        super().__init__("mock", 512, 8)
        self.weights = bytearray(os.urandom(1 << 20)) * (size >> 20)


@dataclass(slots=True)
class Hefty(BaseEngine):
    """Takes `size` bytes of memory."""

    size: int = 0

    capabilities = MOCK_CAPABILITIES

    def build(self, model: Model) -> MockSession:
        return HeftySession(self.size)


@dataclass(slots=True)
class Unpicklable(Mock):
    """Holds what no other process can be given."""

    callback: Any = None


class DoublingSession(MockSession):
    def stream(self, requests: Any, *, batch_size: int | None = None) -> Any:
        for key, event in super().stream(requests, batch_size=batch_size):
            yield key, event
            if not isinstance(event, TextDelta):
                yield key, event


@dataclass(slots=True)
class Doubling(Mock):
    """Answers each request twice."""

    def build(self, model: Model) -> MockSession:
        return DoublingSession("mock", 512, 8)


VOCABULARY, BLOCK = 7, 3


class RowingSession(TroubledSession):
    """Gives made-up rows, all in the same memory, and counts what it computes and closes."""

    def __init__(self, engine: Troubled):
        super().__init__(engine)
        self._memory = array("f", bytes(4 * VOCABULARY * BLOCK))
        self._blocks = self._closed = 0

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(MOCK_CAPABILITIES | {Capability.DISTRIBUTIONS}, 512)

    def describe_execution(self) -> dict[str, Any]:
        return {"blocks": self._blocks, "closed": self._closed}

    def distributions(
        self, requests: Iterable[tuple[Any, DistributionRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        try:
            for key, request in requests:
                if not isinstance(request, DistributionRequest) or len(request.input_ids) < 2:
                    metadata = getattr(request, "metadata", {})
                    yield key, RequestFailure(InvalidRequestError("planted"), metadata)
                    continue
                for first in range(0, len(request.input_ids) - request.start, BLOCK):
                    yield key, self._compute(request.input_ids, request.start, first)
        finally:
            self._closed += 1

    def _compute(self, ids: Sequence[int], start: int, first: int) -> DistributionRows:
        count = min(BLOCK, len(ids) - start - first)
        for row in range(count):
            at = start + first + row
            self._look_at(ids[:at])
            for column in range(VOCABULARY):
                self._memory[row * VOCABULARY + column] = 100 * at + ids[at - 1] + column / 8
        self._blocks += 1
        shape = (count, VOCABULARY)
        rows: Any = memoryview(self._memory)[: count * VOCABULARY].cast("B").cast("f", shape)
        return DistributionRows(first, rows)


@dataclass(slots=True)
class Rowing(Troubled):
    """Gives distributions; ids with the bytes of `poison` in them are the poison."""

    capabilities = MOCK_CAPABILITIES | {Capability.DISTRIBUTIONS}

    def build(self, model: Model) -> RowingSession:
        if self.folder is not None:
            Path(self.folder, str(os.getpid())).touch()
        return RowingSession(self)
