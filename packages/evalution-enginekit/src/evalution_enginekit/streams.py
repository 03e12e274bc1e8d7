"""The consumer's side of a call: requests in, results out, bounded on both ends.

A push stream: `submit`, `results`, `cancel`, `abort`, `close`. `PulledStream` builds the contract's
iterators on it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from evalution_core import (
    InvalidRequestError,
    RequestFailure,
    RequestStream,
    TextDelta,
    UnsupportedRequestError,
)
from evalution_core.errors import raise_failures
from evalution_core.requests import parse_item

K = TypeVar("K", bound=Hashable)
J = TypeVar("J")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_ABORT_WAIT_S = 10.0
"""Seconds that `close` waits for the runtime to release its jobs; one step is normal."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of a stream.

    At most `running` jobs are in the runtime. Input is read until `running + ahead` jobs run or
    wait. Both stop while `running` results are unread.
    """

    running: int
    ahead: int


@dataclass(slots=True)
class _Result(Generic[K]):
    """An unread result; `part_of` is the running job that it is only a part of."""

    key: K
    value: Any
    part_of: int | None = None


class StreamOwner(Protocol):
    """The part of a `RuntimeThread` or `RequestLoop` that a stream needs."""

    @property
    def lock(self) -> threading.RLock: ...
    @property
    def is_current(self) -> bool: ...
    def wake(self) -> None: ...
    def post(self, function: Callable[[], None]) -> object: ...


class ResultStream(Generic[K, J, T]):
    """Jobs wait, run and turn into results; all state is under the runtime thread's lock."""

    def __init__(self, owner: StreamOwner, limits: StreamLimits) -> None:
        self._owner = owner
        self._changed = threading.Condition(owner.lock)
        self.limits = limits
        self.waiting: deque[tuple[K, J]] = deque()
        self.running: dict[int, K] = {}
        self._results: deque[_Result[K]] = deque()
        self._unread = 0
        self._parts: dict[int, _Result[K]] = {}
        self._cancelled: set[int] = set()
        self._on_its_way: tuple[K] | tuple[()] = ()
        self._is_turned_away = False
        self._error: BaseException | None = None
        self._input_error: BaseException | None = None
        self._input_open = True
        self._aborted = False
        self._last_submit = time.monotonic()

    # the producer's side

    def expect(self, key: K) -> None:
        """The next `submit` or `reject` is of that key, which may be cancelled from now on."""
        with self._changed:
            self._on_its_way = (key,)

    def submit(self, key: K, job: J) -> None:
        """Add a job, without limit; `wait_for_room` says when the limits would have it."""
        with self._changed:
            if self._is_entering():
                self.waiting.append((key, job))
            self._last_submit = time.monotonic()
        self._owner.wake()

    def reject(self, key: K, failure: RequestFailure) -> None:
        """Answer a request that can't be run; it takes no slot."""
        with self._changed:
            if self._is_entering():
                self._add_result(key, failure)

    def finish_input(self, error: BaseException | None = None) -> None:
        """No job follows: once all results are read, `results` ends, or raises the `error`."""
        with self._changed:
            self._input_open = False
            self._input_error = error
            self._changed.notify_all()
        self._owner.wake()

    def wait_for_room(self) -> bool:
        """Block until another job may be submitted; False if the stream has ended meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._has_room())
            return not self.ended

    # the runtime thread's side

    def admissible(self) -> int:
        """Return the number of waiting jobs that may start now."""
        if self.ended or self._unread >= self.limits.running:
            return 0
        return min(len(self.waiting), self.limits.running - len(self.running))

    def rest(self, patience: float) -> float:
        """Seconds until a batch should start: 0 now, infinity if nothing may.

        While more input may come and less than a full batch waits, that is `patience` seconds
        after the last job came.
        """
        if self.admissible() == 0:
            return math.inf
        if not self._input_open or len(self.waiting) >= self.limits.running:
            return 0.0
        return max(0.0, self._last_submit + patience - time.monotonic())

    def admit(self, number: int) -> tuple[K, J]:
        """Start the next waiting job, to be known as `number` until `release`."""
        key, job = self.waiting.popleft()
        self.running[number] = key
        self._changed.notify_all()
        return key, job

    def release(self, number: int) -> None:
        """Note that the runtime has released the job."""
        self.running.pop(number, None)
        self._cancelled.discard(number)
        self._changed.notify_all()

    def wants(self, number: int) -> bool:
        """Report whether the result of a running job is wanted; if not, it is to be dropped."""
        return not self.ended and number not in self._cancelled

    def deliver(self, number: int, result: T | RequestFailure) -> None:
        """Hand on the result of a running job."""
        if self.wants(number):
            self._add_result(self.running[number], result)

    def deliver_part(self, number: int, part: TextDelta) -> None:
        """Hand on a part of a running job's text; it joins the part before while that is unread.

        So a reader that pauses finds one part of each job, however long it stayed away.
        """
        if not self.wants(number):
            return
        if (unread := self._parts.get(number)) is None:
            self._parts[number] = unread = _Result(self.running[number], part, number)
            self._results.append(unread)
        else:
            before = unread.value
            unread.value = TextDelta(before.text + part.text, before.token_ids + part.token_ids)
        self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the stream: results that are there can still be read, then `error` is raised."""
        with self._changed:
            if not self.ended:
                self._error = error
            self.waiting.clear()
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        return self._aborted or self._error is not None

    # the consumer's side

    def results(self) -> Iterator[tuple[K, T | RequestFailure]]:
        """Results in completion order; no lock is held while the caller has one."""
        while (found := self.take_result()) is not None:
            yield found

    def take_result(self) -> tuple[K, T | RequestFailure] | None:
        """Return the next result as soon as there is one; None after the last."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._results
                    or self.ended
                    or not (self.waiting or self.running or self._input_open)
                )
            )
            if self._results:
                found = self._remove_unread(self._results.popleft())
                self._changed.notify_all()
            elif error := self._error or self._input_error:
                raise error
            else:
                return None
        if self.waiting:
            self._owner.wake()
        return found

    def cancel(self, key: Hashable) -> None:
        """Drop the jobs with that key wherever they are, with what is unread of them.

        One that runs is to be dropped by the runtime, as `wants` reports; one that is expected
        never enters. A key that is none of theirs changes nothing, now or when it comes.
        """
        with self._changed:
            running = {number for number, its_key in self.running.items() if its_key == key}
            waiting = deque(pair for pair in self.waiting if pair[0] != key)
            unread = [result for result in self._results if result.key == key]
            self._is_turned_away |= key in self._on_its_way
            self._cancelled |= running
            self.waiting = waiting
            self._results = deque(result for result in self._results if result.key != key)
            for result in unread:
                self._remove_unread(result)
            self._changed.notify_all()
        self._owner.wake()

    def abort(self) -> None:
        """Drop what waits and cancel what runs; unread results are gone."""
        with self._changed:
            self._aborted = True
            self.waiting.clear()
            self._results.clear()
            self._parts.clear()
            self._unread = 0
            self._changed.notify_all()

    def drop(self) -> None:
        """Abort soon: a garbage collection calls this, perhaps in the middle of a change here."""
        self._owner.post(self.abort)

    def close(self) -> None:
        """Abort, and wait until the runtime has released the stream's jobs."""
        self.abort()
        self._owner.wake()
        if self._owner.is_current:
            # A garbage collection that happens there can't wait for the thread's own next step.
            return
        with self._changed:
            if not self._changed.wait_for(lambda: not self.running, timeout=_ABORT_WAIT_S):
                _log.warning(
                    "the runtime still holds %d aborted requests after %.0f s",
                    len(self.running),
                    _ABORT_WAIT_S,
                )

    def _remove_unread(self, result: _Result[K]) -> tuple[K, T | RequestFailure]:
        if result.part_of is None:
            self._unread -= 1
        else:
            del self._parts[result.part_of]
        return result.key, result.value

    def _is_entering(self) -> bool:
        """Report whether the request that comes is still wanted."""
        is_wanted = not (self.ended or self._is_turned_away)
        self._on_its_way, self._is_turned_away = (), False
        return is_wanted

    def _add_result(self, key: K, result: T | RequestFailure) -> None:
        self._results.append(_Result(key, result))
        self._unread += 1
        self._changed.notify_all()

    def _has_room(self) -> bool:
        under_way = len(self.running) + len(self.waiting)
        return (
            under_way < self.limits.running + self.limits.ahead
            and self._unread < self.limits.running
        )


Q = TypeVar("Q")


class PulledStream(RequestStream[K, T | RequestFailure], Generic[K, Q, J, T]):
    """The contract's iterator on a push stream: results, as a thread of its own feeds `requests`.

    Nothing is opened or read before the first result is asked for. An exception of the input
    iterator is raised here after the results of all it had given; closing this iterator aborts the
    stream. A producer that never returns keeps its thread, a daemon.
    """

    def __init__(
        self,
        requests: Iterable[tuple[K, Q]],
        opening: Callable[[], ResultStream[K, J, T]],
        prepare: Callable[[Q], J | RequestFailure],
        name: str,
    ):
        self._requests, self._opening, self._prepare = requests, opening, prepare
        self._name = name
        self._stream: ResultStream[K, J, T] | None = None
        self._is_over = False

    def __next__(self) -> tuple[K, T | RequestFailure]:
        if self._is_over:
            raise StopIteration
        try:
            found = (self._stream or self._begin()).take_result()
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
            raise StopIteration
        return found

    def close(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        if self._stream is not None and not self._is_over:
            self._stream.drop()

    def cancel(self, key: Hashable) -> None:
        if self._stream is not None:
            self._stream.cancel(key)

    def _begin(self) -> ResultStream[K, J, T]:
        stream = self._stream = self._opening()
        # No method of this object, which would keep it alive: a stream that is dropped must end.
        threading.Thread(
            target=_feed,
            args=(self._requests, stream, self._prepare),
            name=f"{self._name} input",
            daemon=True,
        ).start()
        return stream


def _feed(
    requests: Iterable[tuple[Any, Q]],
    stream: ResultStream[Any, J, Any],
    prepare: Callable[[Q], J | RequestFailure],
) -> None:
    try:
        source = enumerate(requests)
        while stream.wait_for_room():
            try:
                position, item = next(source)
            except StopIteration:
                stream.finish_input()
                return
            parsed = parse_item(item, position)
            if isinstance(parsed, RequestFailure):
                stream.expect(None)
                stream.reject(None, parsed)
                continue
            key, request = parsed
            stream.expect(key)
            job = prepare(request)
            if isinstance(job, RequestFailure):
                stream.reject(key, job)
            else:
                stream.submit(key, job)
    except BaseException as error:  # noqa: BLE001 - it is raised again at the reading end
        stream.finish_input(error)


Refusal = InvalidRequestError | UnsupportedRequestError


def collect_results(
    stream: ResultStream[int, Any, Any],
    jobs: Sequence[Any],
    owners: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> list[Any]:
    """Return the results of jobs, in their order.

    Faults that the runtime finds in requests are raised for all of them, once every job is done.
    Any other error is raised at once, and what still runs is aborted.

    Args:
        stream: a fresh one, which is closed at the end.
        jobs: all are submitted at once.
        owners: the index of the request that each job is a part of, where it isn't the job's own.
        order: the indices of the jobs as they are to be submitted.
    """
    owners = range(len(jobs)) if owners is None else owners
    outputs: dict[int, Any] = {}
    refused: dict[int, Refusal] = {}
    try:
        for index in range(len(jobs)) if order is None else order:
            stream.submit(index, jobs[index])
        stream.finish_input()
        for index, result in stream.results():
            if not isinstance(result, RequestFailure):
                outputs[index] = result
            elif isinstance(result.error, Refusal):
                refused.setdefault(owners[index], result.error)
            else:
                raise result.error
    finally:
        stream.close()
    if refused:
        raise_failures(refused, len(set(owners)), are_others_answered=True)
    return [outputs[index] for index in range(len(jobs))]
