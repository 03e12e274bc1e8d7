"""The request loop: one thread with an event loop, for runtimes that take whole requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    RequestFailure,
    SessionClosedError,
    TextDelta,
)
from evalution_enginekit.runtime_thread import (
    PATIENCE,
    Liveness,
    check_process,
    name_lost_requests,
    runtime_errors,
)
from evalution_enginekit.streams import ResultStream, StreamLimits

R = TypeVar("R")


Emit = Callable[[TextDelta], None]


_LETTING_GO_S = 2.0
"""Seconds that requests which `close` aborts may take, until they are interrupted."""


@dataclass(frozen=True, slots=True)
class RequestJob:
    """A coroutine for one request: it may emit deltas, and returns the result."""

    serve: Callable[[Emit], Awaitable[Any]]
    metadata: dict[str, Any]


JobStream = ResultStream[Any, RequestJob, Any]


@dataclass(slots=True)
class _Running:
    stream: JobStream
    task: asyncio.Task[None]
    is_aborted: bool = False

    def abort(self) -> None:
        """Cancel it once: a second time would break into what it does to let go."""
        if not self.is_aborted:
            self.is_aborted = True
            self.task.cancel()


class RequestLoop:
    """One thread with an event loop: `depth` jobs at once, the next one as soon as one is done.

    Args:
        name: whose loop it is, for messages.
        depth: jobs in flight over all streams; it may change at any time.

    After a few failures in a row, more than run at once, the job that succeeded last is served
    again: if it fails too, the runtime is taken for dead, and the stream ends.
    """

    def __init__(self, name: str, depth: int = 1):
        self.lock = threading.RLock()
        self._name = name
        self._pid = os.getpid()
        self._depth = depth
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._streams: list[JobStream] = []
        self._running: dict[int, _Running] = {}
        self._numbers = count()
        self._woken = False
        self._closing = False
        self._released: Future[None] = Future()
        self._liveness: Liveness[RequestJob] = Liveness()
        self._trial = asyncio.Lock()

    @property
    def depth(self) -> int:
        return self._depth

    def set_depth(self, value: int) -> None:
        """Change how many run at once, from any thread.

        Jobs above a depth that shrinks are finished; none starts until it is reached.
        """
        with self.lock:
            grown, self._depth = value > self._depth, value
        if grown:
            self.wake()

    def set_canary(self, job: RequestJob) -> None:
        """Have `job` served where a runtime is in doubt before any job has succeeded."""
        self._liveness.canary = job

    @property
    def running(self) -> int:
        """Jobs that the runtime has not released."""
        return len(self._running)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def ensure_open(self) -> None:
        """Raise `SessionClosedError` once `close` was called, and in a fork of the process."""
        check_process(self._name, self._pid)
        if self._closing:
            raise SessionClosedError(f"{self._name} is closed; build a new session")

    def open(self, limits: StreamLimits) -> JobStream:
        stream: JobStream = ResultStream(self, limits)
        with self.lock:
            self.ensure_open()
            self._streams.append(stream)
        return stream

    def wake(self) -> None:
        """Look for jobs to start and to cancel, on the loop."""
        with self.lock:
            if self._closing or self._woken:
                return
            self._woken = True
            self._ensure_loop().call_soon_threadsafe(self._turn)

    def post(self, function: Callable[[], None]) -> None:
        """Run `function` on the loop, without waiting for it; a closed one never does.

        A garbage collection may call it: under the lock, or in a fork.
        """
        if os.getpid() != self._pid:
            return
        with self.lock:
            if not self._closing:
                loop = self._ensure_loop()
                loop.call_soon_threadsafe(function)
                loop.call_soon_threadsafe(self._turn)

    def call(self, function: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Await `function()` on the loop, from any other thread.

        Raises:
            SessionClosedError: the loop was closed before, or meanwhile.
            EngineRuntimeError: called on the loop itself, which would deadlock.
        """
        if self.is_current:
            raise EngineRuntimeError(f"{self._name} waits for its own event loop")
        self.ensure_open()
        with self.lock:
            self.ensure_open()
            result = asyncio.run_coroutine_threadsafe(function(), self._ensure_loop())
        try:
            return result.result()
        except CancelledError:
            raise SessionClosedError(f"{self._name} was closed meanwhile") from None

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """End all streams, cancel what runs, await `last`, and end the thread.

        Any later call waits for that. Called on the loop itself, it doesn't wait; in a fork it does
        nothing, since the runtime is the other process's; nor while the interpreter ends, when no
        other thread runs.
        """
        if os.getpid() != self._pid or sys.is_finalizing():
            return
        with self.lock:
            first = not self._closing
            loop = self._ensure_loop() if first else None
            self._closing = True
            if loop is not None:
                for stream in self._streams:
                    stream.fail(SessionClosedError(f"{self._name} was closed meanwhile"))
                asyncio.run_coroutine_threadsafe(self._finish(last), loop)
            thread = self._thread
        if self.is_current:
            return
        if first:
            self._released.result()
        else:
            self._released.exception()
        if thread is not None:
            thread.join()

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name=f"{self._name} requests", daemon=True
            )
            self._thread.start()
        return self._loop

    async def _finish(self, last: Callable[[], Awaitable[None]]) -> None:
        # The requests first: they let go of the tasks that they began. One that is cancelled before
        # it runs warns of what it was to await, as anyio's do.
        requests = list(self._running.values())
        for running in requests:
            running.abort()
        if requests:
            await asyncio.wait([running.task for running in requests], timeout=_LETTING_GO_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            await last()
            self._released.set_result(None)
        except BaseException as error:  # noqa: BLE001 - `close` raises it where it was asked for
            self._released.set_exception(error)
        finally:
            asyncio.get_running_loop().stop()

    def _turn(self) -> None:
        with self.lock:
            self._woken = False
            for number, running in self._running.items():
                if not running.stream.wants(number):
                    running.abort()
            self._streams = [s for s in self._streams if not s.ended or s.running]
            self._admit()

    def _admit(self) -> None:
        """Start jobs while the depth allows it, one of each stream in turn."""
        while not self._closing and len(self._running) < self._depth:
            stream = next((s for s in self._streams if s.admissible() > 0), None)
            if stream is None:
                return
            self._streams.remove(stream)
            self._streams.append(stream)
            number = next(self._numbers)
            _, job = stream.admit(number)
            task = asyncio.get_running_loop().create_task(self._serve(number, stream, job))
            self._running[number] = _Running(stream, task)
            # Cancelled before its first step, a task runs nothing of its own.
            task.add_done_callback(lambda _, number=number: self._finish_call(number))

    async def _serve(self, number: int, stream: JobStream, job: RequestJob) -> None:
        def emit(delta: TextDelta) -> None:
            with self.lock:
                stream.deliver_part(number, delta)

        try:
            with runtime_errors("a request"):
                result = await job.serve(emit)
        except EvalutionError as error:
            is_fault = isinstance(error, EngineRuntimeError) and stream.wants(number)
            is_dead = is_fault and await self._is_dead(stream, number)
            with self.lock:
                if is_dead:
                    self._give_up(stream, error)
                else:
                    stream.deliver(number, RequestFailure(error, job.metadata))
                self._release(number)
        else:
            with self.lock:
                self._liveness.record_success(job)
                stream.deliver(number, result)
                self._release(number)

    async def _is_dead(self, stream: JobStream, number: int) -> bool:
        """Note a failure; report whether the canary fails too, if it comes to that."""
        patience = max(PATIENCE, self._depth + 1)
        if not self._liveness.record_failure(patience=patience):
            return False
        async with self._trial:
            if self._liveness.failures < patience:  # another request's trial has settled it
                return False
            if (canary := self._liveness.canary) is not None and await _is_answered(canary):
                self._liveness.record_success(None)
            # A success meanwhile is as good; a trial that was cancelled proves nothing.
            if self._liveness.failures < patience or not stream.wants(number):
                return False
            self._liveness.reset()
            return True

    def _give_up(self, stream: JobStream, error: EvalutionError) -> None:
        lost = [key for number, key in stream.running.items() if stream.wants(number)]
        stream.fail(name_lost_requests(error, lost))
        self.wake()

    def _finish_call(self, number: int) -> None:
        with self.lock:
            self._release(number)
            self._admit()

    def _release(self, number: int) -> None:
        """A request with an answer is in flight no more, so that no failure counts it as lost."""
        if (running := self._running.pop(number, None)) is not None:
            running.stream.release(number)


async def _is_answered(job: RequestJob) -> bool:
    try:
        with runtime_errors("the canary"):
            await job.serve(lambda _: None)
    except EvalutionError:
        return False
    return True


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        with contextlib.closing(loop):
            loop.run_until_complete(loop.shutdown_asyncgens())
