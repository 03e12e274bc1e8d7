"""What workers are given to do, one answer each."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from evalution.workers.parcel import pack_request
from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    UnsupportedRequestError,
    raise_failures,
)

_numbers = count()


@dataclass(eq=False, slots=True)
class Job(ABC):
    """One thing to answer; all state is under the scheduler's lock.

    `started` is the scheduler's time when the session took it or was last seen at work on it.
    """

    payload: bytes
    number: int = field(default_factory=lambda: next(_numbers))
    lone_deaths: int = 0
    started: float | None = None
    is_dropped: bool = False

    @property
    def weight(self) -> int:
        """How many requests it stands for."""
        return 1

    def halves(self) -> Sequence[Self]:
        return [self]

    def restart(self) -> None:
        """Its worker has ended; another one begins from the start."""
        self.started = None

    @abstractmethod
    def deliver(self, value: Any, *, is_last: bool) -> None: ...

    @abstractmethod
    def fail(self, error: EvalutionError) -> None: ...


@dataclass(eq=False, slots=True)
class CallJob(Job):
    """One call of a method; `result` gets what it returns or raises."""

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

    requests: Sequence[Any] = ()
    batch_size: int | None = None
    start: int = 0

    @property
    def weight(self) -> int:
        return max(1, len(self.requests))

    def halves(self) -> Sequence[ListPart]:
        """Two parts whose results, joined, become the result of this one."""
        if len(self.requests) < 2:
            return [self]
        half = (len(self.requests) + 1) // 2
        parts = [
            list_part(self.method, self.requests[:half], self.batch_size, self.start),
            list_part(self.method, self.requests[half:], self.batch_size, self.start + half),
        ]

        def join(_: Future[Any]) -> None:
            if all(part.result.done() for part in parts):
                try:
                    self.deliver(joined_outputs(parts), is_last=True)
                except EvalutionError as error:
                    self.fail(error)

        for part in parts:
            part.result.add_done_callback(join)
        return parts


def list_part(method: str, requests: Sequence[Any], batch_size: int | None, start: int) -> ListPart:
    """A list call of these requests, which are those from `start` on of a longer one.

    Raises:
        InvalidRequestError: a request can't be pickled.
    """
    return ListPart(
        pack_request(((list(requests),), {"batch_size": batch_size})),
        method=method,
        requests=requests,
        batch_size=batch_size,
        start=start,
    )


def joined_outputs(parts: Sequence[ListPart]) -> list[Any]:
    """The outputs of parts that are next to each other; waits until all are done.

    Raises:
        InvalidRequestError, UnsupportedRequestError: some requests were refused; names all of them.
        EvalutionError: the first other error of a part.
    """
    outputs: list[Any] = []
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
                f"the session answered {len(found)} of {len(part.requests)} requests: which, it "
                "doesn't say"
            )
        outputs.extend(found)
    if refused:
        raise_failures(refused, sum(len(part.requests) for part in parts))
    return outputs


def call_job(method: str, *arguments: Any, **options: Any) -> CallJob:
    """A call of the session's method, or of its tokenizer's `encode` or `decode`."""
    return CallJob(pickle.dumps((arguments, options)), method=method)
