"""A session for event loops: the requests of all tasks share streams of it, in fair turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from evalution_core import (
    BaseInferenceSession,
    Capability,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RequestStream,
    SessionClosedError,
    TextDelta,
)
from evalution_core.kinds import RequestKind, find_kind
from evalution_core.requests import Output, Request
from evalution_core.streams import open_stream
from evalution_enginekit.calls import Call, Event, Outbox
from evalution_enginekit.channels import Channel
from evalution_enginekit.fair_queue import (
    Accounts,
    count_prompts,
    current_caller,
    estimate_cost,
    find_saving,
)

T = TypeVar("T")
_GATHERING_S = 0.02
"""Seconds that a round of a session without continuous batching stays open after a request."""
_WINDOW = 64
"""Requests to score in one round."""
_LEAST_SHARED = 8
"""Slots from which one is kept for calls of one request."""
_SCORING_READERS = 2
"""Rounds of requests to score at once: one is prepared while the other is computed."""
_LONG_TEXT, _LONG_IDS = 32_768, 8_192
"""Characters, or ids, of a prompt that takes a while to prepare. It goes into a stream of its own:
in a shared one, the requests of others would wait for that."""


class AsyncSession:
    """A session as tasks see it: each awaits its own requests, and the session runs them together.

    Requests to generate go into long streams of the session, where a new one joins those that run:
    one each for whole and for growing texts, for short and for long prompts, and for calls of one
    request and of several. A session that doesn't declare `continuous_batching` gets rounds of the
    requests that wait instead, as all requests to score do. A stream takes the request whose caller
    has had the fewest tokens (`fair_queue`), and the session shares itself among streams. Of eight
    slots or more, calls of several requests leave one free: a single request finds it at once,
    whatever those hold. A call that waits for a slot gets that of a request which costs eight times
    as much, if no text of it has come; that request begins again later, once at most. Of seven
    slots or more, that one stays with requests as short until none has come for a second.

    A runtime that fails costs the callers that had requests in it: they get the error, and all
    others go on in a stream that follows. A task that is cancelled, or closes its iterator, gives
    up its requests: they are aborted where the session's stream can do that, else their answers are
    dropped. Tasks of several event loops may use the session at once.

    The session stays the caller's, who closes it after this.

    Args:
        session: where requests go, from threads of this object.
        batch_size: how many requests of one stream run at once; None leaves it to the session.
        on_start: called for each request that the session takes, with its kind and the seconds that
            it waited; on a thread of this object or of the session.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        *,
        batch_size: int | None = None,
        on_start: Callable[[RequestKind, float], None] | None = None,
    ):
        self._session = session
        self._batch_size = batch_size
        self._on_start = on_start
        self._streams_text = Capability.STREAM in session.capabilities
        self._is_continuous = Capability.CONTINUOUS_BATCHING in session.capabilities
        self._max_model_len = session.info.max_model_len
        self._accounts = Accounts()
        self._lock = threading.RLock()
        self._channels: dict[tuple[RequestKind, bool, bool, bool], Channel] = {}
        self._outboxes: dict[asyncio.AbstractEventLoop, Outbox] = {}
        self._is_closed = False

    @property
    def streams_text(self) -> bool:
        """True if `stream` yields text as it grows; if not, it yields it once, at the end."""
        return self._streams_text

    async def generate(self, request: GenerationRequest) -> GenerationOutput:
        """Return the output of one request.

        Raises:
            EvalutionError: the session refused the request, failed, or was closed meanwhile.
        """
        return (await self.complete([request]))[0]

    async def complete(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Return the outputs of one caller's requests, in their order.

        Raises:
            EvalutionError: as `generate`, over one of the requests; the others are given up.
        """
        return await self._collect(requests, _check_result)

    async def score(self, request: LoglikelihoodRequest) -> LoglikelihoodOutput:
        """Return the score of one continuation; raises as `generate`."""
        return _check_result((await self.answer([request]))[0])

    async def stream(
        self, request: GenerationRequest
    ) -> AsyncGenerator[TextDelta | GenerationOutput]:
        """Yield the text of one request as it grows, or in one piece; then its output.

        Raises as `generate`. Closing the iterator gives up the request.
        """
        async with aclosing(self.events([request], deltas=True)) as events:
            async for _, event in events:
                result = _check_result(event)
                assert isinstance(result, TextDelta | GenerationOutput), result
                yield result

    async def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Return one caller's outputs and failures, of requests of one kind, in their order.

        Raises:
            EvalutionError: the session failed, or was closed meanwhile.
        """
        return await self._collect(requests, lambda event: event)

    async def events(
        self, requests: Sequence[Request], *, deltas: bool = False
    ) -> AsyncGenerator[tuple[int, Event]]:
        """Yield what becomes of one caller's requests, all of one kind, by their indices.

        A request that is refused, or with which alone the runtime fails, is a `RequestFailure`.
        With `deltas`, texts come before their outputs: as they grow, or in one piece if the session
        can't stream. Closing the iterator gives up what is not finished.

        Raises:
            EvalutionError: the session failed, or was closed meanwhile.
        """
        left = len(requests)
        with self._submit(requests, deltas=deltas and self._streams_text) as call:
            while left:
                index, event = await call.read()
                left -= not isinstance(event, TextDelta)
                if deltas and not self._streams_text and isinstance(event, GenerationOutput):
                    yield index, TextDelta(event.text, tuple(event.token_ids or ()))
                yield index, event

    def close(self) -> None:
        """Give up all requests: their tasks, and later ones, get `SessionClosedError`."""
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()

    async def _collect(
        self, requests: Sequence[Request], read: Callable[[Event], Any]
    ) -> list[Any]:
        """Return what `read` makes of each request's event; if it raises, the rest is given up."""
        found: dict[int, Any] = {}
        with self._submit(requests) as call:
            while len(found) < len(requests):
                index, event = await call.read()
                found[index] = read(event)
        return [found[index] for index in range(len(requests))]

    def _submit(self, requests: Sequence[Request], *, deltas: bool = False) -> Call:
        """Begin a call, whose requests are given up at the end of a `with` on it."""
        if not requests:
            return Call([], self._find_outbox())
        kind = find_kind(requests[0])
        if kind is None:
            raise InvalidRequestError(f"expected a request, got {requests[0]!r}")
        sizes = count_prompts(requests)
        is_long = any(characters > _LONG_TEXT or ids > _LONG_IDS for characters, ids in sizes)
        is_single = len(requests) == 1
        longest = self._max_model_len
        costs = [estimate_cost(*pair, longest) for pair in zip(requests, sizes, strict=True)]
        with self._lock:
            if self._is_closed:
                raise SessionClosedError("the asynchronous session is closed; make a new one")
            key = kind, deltas, is_long, is_single
            if key not in self._channels:
                self._channels[key] = self._make_channel(kind, deltas, is_single=is_single)
            channel = self._channels[key]
            outbox = self._find_outbox()
        call = Call(requests, outbox, current_caller.get(), costs)
        if channel.join(call):
            outbox.watch(channel)
        return call

    def _find_outbox(self) -> Outbox:
        loop = asyncio.get_running_loop()
        if loop not in self._outboxes:
            for other in [known for known in self._outboxes if known.is_closed()]:
                del self._outboxes[other]
            self._outboxes[loop] = Outbox(loop)
        return self._outboxes[loop]

    def _make_channel(self, kind: RequestKind, deltas: bool, *, is_single: bool) -> Channel:
        batch_size = self._batch_size
        slots = batch_size or self._session.info.preferred_batch_size or 0
        if not is_single and slots >= _LEAST_SHARED and kind is RequestKind.GENERATION:
            batch_size = slots = slots - 1

        def open_kind(requests: Iterable[tuple[int, Any]]) -> RequestStream[int, Any]:
            return kind.open_stream(self._session, requests, batch_size=batch_size)

        def open_text(requests: Iterable[tuple[int, Any]]) -> RequestStream[int, Any]:
            return open_stream(
                lambda source: self._session.stream(source, batch_size=batch_size), requests
            )

        def save(request: Request, output: Output) -> float:
            return find_saving(request, output, self._max_model_len)

        def on_start(waited: float) -> None:
            if self._on_start is not None:
                self._on_start(kind, waited)

        if kind is not RequestKind.GENERATION:
            return Channel(
                open_kind,
                on_start,
                self._accounts,
                save,
                patience=0.0,
                window=_WINDOW,
                readers=_SCORING_READERS,
            )
        patience = None if self._is_continuous else _GATHERING_S
        opening = open_text if deltas else open_kind
        return Channel(
            opening,
            on_start,
            self._accounts,
            save,
            patience=patience,
            slots=slots if self._is_continuous and slots else None,
        )


def _check_result(result: T | RequestFailure) -> T:
    if isinstance(result, RequestFailure):
        raise result.error
    return result
