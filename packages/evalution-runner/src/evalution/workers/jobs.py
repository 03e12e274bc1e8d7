"""The jobs of workers: calls, and the requests of a caller's stream."""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError, RequestFailure, TextDelta
from evalution_core.kinds import RequestKind, find_kind
from evalution_core.requests import DistributionRequest, Output, Request, StreamEvent

Event = StreamEvent | Output
"""A value that a stream yields for one of its requests."""

_numbers = count()


@dataclass(eq=False, slots=True)
class Job(ABC):
    """One thing to answer; all state is under the scheduler's lock.

    `started` is the scheduler's time when the session took it or was last seen at work on it;
    `is_running` if it was. `crashes_alone` counts the workers that ended while they ran it alone.
    Without a request (`has_request`) it only asks about the session.
    """

    payload: bytes
    number: int = field(default_factory=lambda: next(_numbers))
    crashes_alone: int = 0
    has_request: bool = True
    started: float | None = None
    is_running: bool = False
    is_dropped: bool = False

    @abstractmethod
    def deliver(self, value: Any, *, is_last: bool) -> None: ...

    @abstractmethod
    def fail(self, error: EvalutionError) -> None: ...


@dataclass(eq=False, slots=True)
class CallJob(Job):
    """One call of a method; `result` gets its return value or error."""

    method: str = ""
    result: Future[Any] = field(default_factory=lambda: Future[Any]())

    def deliver(self, value: Any, *, is_last: bool) -> None:
        if not self.result.done():
            self.result.set_result(value)

    def fail(self, error: EvalutionError) -> None:
        if not self.result.done():
            self.result.set_exception(error)


def make_call_job(method: str, *arguments: Any, **options: Any) -> CallJob:
    """Make a call of the session's method, or of its tokenizer's `encode` or `decode`."""
    content = pickle.dumps((arguments, options))
    return CallJob(content, has_request=bool(arguments), method=method)


@dataclass(eq=False, slots=True, kw_only=True)
class StreamItem(Job):
    """A request of a stream; with `has_text`, part of its text was delivered already."""

    stream: PooledStream
    key: Hashable
    metadata: dict[str, Any] | None = None
    has_text: bool = False

    def deliver(self, value: Event, *, is_last: bool) -> None:
        self.stream.deliver(self, value, is_last=is_last)

    def fail(self, error: EvalutionError) -> None:
        self.deliver(RequestFailure(error), is_last=True)


class PooledStream:
    """A caller's stream over all workers: open items and unread answers.

    All state is under the scheduler's lock.

    Args:
        kind: kind of its requests.
        deltas: texts come as they grow.
        batch_size: a cap on what runs at once over all workers; None leaves it to the sessions.
        unread_bound: no item is placed while so many answers are unread.
        run: so many items in a row go to the same worker, for the sake of what they share.
    """

    def __init__(
        self,
        lock: threading.RLock,
        kind: RequestKind,
        *,
        deltas: bool = False,
        batch_size: int | None,
        unread_bound: int,
        run: int,
    ):
        self._changed = threading.Condition(lock)
        self.kind = kind
        self.deltas = deltas
        self.batch_size = batch_size
        self._run = run
        self._run_left = 0
        self._run_slot: object = None
        self.backlog: deque[StreamItem] = deque()
        self._unread_bound = unread_bound
        self._results: deque[tuple[Hashable, Event]] = deque()
        self._unread = 0
        self._open: dict[int, StreamItem] = {}
        self.input_ended = False
        self._input_error: BaseException | None = None
        self._error: EvalutionError | None = None
        self._is_closed = False

    @property
    def has_ended(self) -> bool:
        return self._is_closed or self._error is not None

    @property
    def takes_more(self) -> bool:
        """True if an item may be placed, as far as the reader is concerned."""
        return not self.has_ended and self._unread < self._unread_bound

    # the scheduler's side

    def stays_on(self, slot: object) -> bool:
        """True if the next item should go where the last one went."""
        return self._run_left > 0 and self._run_slot is slot

    def place_on(self, slot: object) -> None:
        if not self.stays_on(slot):
            self._run_slot, self._run_left = slot, self._run
        self._run_left -= 1

    def add(self, item: StreamItem) -> None:
        self._open[item.number] = item
        self.backlog.append(item)

    def deliver(self, item: StreamItem, value: Event, *, is_last: bool) -> None:
        if self.has_ended or item.number not in self._open:
            return
        if is_last:
            del self._open[item.number]
            self._unread += 1
            value = _add_metadata(value, item.metadata)
        else:
            item.has_text = True
        self._results.append((item.key, value))
        self._changed.notify_all()

    def reject(self, item: StreamItem, error: EvalutionError) -> None:
        """Answer a request that can't be sent."""
        self._open[item.number] = item
        item.fail(error)

    def end_input(self, error: BaseException | None = None) -> None:
        """Note that no item follows: after the last answer the stream ends, or raises `error`."""
        self.input_ended = True
        self._input_error = error
        self._changed.notify_all()

    def fail(self, error: EvalutionError) -> None:
        """End the stream: answers that are there can still be read, then `error` is raised."""
        if not self.has_ended:
            if isinstance(error, EngineRuntimeError):
                keys = [item.key for item in self._open.values()]
                self._error = EngineRuntimeError(str(error), in_flight=keys)
                self._error.__cause__ = error.__cause__
            else:
                self._error = error
            self._drop_open()

    def close(self) -> None:
        """End the stream: it is not read any more."""
        self._is_closed = True
        self._results.clear()
        self._drop_open()

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait, with the lock held by the caller, until the condition is true."""
        return self._changed.wait_for(condition, timeout)

    def notify(self) -> None:
        self._changed.notify_all()

    # the reader's side

    def results(self) -> Iterator[tuple[Any, Any]]:
        """Yield answers as they finish; no lock is held meanwhile."""
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> tuple[Hashable, Event] | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._results or self.has_ended or (self.input_ended and not self._open)
            )
            if self._results:
                key, value = self._results.popleft()
                if not isinstance(value, TextDelta):
                    self._unread -= 1
                    self._changed.notify_all()
                return key, value
            if error := self._error or self._input_error:
                raise error
            return None

    def _drop_open(self) -> None:
        for item in self._open.values():
            item.is_dropped = True
        self._open.clear()
        self.backlog.clear()
        self._changed.notify_all()


def split_metadata(
    request: Request | DistributionRequest,
) -> tuple[Request | DistributionRequest, dict[str, Any] | None]:
    """Return a request to send, and its metadata, which stays here: it may not pickle.

    What is no request, and metadata that is no dict, is sent as it is: the session refuses it.
    """
    if find_kind(request) is None and type(request) is not DistributionRequest:
        return request, None
    metadata = request.metadata
    if not isinstance(metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        return request, None
    return (replace(request, metadata={}) if metadata else request), metadata


def _add_metadata(value: Event, metadata: dict[str, Any] | None) -> Event:
    if metadata is not None:
        if isinstance(value, RequestFailure):
            return RequestFailure(value.error, metadata)
        if isinstance(value, Output):
            value.metadata = metadata
    return value
