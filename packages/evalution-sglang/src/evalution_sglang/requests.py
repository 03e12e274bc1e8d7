"""Requests at SGLang, each followed on the engine's own event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from evalution_core import EngineRuntimeError, InvalidRequestError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenPrompt
from evalution_enginekit.serving import EventLoopRequests, RequestUpdate, SpanGroup
from evalution_sglang.host import EngineHost
from evalution_sglang.outputs import generation_update, scored_update
from evalution_sglang.parameters import Parameters
from evalution_sglang.shared_prefixes import SharedPrefixes

_LOOK_S = 0.002
_LETTING_GO_S = 5.0


class EngineRequests:
    """A `ServingRuntime` on SGLang's asynchronous calls.

    Args:
        host: runs SGLang's engine.
        parameters: makes the arguments of its calls.
    """

    def __init__(self, host: EngineHost, parameters: Parameters):
        self._host = host
        self._engine = host.engine
        self._parameters = parameters
        self._events = EventLoopRequests(host.engine.loop)
        self._prefixes = SharedPrefixes()

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self._events.start(request_id, self._generated(request_id, prompt))

    def score(self, request_id: str, group: SpanGroup) -> None:
        if self._prefixes.enter(request_id, group):
            self._events.start(request_id, self._scored(request_id, group))

    def advance(self) -> list[RequestUpdate]:
        self._host.ensure_alive()
        updates = self._events.advance()
        self._host.ensure_alive()
        for update in updates:
            if update.is_finished:
                self._leave(update.request_id)
        return updates

    def abort(self, request_ids: Sequence[str]) -> None:
        if self._host.is_alive:
            self._events.run(self._let_go(set(request_ids)))
        self._events.abort(request_ids)
        for name in request_ids:
            self._leave(name, besides=set(request_ids))

    def wake(self) -> None:
        self._events.wake()

    def flush(self) -> None:
        """Empty the cache of prefixes, on the one event loop, once SGLang has nothing to do."""
        self._host.ensure_alive()
        manager = self._engine.tokenizer_manager
        self._events.run(manager.flush_cache(timeout_s=_LETTING_GO_S))
        self._prefixes = SharedPrefixes()

    def _leave(self, name: str, besides: Collection[str] = ()) -> None:
        """Start what waited for this request's prefix, but for those that are dropped with it."""
        for follower, group in self._prefixes.leave(name).items():
            if follower not in besides:
                self._events.start(follower, self._scored(follower, group))

    async def _let_go(self, names: set[str]) -> None:
        """Abort requests, and wait until SGLang works on none of them, for a few seconds."""
        manager = self._engine.tokenizer_manager
        for name in names:
            manager.abort_request(name)
        deadline = time.monotonic() + _LETTING_GO_S
        while names & manager.rid_to_state.keys():
            self._host.ensure_alive()
            if time.monotonic() > deadline:
                raise EngineRuntimeError("SGLang doesn't let go of requests that were aborted")
            await asyncio.sleep(_LOOK_S)

    async def _generated(
        self, request_id: str, prompt: TokenPrompt
    ) -> AsyncIterator[RequestUpdate]:
        given = self._parameters.generation(prompt)
        outputs: Any = await self._engine.async_generate(rid=request_id, **given)
        try:
            async for output in outputs:
                yield generation_update(request_id, output, prompt)
        except ValueError as error:
            raise _refused(error) from error

    async def _scored(self, request_id: str, group: SpanGroup) -> AsyncIterator[RequestUpdate]:
        try:
            output: Any = await self._engine.async_generate(
                rid=request_id, **self._parameters.scoring(group)
            )
        except ValueError as error:
            raise _refused(error) from error
        yield scored_update(request_id, output, group)


def _refused(error: ValueError) -> InvalidRequestError:
    return InvalidRequestError(f"SGLang refuses the request: {scrub(str(error))}")
