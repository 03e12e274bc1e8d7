"""Supervises workers: starts and restarts them, and ends those that hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from evalution.workers.assignment import SlotState, WorkerSlot
from evalution.workers.scheduler import Scheduler
from evalution.workers.wire import Close, Message, Worker, WorkerExit
from evalution_core import (
    EngineRuntimeError,
    SessionClosedError,
    validate_options,
)

Seconds = Annotated[float | None, Field(gt=0)]

_SETTLED = (SlotState.READY, SlotState.RETIRED)
_SLOWEST_LOOK_S = 1.0
_FASTEST_LOOK_S = 0.02
_LOOKS = 8
"""Looks at a worker within the shortest of its deadlines."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Deadlines after which a worker counts as hung or broken, and its restarts.

    Options:
        request_timeout: seconds a request may go without progress once the engine has it: its next
            token where the engine streams, else its answer. None: no limit.
        build_timeout: seconds for loading the model. None: no limit.
        heartbeat_timeout: seconds a worker with a loaded model may be silent. It is silent while
            one native call holds Python's lock. None: no limit.
        restarts: how often in a row a worker may end without an answer until it is given up.
        backoff: seconds before the second restart in a row; doubled for each one after it.
        close_timeout: seconds for releasing the model until the worker is killed.
    """

    declared_as: ClassVar[str] = "worker options"

    request_timeout: Seconds = None
    build_timeout: Seconds = None
    heartbeat_timeout: Seconds = 120.0
    restarts: Annotated[int, Field(ge=0)] = 8
    backoff: Annotated[float, Field(ge=0)] = 0.5
    close_timeout: Annotated[float, Field(gt=0)] = 30.0

    def __post_init__(self) -> None:
        validate_options(self)  # pyright: ignore[reportArgumentType] - asks for __name__ too

    @property
    def beat(self) -> float:
        """The seconds between heartbeats of a worker, and between two looks at it."""
        deadlines = [self.request_timeout, self.build_timeout, self.heartbeat_timeout]
        shortest = min((d for d in deadlines if d is not None), default=_SLOWEST_LOOK_S * _LOOKS)
        return min(_SLOWEST_LOOK_S, max(_FASTEST_LOOK_S, shortest / _LOOKS))


class Supervision:
    """Workers of one session, from their start to their end.

    Args:
        workers: how many there are.
        make: makes a worker for the slot of this number.
        options: deadlines and restarts.
    """

    def __init__(
        self,
        workers: int,
        make: Callable[[int], Worker],
        options: WorkerOptions,
    ):
        self._woken = threading.Event()
        self.scheduler = Scheduler(workers, options.restarts, options.backoff, self._woken.set)
        self._make = make
        self._options = options
        self._look = options.beat
        self._is_over = False
        self._close_lock = threading.Lock()
        self._is_closed = False

    def start(self) -> None:
        """Start all workers and wait until each has loaded the model or is given up.

        Raises:
            EvalutionError: the first that can't load it, or all are given up; none is left then.
        """
        scheduler = self.scheduler
        threading.Thread(target=self._run, name="evalution supervision", daemon=True).start()
        try:
            with scheduler.lock:
                scheduler.changed.wait_for(
                    lambda: (
                        scheduler.failure is not None
                        or all(slot.state in _SETTLED for slot in scheduler.slots)
                    )
                )
                if scheduler.failure is not None:
                    raise scheduler.failure
                scheduler.is_up = True
        except BaseException:
            self._end_all(SlotState.KILLING)
            raise

    def close(self) -> None:
        """Close all sessions and end their processes. Idempotent; in a fork it does nothing.

        Raises:
            EvalutionError: the first error of a session's own `close`; the processes are gone.
        """
        if self.scheduler.is_forked:
            return
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end_all(SlotState.READY)
            if errors := self.scheduler.close_errors:
                raise errors[0]

    def _end_all(self, closing: SlotState) -> None:
        """Close the sessions of slots in this state, and kill the other workers."""
        scheduler = self.scheduler
        with scheduler.lock:
            scheduler.is_closing = True
            scheduler.shut_down(SessionClosedError("the session was closed meanwhile"))
            slots = [(slot.state is closing, slot.worker) for slot in scheduler.slots]
        for is_closed, worker in slots:
            if worker is not None:
                worker.send(Close()) if is_closed else worker.kill("was stopped", with_stack=False)
        with scheduler.lock:
            scheduler.changed.wait_for(self._are_all_gone, self._options.close_timeout)
            stuck = self._list_living()
        for worker in stuck:
            worker.kill("did not close in time", with_stack=False)
        with scheduler.lock:
            scheduler.changed.wait_for(self._are_all_gone)
        self._is_over = True
        self._woken.set()

    def _list_living(self) -> list[Worker]:
        return [slot.worker for slot in self.scheduler.slots if slot.worker is not None]

    def _are_all_gone(self) -> bool:
        return not self._list_living()

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            with self.scheduler.lock:
                text = f"the supervision of workers ended: {type(error).__name__}: {error}"
                self.scheduler.fail(EngineRuntimeError(text))
            raise

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._is_over:
            self._start_workers()
            self._kill_hung()
            wait = self._next_look()
            self._woken.wait(wait)
            self._woken.clear()
            now = time.monotonic()
            # While this process is stopped or asleep no worker is late.
            passed, last = min(now - last, 2 * wait + self._look), now
            with self.scheduler.lock:
                self.scheduler.now += passed

    def _next_look(self) -> float:
        with self.scheduler.lock:
            due = [
                slot.restart_at - self.scheduler.now
                for slot in self.scheduler.slots
                if slot.state is SlotState.DOWN
            ]
        return max(0.0, min([self._look, *due]))

    def _start_workers(self) -> None:
        scheduler = self.scheduler
        with scheduler.lock:
            if scheduler.is_closing or scheduler.failure is not None:
                return
            for slot in scheduler.slots:
                if slot.state is SlotState.DOWN and slot.restart_at <= scheduler.now:
                    worker = slot.worker = self._make(slot.index)
                    slot.change(SlotState.BUILDING, scheduler.now)
                    slot.heard, slot.error = scheduler.now, None
                    try:
                        worker.start(_SlotListener(scheduler, slot, worker))
                    except OSError as error:
                        end = WorkerExit(f"could not be started: {error}")
                        scheduler.ended(slot, worker, end)

    def _kill_hung(self) -> None:
        scheduler = self.scheduler
        hung: list[tuple[Worker, str, bool]] = []
        with scheduler.lock:
            for slot in scheduler.slots:
                kill_reason = self._kill_reason(slot)
                if kill_reason is not None and slot.worker is not None:
                    hung.append((slot.worker, kill_reason, slot.state is not SlotState.KILLING))
                    slot.change(SlotState.KILLING, scheduler.now)
                    slot.kill_reason = ""
        for worker, kill_reason, with_stack in hung:
            worker.kill(kill_reason, with_stack=with_stack)

    def _kill_reason(self, slot: WorkerSlot) -> str | None:
        options, now = self._options, self.scheduler.now
        if slot.state is SlotState.KILLING:
            return slot.kill_reason or None
        if slot.state is SlotState.BUILDING:
            limit = options.build_timeout
            late = limit is not None and now - slot.since > limit
            return f"had not loaded the model after {limit:g} s and was killed" if late else None
        if slot.state is not SlotState.READY:
            return None
        limit = options.heartbeat_timeout
        if limit is not None and now - slot.heard > limit:
            return (
                f"gave no sign of life for {limit:g} s and was killed: a native call holds "
                "Python's lock, or all its time"
            )
        limit = options.request_timeout
        if limit is not None and slot.is_late(now, limit):
            return f"made no progress for {limit:g} s and was killed"
        return None


@dataclass(frozen=True, slots=True)
class _SlotListener:
    """Passes on messages of one worker, for its slot."""

    scheduler: Scheduler
    slot: WorkerSlot
    worker: Worker

    def received(self, messages: Sequence[Message]) -> None:
        self.scheduler.received(self.slot, self.worker, messages)

    def ended(self, end: WorkerExit) -> None:
        self.scheduler.ended(self.slot, self.worker, end)
