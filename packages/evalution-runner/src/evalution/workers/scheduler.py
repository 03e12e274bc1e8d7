"""Schedules the requests of a session over its workers, and loses none when a worker ends."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from evalution.redaction import mask_text
from evalution.workers.assignment import Assignment, SlotState, WorkerSlot
from evalution.workers.jobs import CallJob, Job, PooledStream, StreamItem
from evalution.workers.wire import (
    ANSWERER,
    BuildFailed,
    Call,
    CallFailed,
    Closed,
    Message,
    Progressed,
    Ready,
    Result,
    StreamEnded,
    Worker,
    WorkerExit,
    unpack_error,
)
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    RequestFailure,
    SessionClosedError,
)
from evalution_core.errors import RemoteCause

_log = logging.getLogger(__name__)

_QUESTION = -1
"""The number of the call that a new worker answers before it gets work."""
_ABORT_WAIT_S = 10.0
"""Seconds that closing a stream waits for the workers; it normally takes one step."""


class _Thread(threading.local):
    is_of_worker = False


class Scheduler:
    """All state of one session's workers, under one lock that is never held during a wait.

    It doesn't wait for time to pass: `Supervision` does, and sets `now`.

    Args:
        workers: how many slots there are.
        restarts: how often in a row a worker may end without an answer until it is given up.
        backoff: seconds before the second restart in a row; doubled for each one after it.
        wake: called when a worker has to be started or killed.
    """

    def __init__(self, workers: int, restarts: int, backoff: float, wake: Callable[[], None]):
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.now = 0.0
        self.is_up = False
        self.is_closing = False
        self.failure: EvalutionError | None = None
        self.answerer: Mapping[str, dict[str, Any] | None] | None = None
        """The first worker's own words on it; None until somebody asks for the identity."""
        self.close_errors: list[EvalutionError] = []
        self._assignment = Assignment(workers)
        self._restarts = restarts
        self._backoff = backoff
        self._wake = wake
        self._thread = _Thread()
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process: no thread that serves the workers lives there."""
        return os.getpid() != self._pid

    @property
    def slots(self) -> list[WorkerSlot]:
        return self._assignment.slots

    def ready_slots(self) -> list[WorkerSlot]:
        return [slot for slot in self.slots if slot.state is SlotState.READY]

    @property
    def in_flight(self) -> int:
        """The number of requests that workers still have."""
        with self.lock:
            jobs = [job for slot in self.slots for job in slot.in_flight.values()]
            return sum(isinstance(job, StreamItem) for job in jobs)

    # for callers

    def ensure_open(self) -> None:
        """Raise `SessionClosedError` after `close` or in a fork, or the error that ended it all."""
        if self.is_forked:
            raise SessionClosedError(
                f"the session was built in process {self._pid} and can't be used in a fork of it; "
                "build a session there"
            )
        if self.is_closing:
            raise SessionClosedError("the session is closed; build a new session")
        if self.failure is not None:
            raise EngineRuntimeError(str(self.failure)) from self.failure.__cause__

    def submit(self, job: CallJob, slot: WorkerSlot | None = None) -> None:
        """Run a call, on any worker or on that of one slot."""
        with self.lock:
            self.ensure_open()
            if slot is not None:
                slot.call(job)
            else:
                self._assignment.calls.append(job)
                self._assignment.assign()

    def compare_answerer(self, found: Mapping[str, dict[str, Any] | None]) -> None:
        """Keep the first; end everything if another worker answers by other files or settings.

        Raises:
            ConfigurationError: it does.
        """
        with self.lock:
            first = self.answerer = self.answerer or found
            pairs = [(known, found[part] or known) for part, known in first.items() if known]
            if others := {n for one, two in pairs for n in one | two if one.get(n) != two.get(n)}:
                shown = ", ".join(sorted(others))
                text = f"workers differ in {shown}, so answers depend on the worker"
                self.fail(error := ConfigurationError(f"{text}; give all the same, and keep it"))
                raise error

    def release_call(self, job: CallJob) -> None:
        """Run a call that frees something and wait for it; with the workers gone, it is free."""
        # As in `release`, a garbage collection on a worker's own thread can't wait.
        with contextlib.suppress(EvalutionError, TimeoutError):
            self.submit(job)
            job.result.result(0.0 if self._thread.is_of_worker else _ABORT_WAIT_S)

    def open(self, stream: PooledStream) -> None:
        with self.lock:
            self.ensure_open()
            self._assignment.streams[stream] = None

    def wait_for_room(self, stream: PooledStream) -> bool:
        """Block until another item may be placed; False if the stream has ended meanwhile."""
        with self.lock:
            stream.wait_for(lambda: stream.has_ended or self._assignment.has_room(stream))
            return not stream.has_ended

    def place(self, stream: PooledStream, item: StreamItem) -> None:
        """Hand out an item as soon as a worker is free for it."""
        with self.lock:
            if not stream.has_ended:
                stream.add(item)
                self._assignment.place_backlog(stream)

    def end_input(self, stream: PooledStream, error: BaseException | None = None) -> None:
        """Note that no item follows; `error` is what ended the input."""
        with self.lock:
            stream.end_input(error)
            self._assignment.place_backlog(stream)

    def release(self, stream: PooledStream) -> None:
        """End a stream, and wait until no worker has a request of it."""
        with self.lock:
            stream.close()
            self._assignment.abort(stream)
            # A garbage collection on a worker's own thread can't wait for messages of that thread.
            timeout = 0.0 if self._thread.is_of_worker else _ABORT_WAIT_S
            is_free = stream.wait_for(lambda: not self._assignment.holds_stream(stream), timeout)
            if not is_free and timeout:
                _log.warning("workers still run an aborted stream after %.0f s", timeout)
            self._assignment.streams.pop(stream, None)

    # for workers

    def received(self, slot: WorkerSlot, worker: Worker, messages: Sequence[Message]) -> None:
        values = [_read_value(message) for message in messages]
        self._thread.is_of_worker = True
        with self.lock:
            if slot.worker is not worker:
                return
            slot.heard = self.now
            for message, value in zip(messages, values, strict=True):
                self._apply(slot, message, value)
            if messages:
                self._assignment.assign()

    def ended(self, slot: WorkerSlot, worker: Worker, end: WorkerExit) -> None:
        self._thread.is_of_worker = True
        with self.lock:
            if slot.worker is not worker:
                return
            lost = slot.empty()
            is_hung = slot.state is SlotState.KILLING
            if slot.state is SlotState.BUILDING:
                end = WorkerExit(f"{end.reason} while it loaded the model", end.stack)
            slot.change(SlotState.DOWN, self.now)
            if self.is_closing:
                slot.change(SlotState.RETIRED, self.now)
            elif not self.is_up and (slot.error or is_hung):
                # It would fail again; a process that dies may have been killed from outside.
                self.fail(slot.error or _make_error(f"the worker process {end.reason}", end))
            else:
                self._replay(lost, end)
                self._retire_or_restart(slot, end)
            self.changed.notify_all()
            self._assignment.assign()
            self._wake()

    def fail(self, error: EvalutionError) -> None:
        """End everything with an error that every later call raises."""
        self.failure = self.failure or error
        self.shut_down(error)

    def shut_down(self, error: EvalutionError) -> None:
        """End everything that is open with `error`."""
        jobs: list[Job] = [*self._assignment.calls, *self._assignment.poison.clear()]
        jobs += [job for slot in self.slots for job in slot.in_flight.values()]
        self._assignment.calls.clear()
        for stream in self._assignment.streams:
            stream.fail(error)
        for job in jobs:
            if isinstance(job, CallJob):
                job.fail(error)
        self.changed.notify_all()

    # within

    def _apply(self, slot: WorkerSlot, message: Message, value: Any) -> None:
        match message:
            case Result(number=number) | CallFailed(number=number) if number == _QUESTION:
                is_known = not isinstance(value, EvalutionError | RequestFailure)
                self._admit(slot, value if is_known else None)
            case Result(number, _, is_last):
                slot.fruitless_ends = 0
                if not is_last:
                    slot.note_progress((number,), self.now)
                job = slot.finish(number, self.now) if is_last else slot.in_flight.get(number)
                if isinstance(job, CallJob) and isinstance(value, RequestFailure):
                    job.fail(value.error)
                elif job is not None:
                    job.deliver(value, is_last=is_last)
            case CallFailed(number):
                slot.fruitless_ends = 0
                if job := slot.finish(number, self.now):
                    job.fail(value)
            case Progressed(numbers):
                slot.note_progress(numbers, self.now)
            case StreamEnded(number, _, is_fatal):
                self._end_stream(slot, number, value, is_fatal=is_fatal)
            case _:
                self._apply_state(slot, message, value)

    def _apply_state(self, slot: WorkerSlot, message: Message, value: Any) -> None:
        match message:
            case Ready():
                slot.ready = message
                if self.answerer is None:
                    self._admit(slot)
                elif slot.worker is not None:
                    slot.worker.send(Call(_QUESTION, ANSWERER, pickle.dumps(((), {}))))
            case BuildFailed():
                slot.error = value
            case Closed():
                if value is not None:
                    self.close_errors.append(value)
            case _:
                raise AssertionError(f"no message of a worker: {message!r}")

    def _admit(self, slot: WorkerSlot, answerer: dict[str, Any] | None = None) -> None:
        """Let a worker have work, if it answers as the others do."""
        slot.change(SlotState.READY, self.now)
        self._compare_windows()
        if answerer is not None:
            with contextlib.suppress(ConfigurationError):  # it has ended everything
                self.compare_answerer(answerer)
        self.changed.notify_all()

    def _compare_windows(self) -> None:
        """End everything if workers have different windows: scores would depend on the worker."""
        windows = {slot.ready.info.max_model_len for slot in self.slots if slot.ready is not None}
        if len(windows) > 1:
            shown = " and ".join(sorted(map(str, windows)))
            text = f"workers have windows of {shown} tokens, as their devices have other room"
            self.fail(ConfigurationError(f"{text}; set max_model_len, the same for all"))

    def _end_stream(
        self, slot: WorkerSlot, number: int, error: EvalutionError | None, *, is_fatal: bool
    ) -> None:
        worker_stream, left = slot.close_stream(number)
        worker_stream.stream.notify()
        if error is not None and is_fatal and left:
            self._session_failed(slot, left, error)
        elif error is not None:
            worker_stream.stream.fail(error)
            self._assignment.abort(worker_stream.stream)
        else:
            for item in left:
                item.fail(EngineRuntimeError("the session ended without an answer to this request"))

    def _session_failed(
        self, slot: WorkerSlot, lost: list[StreamItem], error: EvalutionError
    ) -> None:
        """Run each lost request again alone on this process.

        One that fails alone is tried once more on a fresh worker, since the session may be at
        fault; if it fails there too, the request is.
        """
        _reset(lost)
        poisonous = self._assignment.poison.report_crash(lost)
        if poisonous is not None:
            text = f"{error}, twice, with this request alone"
            found = EngineRuntimeError(text, in_flight=_list_keys(poisonous))
            found.__cause__ = error.__cause__ or error
            poisonous.fail(found)
        elif len(lost) == 1 and slot.state is SlotState.READY:
            slot.kill_reason = f"was ended, since its session failed: {error}"
            slot.change(SlotState.KILLING, self.now)
            self._wake()

    def _replay(self, lost: list[Job], end: WorkerExit) -> None:
        _reset(lost)
        if poisonous := self._assignment.poison.report_crash(lost):
            text = f"a worker that ran this request alone {end.reason}, twice"
            if not poisonous.has_request:
                text = f"a worker that was asked about its session {end.reason}, "
                text += f"{poisonous.crashes_alone} times"
            poisonous.fail(_make_error(text, end, poisonous))

    def _retire_or_restart(self, slot: WorkerSlot, end: WorkerExit) -> None:
        slot.fruitless_ends += 1
        if slot.fruitless_ends <= self._restarts:
            wait = self._backoff * 2 ** (slot.fruitless_ends - 2) if slot.fruitless_ends > 1 else 0
            slot.restart_at = self.now + wait
            _log.warning("worker %d %s; another one is started", slot.index, end.reason)
            return
        slot.change(SlotState.RETIRED, self.now)
        _log.warning("worker %d is given up: it %s", slot.index, slot.error or end.reason)
        if all(other.state is SlotState.RETIRED for other in self.slots):
            last = f"could not load the model: {slot.error}" if slot.error else end.reason
            text = (
                f"workers ended {slot.fruitless_ends} times in a row without answering anything; "
                f"the last one {last}"
            )
            self.fail(_make_error(text, end))


def _list_keys(job: Job) -> list[Hashable]:
    return [job.key] if isinstance(job, StreamItem) else []


def _make_error(text: str, end: WorkerExit, job: Job | None = None) -> EvalutionError:
    error = EngineRuntimeError(text, in_flight=[] if job is None else _list_keys(job))
    if end.stack:
        error.__cause__ = RemoteCause(mask_text(end.stack))
    return error


def _reset(lost: Sequence[Job]) -> None:
    """Prepare jobs to be run again; one whose text was delivered in part fails instead."""
    for job in lost:
        job.started, job.is_running = None, False
        if isinstance(job, StreamItem) and job.has_text:
            text = (
                "the worker ended after part of the text was streamed, so the request isn't run "
                "again; repeat it"
            )
            job.fail(EngineRuntimeError(text, in_flight=[job.key]))
            job.is_dropped = True


def _read_value(message: Message) -> Any:
    """Return the content of a message, unpickled."""
    match message:
        case Result(_, payload, _, buffers):
            try:
                return pickle.loads(payload, buffers=buffers)
            except Exception as error:  # noqa: BLE001 - what a runtime put into an answer
                text = f"the worker's answer can't be read: {type(error).__name__}: {error}"
                return RequestFailure(EngineRuntimeError(text))
        case StreamEnded(_, error) | BuildFailed(error) | Closed(error) | CallFailed(_, error):
            return None if error is None else unpack_error(error)
        case _:
            return None
