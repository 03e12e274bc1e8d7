"""The way of generation calls into a session: an event loop asks, and threads ask the session.

Calls share a stream of the session, where a new one joins those that run, and one whose client is
gone is taken out. Where the session can't do that, each call has a stream of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Any, cast

from evalution_core import (
    BaseInferenceSession,
    CancellableStream,
    GenerationOutput,
    GenerationRequest,
    RequestFailure,
    StreamEvent,
    TextDelta,
)
from evalution_openai.server.own_stream import Opening, OwnCall
from evalution_openai.server.shared_stream import SharedCall, SharedStream

_LONG_TEXT = 32_768
_LONG_IDS = 8_192
"""Characters, or ids, of a request that it takes a while to prepare. It has a stream of its own: in
a shared one, the requests of others would wait for that."""


class GenerationLane:
    """Generation calls, at most `limit` of them in the session at once, first come first served.

    Args:
        session: where they go.
        limit: calls in the session.
        refills: whether the session takes input that stays open, which lets a call join others, and
            be aborted before it has given anything.
        streams: whether the session gives text while it grows.
        waited: told how many seconds each call waited for its turn.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        *,
        limit: int,
        refills: bool,
        streams: bool,
        waited: Callable[[float], None],
    ):
        self._session = session
        self._turns = asyncio.Semaphore(limit)
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="generation")
        self._refills = refills
        self._streams = streams
        self._waited = waited
        self._can_share: dict[bool, bool] = {}
        self._shared: dict[bool, SharedStream] = {}

    async def events(
        self, requests: Sequence[GenerationRequest], *, deltas: bool
    ) -> AsyncGenerator[tuple[int, StreamEvent]]:
        """What becomes of each request, by its index; with `deltas`, its text as it grows.

        Closing the iterator early aborts what still runs.
        """
        if not requests:
            return
        call = await self._entered(requests, deltas)
        try:
            while (event := await _next_event(call)) is not None:
                yield event
        finally:
            await call.leave()

    async def stream_of(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, TextDelta | GenerationOutput]]:
        """Text as it grows, or at once where the session can't stream; then the output.

        Raises:
            EvalutionError: a request was refused, or the session failed; the others are aborted.
        """
        async with aclosing(self.events(requests, deltas=self._streams)) as events:
            async for index, event in events:
                if isinstance(event, RequestFailure):
                    raise event.error
                if isinstance(event, GenerationOutput) and not self._streams:
                    yield index, TextDelta(event.text, tuple(event.token_ids or ()))
                yield index, event

    async def outputs(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """The outputs in the order of the requests; what waits is aborted by the first failure.

        Raises:
            EvalutionError: a request was refused, or the session failed.
        """
        if not requests:
            return []
        found: dict[int, GenerationOutput] = {}
        call = await self._entered(requests, deltas=False)
        try:
            while (event := await _next_event(call)) is not None:
                found[event[0]] = _output(event[1])
        finally:
            await call.leave()
        return [found[index] for index in range(len(requests))]

    async def finished(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, GenerationOutput]]:
        """The outputs as they come; raises as `outputs`. Requests are taken when there is room."""
        async with aclosing(self.events(requests, deltas=False)) as events:
            async for index, event in events:
                yield index, _output(event)

    def close(self) -> None:
        for stream in self._shared.values():
            stream.close()
        self._threads.shutdown(wait=False)

    async def _entered(
        self, requests: Sequence[GenerationRequest], deltas: bool
    ) -> SharedCall | OwnCall:
        """A call that has had its turn; whoever gets it has it `leave`."""
        began = time.perf_counter()
        await self._turns.acquire()
        self._waited(time.perf_counter() - began)
        try:
            return self._begun(requests, deltas)
        except BaseException:
            self._turns.release()
            raise

    def _begun(self, requests: Sequence[GenerationRequest], deltas: bool) -> SharedCall | OwnCall:
        over = self._turns.release
        if self._shares(deltas) and not any(_is_long(request) for request in requests):
            call = SharedCall(requests, over)
            self._shared_stream(deltas).join(call)
            return call
        return OwnCall(
            self._opening(deltas),
            requests,
            stays_open=self._refills,
            threads=self._threads,
            over=over,
        )

    def _shares(self, deltas: bool) -> bool:
        """Whether the session can take one request out of a stream. An empty stream tells."""
        if deltas not in self._can_share:
            with closing(cast(Any, self._opening(deltas)(()))) as empty:
                is_cancellable = isinstance(empty, CancellableStream)
            self._can_share[deltas] = self._refills and is_cancellable
        return self._can_share[deltas]

    def _shared_stream(self, deltas: bool) -> SharedStream:
        stream = self._shared.get(deltas)
        if stream is None or stream.is_over:
            stream = SharedStream(self._opening(deltas), lambda: self._shared_stream(deltas))
            self._shared[deltas] = stream
        return stream

    def _opening(self, deltas: bool) -> Opening:
        return self._session.stream if deltas else self._session.generate_continuous


async def _next_event(call: SharedCall | OwnCall) -> tuple[int, StreamEvent] | None:
    """None at the end; raises what ended the call early."""
    event = await call.events.get()
    if event is None and call.error is not None:
        raise call.error
    return event


def _output(event: StreamEvent) -> GenerationOutput:
    if isinstance(event, RequestFailure):
        raise event.error
    assert isinstance(event, GenerationOutput)
    return event


def _is_long(request: GenerationRequest) -> bool:
    if request.input_ids is not None:
        return len(request.input_ids) > _LONG_IDS
    length = len(request.rendered_prompt or request.prompt or "")
    for message in request.messages or ():
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else [one.get("text") for one in content]
        length += sum(len(part or "") for part in parts)
    return length > _LONG_TEXT
