"""Two forms of serving runtime besides one with a `step`: async requests, and fixed batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from evalution_core import EngineRuntimeError, EvalutionError
from evalution_enginekit.serving import RequestUpdate
from evalution_enginekit.span_groups import SpanGroup
from evalution_enginekit.tokens import TokenPrompt

R = TypeVar("R")

_PATIENCE_S = 0.05
"""How long `advance` waits for an update; scoring, which nothing wakes, looks around that often."""


class EventLoopRequests:
    """Requests of a runtime with an async call for each, on one event loop of the runtime thread.

    The loop runs only inside of `advance`, `abort` and `run`; what the runtime does in processes
    or threads of its own goes on meanwhile.

    Args:
        loop: the runtime's own event loop where it has one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._updates: list[RequestUpdate] = []
        self._broken: Exception | None = None
        self._changed = asyncio.Event()

    def start(self, request_id: str, updates: AsyncIterator[RequestUpdate]) -> None:
        """Follow `updates`, the last of which is finished, in the background."""
        self._tasks[request_id] = self._loop.create_task(self._follow(request_id, updates))

    def advance(self) -> list[RequestUpdate]:
        """The updates that came; waits a moment for the first.

        Raises:
            Exception: what a request's iterator raised, unless it was an `EvalutionError`.
        """
        if not self._updates:
            self._loop.run_until_complete(self._wait())
        if self._broken is not None:
            raise self._broken
        updates, self._updates = self._updates, []
        return updates

    def abort(self, request_ids: Sequence[str]) -> None:
        """Cancel the tasks and wait for their end; the runtime's own abort comes before."""
        tasks = [self._tasks.pop(name) for name in request_ids if name in self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """What a coroutine of the runtime (a flush of its cache, say) returns."""
        return self._loop.run_until_complete(call)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def _follow(self, request_id: str, updates: AsyncIterator[RequestUpdate]) -> None:
        try:
            finished = False
            async for update in updates:
                finished = update.is_finished
                self._tell(update)
            if not finished:
                raise EngineRuntimeError("the runtime ended a request without finishing it")
        except EvalutionError as error:
            self._tell(RequestUpdate(request_id, is_finished=True, error=error))
        except Exception as error:  # noqa: BLE001 - raised again where the session maps it
            self._broken = error
            self._changed.set()
        finally:
            self._tasks.pop(request_id, None)

    def _tell(self, update: RequestUpdate) -> None:
        self._updates.append(update)
        self._changed.set()


Work = TokenPrompt | SpanGroup


class FixedBatchRequests:
    """The requests of a runtime that takes a batch and returns when all of it is done.

    Sessions on it don't declare `Capability.REFILL`: a batch in hand is finished on abort too.

    Args:
        run: runs prompts and groups of spans, by request id, and gives one finished update each.
    """

    def __init__(self, run: Callable[[Mapping[str, Work]], Iterable[RequestUpdate]]):
        self._run = run
        self._waiting: dict[str, Work] = {}

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self._waiting[request_id] = prompt

    def score(self, request_id: str, group: SpanGroup) -> None:
        self._waiting[request_id] = group

    def advance(self) -> Iterable[RequestUpdate]:
        batch, self._waiting = self._waiting, {}
        return self._run(batch) if batch else ()

    def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self._waiting.pop(name, None)

    def wake(self) -> None:
        """Nothing waits."""
