"""Batches of requests to score: those that wait are scored together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from evalution_core import (
    BaseInferenceSession,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)

R = TypeVar("R")
A = TypeVar("A")

_WINDOW = 64
"""Requests scored in one call of the session."""
_WORKERS = 2
"""Scoring calls at once: one is encoded while the other is computed."""


@dataclass(slots=True)
class _Waiting(Generic[R, A]):
    request: R
    result: asyncio.Future[A | RequestFailure]
    since: float


class ScoringBatcher(Generic[R, A]):
    """Scores requests of all callers together as they arrive; an invalid one fails alone.

    A window takes one request of each caller in turn, so that a long list doesn't hold up others.

    Args:
        score: scores a window of requests; yields results by index.
        waited: called with the seconds that each request waited for its turn.
    """

    def __init__(
        self,
        score: Callable[[list[R]], Iterable[tuple[int, A | RequestFailure]]],
        waited: Callable[[float], None],
    ):
        self._score = score
        self._waited = waited
        self._callers: deque[deque[_Waiting[R, A]]] = deque()
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="scoring")
        self._idle = _WORKERS
        self._running: set[asyncio.Task[None]] = set()

    async def results(self, requests: Sequence[R]) -> list[A | RequestFailure]:
        """Return the results in the order of the requests.

        Raises:
            EvalutionError: the session failed.
        """
        loop = asyncio.get_running_loop()
        now = time.perf_counter()
        asked = [_Waiting[R, A](request, loop.create_future(), now) for request in requests]
        if asked:
            self._callers.append(deque(asked))
            self._start()
        return await asyncio.gather(*(one.result for one in asked))

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _start(self) -> None:
        while self._idle and (window := self._next_window()):
            self._idle -= 1
            task = asyncio.get_running_loop().create_task(self._run(window))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_window(self) -> list[_Waiting[R, A]]:
        window: list[_Waiting[R, A]] = []
        while self._callers and len(window) < _WINDOW:
            caller = self._callers.popleft()
            one = caller.popleft()
            if not one.result.done():  # its caller may have disconnected
                window.append(one)
            if caller:
                self._callers.append(caller)
        return window

    async def _run(self, window: list[_Waiting[R, A]]) -> None:
        now = time.perf_counter()
        for one in window:
            self._waited(now - one.since)
        requests = [one.request for one in window]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, lambda: dict(self._score(requests)))
            answers = [found[index] for index in range(len(window))]
        except Exception as error:  # noqa: BLE001 - raised where each result is awaited
            for one in window:
                if not one.result.done():
                    one.result.set_exception(error)
        else:
            for one, answer in zip(window, answers, strict=True):
                if not one.result.done():
                    one.result.set_result(answer)
        finally:
            self._idle += 1
            self._start()


def make_pair_scorer(
    session: BaseInferenceSession,
) -> Callable[
    [list[LoglikelihoodRequest]], Iterable[tuple[int, LoglikelihoodOutput | RequestFailure]]
]:
    return lambda requests: session.loglikelihood_continuous(enumerate(requests))


def make_text_scorer(
    session: BaseInferenceSession,
) -> Callable[
    [list[RollingLoglikelihoodRequest]],
    Iterable[tuple[int, RollingLoglikelihoodOutput | RequestFailure]],
]:
    """Score texts with the list call, repeated without those that it refuses."""

    def score(
        requests: list[RollingLoglikelihoodRequest],
    ) -> Iterator[tuple[int, RollingLoglikelihoodOutput | RequestFailure]]:
        keyed = list(enumerate(requests))
        while keyed:
            try:
                outputs = session.loglikelihood_rolling([request for _, request in keyed])
            except (InvalidRequestError, UnsupportedRequestError) as error:
                refused = error.failures or dict.fromkeys(range(len(keyed)), error)
                for index, failure in refused.items():
                    key, request = keyed[index]
                    yield key, RequestFailure(failure, request.metadata)
                keyed = [pair for at, pair in enumerate(keyed) if at not in refused]
            else:
                yield from zip((key for key, _ in keyed), outputs, strict=True)
                return

    return score
