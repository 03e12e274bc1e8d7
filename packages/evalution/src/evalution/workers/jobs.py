"""The jobs of workers: calls, parts of list calls, and the items of a caller's stream."""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import count
from typing import Any, Self, cast

from evalution.workers.wire import pack_request
from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    RequestFailure,
    TextDelta,
    UnsupportedRequestError,
)
from evalution_core.errors import raise_failures
from evalution_core.kinds import RequestKind
from evalution_core.requests import Output, Request

_numbers = count()


@dataclass(eq=False, slots=True)
class Job(ABC):
    """One thing to answer; all state is under the scheduler's lock.

    `started` is the scheduler's time when the session took it or was last seen at work on it.
    """

    payload: bytes
    number: int = field(default_factory=lambda: next(_numbers))
    crashes_alone: int = 0
    started: float | None = None
    is_dropped: bool = False

    @property
    def weight(self) -> int:
        """The number of requests in it."""
        return 1

    def halves(self) -> Sequence[Self]:
        """Split it into two parts, or return `[self]` if it is a single request."""
        return [self]

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


@dataclass(eq=False, slots=True)
class ListPart(CallJob):
    """Part of a list call, from request `start` on; `result` gets its outputs in order."""

    kind: RequestKind = RequestKind.GENERATION
    requests: Sequence[Request] = ()
    batch_size: int | None = None
    start: int = 0

    @property
    def weight(self) -> int:
        return max(1, len(self.requests))

    def halves(self) -> Sequence[ListPart]:
        """Split it into two parts whose joined results become the result of this one."""
        if len(self.requests) < 2:
            return [self]
        half = (len(self.requests) + 1) // 2
        parts = [
            make_list_part(self.kind, self.requests[:half], self.batch_size, self.start),
            make_list_part(self.kind, self.requests[half:], self.batch_size, self.start + half),
        ]

        def join(_: Future[Any]) -> None:
            if all(part.result.done() for part in parts):
                try:
                    self.deliver(join_outputs(parts), is_last=True)
                except EvalutionError as error:
                    self.fail(error)

        for part in parts:
            part.result.add_done_callback(join)
        return parts


def make_list_part(
    kind: RequestKind, requests: Sequence[Request], batch_size: int | None, start: int
) -> ListPart:
    """Make a list call of these requests, those from `start` on of a longer one.

    Raises:
        InvalidRequestError: a request can't be pickled.
    """
    return ListPart(
        pack_request(((list(requests),), {"batch_size": batch_size})),
        method=kind.list_call,
        kind=kind,
        requests=requests,
        batch_size=batch_size,
        start=start,
    )


def join_outputs(parts: Sequence[ListPart]) -> list[Output]:
    """Return the outputs of adjacent parts in order; waits until all are done.

    Raises:
        InvalidRequestError, UnsupportedRequestError: some requests were refused; names all of them.
        EvalutionError: the first other error of a part.
    """
    outputs: list[Output] = []
    refused: dict[int, EvalutionError] = {}
    begin = parts[0].start
    for part in parts:
        try:
            found = part.result.result()
        except (InvalidRequestError, UnsupportedRequestError) as error:
            if not error.failures:
                raise
            offset = part.start - begin
            refused |= {offset + index: failure for index, failure in error.failures.items()}
            continue
        if len(found) != len(part.requests):
            raise EngineRuntimeError(
                f"the session answered {len(found)} of {len(part.requests)} requests, and "
                "doesn't say which"
            )
        outputs.extend(found)
    if refused:
        raise_failures(refused, sum(len(part.requests) for part in parts))
    return outputs


def make_call_job(method: str, *arguments: Any, **options: Any) -> CallJob:
    """Make a call of the session's method, or of its tokenizer's `encode` or `decode`."""
    return CallJob(pickle.dumps((arguments, options)), method=method)


@dataclass(eq=False, slots=True, kw_only=True)
class StreamItem(Job):
    """A request of a stream; with `has_text`, part of its text was delivered already."""

    stream: PooledStream
    key: Hashable
    metadata: dict[str, Any] | None = None
    has_text: bool = False

    def deliver(self, value: Any, *, is_last: bool) -> None:
        self.stream.deliver(self, value, is_last=is_last)

    def fail(self, error: EvalutionError) -> None:
        self.stream.deliver_failure(self, error)


@dataclass(slots=True)
class _Unread:
    item: StreamItem
    value: Any
    is_delta: bool = False


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
        self._results: deque[_Unread] = deque()
        self._deltas: dict[int, _Unread] = {}
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

    def placed_on(self, slot: object) -> None:
        if not self.stays_on(slot):
            self._run_slot, self._run_left = slot, self._run
        self._run_left -= 1

    def add(self, item: StreamItem) -> None:
        self._open[item.number] = item
        self.backlog.append(item)

    def deliver(self, item: StreamItem, value: Any, *, is_last: bool) -> None:
        if self.has_ended or item.number not in self._open:
            return
        if isinstance(value, TextDelta):
            self._deliver_delta(item, value)
            return
        if is_last:
            self._settle(item, _with_metadata(value, item.metadata))

    def deliver_failure(self, item: StreamItem, error: EvalutionError) -> None:
        if not self.has_ended and item.number in self._open:
            self._settle(item, RequestFailure(error, item.metadata or {}))

    def reject(self, key: Any, failure: RequestFailure) -> None:
        """Answer a request that can't be sent."""
        item = StreamItem(b"", stream=self, key=key)
        self._open[item.number] = item
        self._settle(item, failure)

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
        self._deltas.clear()
        self._unread = 0
        self._drop_open()

    def wait_for(self, condition: Any, timeout: float | None = None) -> bool:
        """Wait, with the lock held by the caller, until the condition is true."""
        return self._changed.wait_for(condition, timeout)

    def notify(self) -> None:
        self._changed.notify_all()

    # the reader's side

    def results(self) -> Iterator[tuple[Any, Any]]:
        """Yield answers as they finish; no lock is held meanwhile."""
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> tuple[Any, Any] | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._results or self.has_ended or (self.input_ended and not self._open)
            )
            if self._results:
                found = self._results.popleft()
                if not found.is_delta:
                    self._unread -= 1
                    self._changed.notify_all()
                elif self._deltas.get(found.item.number) is found:
                    del self._deltas[found.item.number]
                return found.item.key, found.value
            if error := self._error or self._input_error:
                raise error
            return None

    def _deliver_delta(self, item: StreamItem, delta: TextDelta) -> None:
        item.has_text = True
        unread = self._deltas.get(item.number)
        if unread is None:
            unread = self._deltas[item.number] = _Unread(item, delta, is_delta=True)
            self._results.append(unread)
        else:
            # A reader that pauses finds one delta of each request, however long it paused.
            before = unread.value
            unread.value = TextDelta(before.text + delta.text, before.token_ids + delta.token_ids)
        self._changed.notify_all()

    def _settle(self, item: StreamItem, value: Any) -> None:
        del self._open[item.number]
        self._deltas.pop(item.number, None)
        self._results.append(_Unread(item, value))
        self._unread += 1
        self._changed.notify_all()

    def _drop_open(self) -> None:
        for item in self._open.values():
            item.is_dropped = True
        self._open.clear()
        self.backlog.clear()
        self._changed.notify_all()


def split_metadata(request: Any) -> tuple[Any, Any]:
    """Return a request to send, and its metadata, which stays here: it may not pickle.

    Metadata that is no dict stays with the request: the session refuses it.
    """
    metadata: Any = getattr(request, "metadata", None)
    if not isinstance(metadata, dict) or not is_dataclass(request) or isinstance(request, type):
        return request, None
    kept = cast("dict[str, Any]", metadata)
    return (replace(request, metadata={}) if kept else request), kept


def _with_metadata(value: Any, metadata: Any) -> Any:
    if metadata is None:
        return value
    if isinstance(value, RequestFailure):
        return RequestFailure(value.error, metadata)
    if hasattr(value, "metadata"):
        value.metadata = metadata
    return value
