"""The one thread of a session that talks to its runtime, and its border to the errors there."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from evalution_core import EngineRuntimeError, EvalutionError, SessionClosedError
from evalution_core.redaction import redact_text

_log = logging.getLogger(__name__)

R = TypeVar("R")


def runtime_errors(doing: str) -> AbstractContextManager[None]:
    """The one place where a runtime's own exceptions become `EngineRuntimeError`, chained."""
    return _RuntimeErrors(doing)


class _RuntimeErrors(AbstractContextManager[None]):
    """Context of `runtime_errors`. A generator, entered for every token, would take 0.5 us more."""

    def __init__(self, doing: str):
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, EvalutionError | KeyboardInterrupt | GeneratorExit):
            return
        # The border: asyncio's CancelledError is no Exception.
        raise EngineRuntimeError(
            f"{self._doing} failed: {type(error).__name__}: {redact_text(str(error))}"
        ) from error


def name_lost_requests(error: EvalutionError, lost: Sequence[Hashable]) -> EngineRuntimeError:
    """Return the error of a runtime with the keys of the requests that it cost."""
    kind = type(error) if isinstance(error, EngineRuntimeError) else EngineRuntimeError
    lost_error = kind(f"{error} ({len(lost)} in flight)", in_flight=lost)
    lost_error.__cause__ = error.__cause__ or error
    return lost_error


def end_steps(steps: Iterator[object] | None, doing: str) -> None:
    """Have an engine's generator let go of what it runs, now and not when it is collected.

    What it raises then is logged: there is an error already, or all its results are there.
    """
    if not isinstance(steps, Generator):
        return
    try:
        with runtime_errors(f"ending {doing}"):
            steps.close()
    except EvalutionError as error:
        _log.warning("%s", error)


C = TypeVar("C")


PATIENCE = 3
"""Failures in a row, each of one request by itself, until a runtime is doubted."""


@dataclass(slots=True)
class Liveness(Generic[C]):
    """Evidence on a runtime: its failures in a row, and its canary.

    Requests that fail side by side are no proof: the choices of one bad question do. So a runtime
    in doubt is given its canary, and is dead if that fails too.
    """

    canary: C | None = None
    """The request that worked last; before that, one that a live runtime is sure to serve."""
    failures: int = 0

    def record_success(self, done: C | None) -> None:
        """The runtime answered: `done` is what it did right, if it did."""
        self.failures = 0
        if done is not None:
            self.canary = done

    def record_failure(self, *, patience: int = PATIENCE) -> bool:
        """Count a request that failed by itself; return whether the runtime is in doubt."""
        self.failures += 1
        return self.failures >= patience

    def reset(self) -> None:
        """Forget the failures of a runtime that was taken for dead: it may be tried again."""
        self.failures = 0


IDLE = inf
"""Returned by a task's step that has nothing to do until it is woken."""


def check_process(name: str, pid: int) -> None:
    """Raise `SessionClosedError` in a fork of the process `pid`: no thread of it lives there."""
    if os.getpid() != pid:
        raise SessionClosedError(
            f"{name} was built in process {pid} and can't be used in process {os.getpid()}, a fork "
            f"of it; build a session there"
        )


_EXIT_WAIT_S = 2.0
"""Seconds for which a process that ends waits for the steps that its threads are in."""
_running: WeakSet[RuntimeThread] = WeakSet()


@atexit.register
def _halt_threads() -> None:
    """Halt the threads of sessions that nobody closed, each after the step it is in.

    Python before 3.14 ends such a thread where it next asks for the interpreter's lock; amid a
    runtime's C++ that aborts the process (python/cpython#87135).
    """
    end = time.monotonic() + _EXIT_WAIT_S
    for halted in [thread.halt() for thread in list(_running)]:
        halted.wait(max(0.0, end - time.monotonic()))


class RuntimeTask(Protocol):
    """Something the runtime thread advances in short steps, in turn with the others."""

    def step(self) -> float:
        """Do one step of work, without the lock held; seconds until the next one is worth a try.

        0 after work was done; `IDLE` where only a wake-up can bring work.
        """
        ...

    def shut_down(self, error: EvalutionError) -> None:
        """No step follows: end every stream with `error`."""
        ...


class RuntimeThread:
    """One thread that runs calls and tasks in turn; any thread may ask for them.

    `lock` guards the state that tasks share with callers; it is never held during a step.
    The thread starts with the first work and is a daemon.
    """

    def __init__(self, name: str):
        self.lock = threading.RLock()
        # Unlike a condition, it keeps the wake-up of a garbage collection on the thread itself.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._name = name
        self._pid = os.getpid()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._tasks: list[RuntimeTask] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._failure: EngineRuntimeError | None = None
        self._last: Callable[[], None] | None = None
        self._released: Future[None] = Future()
        self.on_wake: Callable[[], None] | None = None
        """Called with every wake-up, for an engine that waits on something of its own."""

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def add(self, task: RuntimeTask) -> None:
        self._tasks.append(task)

    def ensure_open(self) -> None:
        """Raise `SessionClosedError` after `close` or in a fork, else the thread's own error."""
        check_process(self._name, self._pid)
        if self._failure is not None and not self._closing:
            raise EngineRuntimeError(str(self._failure)) from self._failure.__cause__
        if self._closing:
            raise SessionClosedError(f"{self._name} is closed; build a new session")

    def wake(self) -> None:
        """Notify the thread that there may be work, and start it if it doesn't run yet."""
        with self.lock:
            if self._closing or self._failure is not None:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"{self._name} runtime", daemon=True
                )
                self._thread.start()
                _running.add(self)
            if self._wakes.empty():
                self._wakes.put(None)
            if self.on_wake is not None:
                self.on_wake()

    def call(self, function: Callable[[], R]) -> R:
        """Run `function` between two steps, and return what it returns or raise what it raises."""
        if self.is_current:
            return function()
        with self.lock:
            self.ensure_open()
            result = self.post(function)
        return result.result()

    def post(self, function: Callable[[], R]) -> Future[R]:
        """Run `function` between two steps, without waiting for it; a closed thread never does.

        A garbage collection may call it: under the lock, or in a fork.
        """
        result: Future[R] = Future()
        if os.getpid() != self._pid:
            return result
        with self.lock:
            self._calls.append((function, result))
            self.wake()
        return result

    def halt(self) -> threading.Event:
        """Do nothing but close after the present step; the event is set once that is so."""
        halted = threading.Event()
        if self._closing or self._failure is not None or os.getpid() != self._pid:
            halted.set()
            return halted

        def wait_for_the_end() -> None:
            halted.set()
            while not self._closing:
                self._wakes.get()
            self._wakes.put(None)  # that the thread sees it

        self.post(wait_for_the_end)
        return halted

    def close(self, last: Callable[[], None]) -> None:
        """End all streams, run `last` on the thread, and end it; any later call waits for that.

        Where the thread never ran, `last` runs here. Called on the thread itself, it doesn't wait;
        in a fork it does nothing, since the runtime is the other process's; nor while the
        interpreter ends, when no other thread runs.
        """
        if os.getpid() != self._pid or sys.is_finalizing():
            return
        with self.lock:
            if self._last is None:
                self._last = last
            first, self._closing = not self._closing, True
            thread = self._thread
            self._wakes.put(None)
            if self.on_wake is not None:
                self.on_wake()
        if thread is None and first:
            self._shut_down(SessionClosedError(f"{self._name} was closed meanwhile"))
            _resolve(last, self._released)
        if self.is_current:
            return
        if first:
            self._released.result()
        else:
            self._released.exception()

    def _run(self) -> None:
        try:
            self._work_until_closed()
            ended: EvalutionError = SessionClosedError(f"{self._name} was closed meanwhile")
        except BaseException as error:  # noqa: BLE001 - whoever waits must learn of it
            ended = EngineRuntimeError(f"the runtime thread ended: {type(error).__name__}: {error}")
            ended.__cause__ = error
            with self.lock:
                self._failure = ended
        self._shut_down(ended)
        while self._last is None:
            self._wakes.get()
        _resolve(self._last, self._released)

    def _shut_down(self, ended: EvalutionError) -> None:
        with self.lock:
            calls = list(self._calls)
            self._calls.clear()
        for task in self._tasks:
            task.shut_down(ended)
        for _, result in calls:
            result.set_exception(ended)

    def _work_until_closed(self) -> None:
        while True:
            while not self._wakes.empty():
                self._wakes.get()
            if self._closing:
                return
            for _ in range(len(self._calls)):
                _resolve(*self._calls.popleft())
            rest = min([task.step() for task in self._tasks], default=IDLE)
            if rest > 0:
                with suppress(Empty):
                    self._wakes.get(timeout=None if rest == IDLE else rest)


def _resolve(function: Callable[[], R], result: Future[R]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # noqa: BLE001 - `call` raises it where it was asked for
        result.set_exception(error)
