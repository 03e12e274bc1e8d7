"""Rows of log-probabilities from a session in a worker: both ends of the call, block by block.

The parent asks for each block, one ahead of the block that its caller works on, so that both
processes compute while neither holds more. What it asks says all that the answer depends on: a
worker that was started in the place of another one goes on where that ended.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, takewhile
from pickle import PickleBuffer
from typing import Any, NamedTuple, TypeVar

from evalution.workers.jobs import CallJob, make_call_job, split_metadata
from evalution.workers.scheduler import Scheduler
from evalution.workers.wire import pack_request
from evalution_core import (
    BaseInferenceSession,
    EngineRuntimeError,
    InvalidRequestError,
    RequestFailure,
)
from evalution_core.requests import DistributionRequest, DistributionRows, parse_item
from evalution_core.streams import open_stream

K = TypeVar("K", bound=Hashable)

_WINDOW = 16
"""Requests that a worker is given at once, where the caller sets no bound."""
_numbers = count()


class Block(NamedTuple):
    """Rows of a request, by its index, from its position `first` on; `data` are float32 bytes."""

    request: int
    first: int
    data: PickleBuffer | bytes | bytearray
    shape: tuple[int, ...]


Answer = Block | tuple[int, RequestFailure] | None
"""A block, a failure with its request's index, or nothing after the last one."""


class RowServer:
    """The worker's end: open iterators over rows of a session, by numbers that the parent gives."""

    def __init__(self, session: BaseInferenceSession):
        self._session = session
        self._open: dict[int, Generator[Answer]] = {}

    def read(
        self, number: int, index: int, done: int, requests: Sequence[bytes], batch_size: int | None
    ) -> Answer:
        """Return the next block or failure.

        An iterator that isn't open begins with `requests`, of which the first has the index `index`
        and got `done` rows before. A block is the session's own memory, valid until the next call.
        """
        if number not in self._open:
            self._open[number] = self._iterate(index, done, requests, batch_size)
        try:
            return next(self._open[number], None)
        except BaseException:
            del self._open[number]
            raise

    def close(self, number: int) -> None:
        """Close an iterator, and with it that of the session."""
        if (answers := self._open.pop(number, None)) is not None:
            answers.close()

    def _iterate(
        self, index: int, done: int, requests: Sequence[bytes], batch_size: int | None
    ) -> Generator[Answer]:
        asked: list[DistributionRequest] = [pickle.loads(request) for request in requests]
        if done:
            asked[0] = replace(asked[0], start=asked[0].start + done)
        call = partial(self._session.distributions, batch_size=batch_size)
        with open_stream(call, enumerate(asked, index)) as events:
            for key, event in events:
                if isinstance(event, RequestFailure):
                    yield key, event
                elif event.rows.nbytes:
                    rows, first = event.rows, event.first + (done if key == index else 0)
                    if rows.format != "f" or rows.ndim != 2 or not rows.c_contiguous:
                        raise EngineRuntimeError(
                            "distributions must be float32, C-contiguous and of shape (positions, "
                            f"vocabulary), got format {rows.format!r} and shape {rows.shape}"
                        )
                    yield Block(key, first, PickleBuffer(rows), rows.shape or ())


@dataclass(slots=True)
class _Asked:
    """A request; pickled, unless it can't be and `failure` says why."""

    key: Hashable
    request: Any
    metadata: dict[str, Any] | None
    payload: bytes = b""
    failure: RequestFailure | None = None


class RowReader:
    """The parent's end: rows of a caller's requests, in order.

    A worker gets the requests in windows. Those of a window that fails as a whole, such as one that
    ended its worker twice, are tried one by one; what fails alone is a failure of its own.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Iterable[tuple[Hashable, DistributionRequest]],
        batch_size: int | None,
    ):
        self._scheduler = scheduler
        self._source = enumerate(requests)
        self._batch_size = batch_size
        self._window: deque[_Asked] = deque()
        self._index = 0
        self._done = 0
        """Rows that came of the window's first request, which is number `_index` in all."""
        self._number = next(_numbers)
        self._left = 0
        """Requests that the worker's iterator has still to answer."""
        self._alone = 0
        """Requests that are tried one by one."""

    def read(self) -> Iterator[tuple[Any, DistributionRows | RequestFailure]]:
        """Yield rows and failures; closing it early closes the worker's iterator."""
        job = None
        try:
            job = self._ask()
            while job is not None:
                event = self._take(job)
                job = self._ask()
                if event is not None:
                    yield event
        finally:
            if job is not None:
                job.is_dropped = True
            self._scheduler.release_call(make_call_job("close_rows", self._number))

    def _ask(self) -> CallJob | None:
        """Ask for the next block; None if nothing is left to ask for."""
        if not self._window:
            items = islice(self._source, self._batch_size or _WINDOW)
            self._window.extend(_pack_item(item, position) for position, item in items)
        if not self._window:
            return None
        if self._window[0].failure is not None:
            return CallJob(b"")
        if not self._left:
            ready = list(takewhile(lambda asked: asked.failure is None, self._window))
            self._left = 1 if self._alone else len(ready)
            self._scheduler.submit(make_call_job("close_rows", self._number))
            self._number = next(_numbers)
        sent = [asked.payload for asked in islice(self._window, self._left)]
        place = (self._number, self._index, self._done)
        job = make_call_job("read_rows", *place, sent, self._batch_size)
        self._scheduler.submit(job)
        return job

    def _take(self, job: CallJob) -> tuple[Hashable, DistributionRows | RequestFailure] | None:
        asked = self._window[0]
        if asked.failure is not None:
            return self._finish(asked.failure)
        try:
            answer: Answer = job.result.result()
        except EngineRuntimeError as error:
            self._scheduler.ensure_open()
            return self._fail(error)
        if answer is None:
            return self._fail(EngineRuntimeError("the session ended without rows of this request"))
        if answer[0] != self._index:
            raise EngineRuntimeError("the session gave distributions out of turn")
        if not isinstance(answer, Block):
            return self._finish(answer[1])
        self._done = answer.first + answer.shape[0]
        if self._done >= len(asked.request.input_ids) - asked.request.start:
            self._advance()
        rows: Any = memoryview(answer.data).cast("f", answer.shape)
        return asked.key, DistributionRows(answer.first, rows)

    def _fail(self, error: EngineRuntimeError) -> tuple[Hashable, RequestFailure] | None:
        """Return the failure of a request that was alone; else have its window tried again."""
        if self._left > 1:
            self._alone, self._left = self._left, 0
            return None
        found = EngineRuntimeError(str(error), in_flight=[self._window[0].key])
        found.__cause__ = error.__cause__
        return self._finish(RequestFailure(found))

    def _finish(self, failure: RequestFailure) -> tuple[Hashable, RequestFailure]:
        asked = self._window[0]
        self._advance()
        if asked.metadata is not None:
            failure = RequestFailure(failure.error, asked.metadata)
        return asked.key, failure

    def _advance(self) -> None:
        self._window.popleft()
        self._index, self._done = self._index + 1, 0
        self._left, self._alone = max(0, self._left - 1), max(0, self._alone - 1)


def _pack_item(item: object, position: int) -> _Asked:
    parsed = parse_item(item, position)
    if isinstance(parsed, RequestFailure):
        return _Asked(None, None, None, failure=parsed)
    key, request = parsed
    bare, metadata = split_metadata(request)
    try:
        return _Asked(key, request, metadata, pack_request(bare))
    except InvalidRequestError as error:
        return _Asked(key, request, metadata, failure=RequestFailure(error))
