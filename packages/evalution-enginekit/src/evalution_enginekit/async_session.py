"""Generation for an event loop: requests that come one by one share a stream of the session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Generator,
    Iterable,
    Iterator,
    MutableMapping,
)
from contextlib import aclosing, closing, suppress
from itertools import count
from typing import cast

from evalution_core import (
    BaseInferenceSession,
    CancellableStream,
    Capability,
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    RequestFailure,
    SessionClosedError,
    StreamEvent,
    TextDelta,
)

_GATHERING_S = 0.02
"""Seconds that a round of a session without continuous batching stays open after a request."""
_ROUND_S = 0.2
"""How long it stays open at most, or requests that come steadily would keep it from starting."""
_CLOSE_WAIT_S = 10.0
"""How long `close` waits for the session to let go; it normally takes one step."""

_Events = Generator[tuple[int, StreamEvent]]


class AsyncSession:
    """A session as tasks see it: each awaits its own request, and the session runs them together.

    All requests go into one long stream of the session, where a new one joins those that run. A
    session that doesn't declare `continuous_batching` gets rounds of the requests that wait. Tasks
    of several event loops may use it at once. The session stays the caller's, who closes it after
    this.

    A task that is cancelled gives up its request: it is aborted where the session's stream can do
    that, else its answer is dropped.

    Args:
        session: where requests go, from a thread of this object.
        capabilities: what the session can do: its own word, else that of its engine.
        deltas: whether `stream` is to give text as it grows, which costs the session a little.
        batch_size: how many requests run at once; None leaves it to the session.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        capabilities: frozenset[Capability],
        *,
        deltas: bool = False,
        batch_size: int | None = None,
    ):
        self._session = session
        self._batch_size = batch_size
        self._patience = None if Capability.CONTINUOUS_BATCHING in capabilities else _GATHERING_S
        self._tells = deltas and Capability.STREAM in capabilities
        self._changed = threading.Condition()
        self._waiting: OrderedDict[int, _Call] = OrderedDict()
        self._running: dict[int, _Call] = {}
        self._stream: _Events | None = None
        self._numbers = count()
        self._round = 0
        self._was_asked = False
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="session stream", daemon=True)
        self._thread.start()

    @property
    def tells_deltas(self) -> bool:
        """Whether `stream` gives text as it grows."""
        return self._tells

    async def generate(self, request: GenerationRequest) -> GenerationOutput:
        """The output of one request.

        Raises:
            EvalutionError: the session refused the request, failed, or was closed meanwhile.
        """
        async with aclosing(self.stream(request)) as events:
            async for event in events:
                if isinstance(event, GenerationOutput):
                    return event
        raise AssertionError("a stream ends with its output")

    async def stream(
        self, request: GenerationRequest
    ) -> AsyncGenerator[TextDelta | GenerationOutput]:
        """The text of one request, in one piece where it isn't told as it grows; then its output.

        Raises as `generate`. Closing the iterator gives up the request.
        """
        key, call = next(self._numbers), _Call(request)
        with self._changed:
            if self._closed:
                raise SessionClosedError("the asynchronous session is closed; make a new one")
            self._waiting[key] = call
            self._changed.notify_all()
        try:
            while not isinstance(event := await call.events.get(), GenerationOutput):
                if isinstance(event, BaseException):
                    raise event
                yield event
            if not self._tells:
                yield TextDelta(event.text, tuple(event.token_ids or ()))
            yield event
        finally:
            self._give_up(key)

    def close(self) -> None:
        """Give up all requests: their tasks, and later ones, get `SessionClosedError`."""
        error = SessionClosedError("the asynchronous session was closed meanwhile")
        with self._changed:
            self._closed = True
            keys = list(self._running)
            _answer(self._running, error)
            _answer(self._waiting, error)
            self._changed.notify_all()
        self._cancel(keys)
        if (
            threading.current_thread() is not self._thread
        ):  # a garbage collection may close it there
            self._thread.join(_CLOSE_WAIT_S)

    def _give_up(self, key: int) -> None:
        with self._changed:
            self._waiting.pop(key, None)
            call = self._running.pop(key, None)
            if call is not None:
                call.is_given_up = True
        if call is not None:
            self._cancel([key])

    def _cancel(self, keys: Iterable[int]) -> None:
        stream = self._stream
        if isinstance(stream, CancellableStream):
            for key in keys:
                stream.cancel(key)

    # on the thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
            self._was_asked = False
            try:
                self._run_stream()
                error: BaseException = EngineRuntimeError("the session's stream ended too early")
                refused = not self._was_asked
            except BaseException as failure:  # noqa: BLE001 - the tasks that wait raise it
                error, refused = failure, not self._running
            with self._changed:
                _answer(self._waiting if refused else self._running, error)
                self._round += 1
                self._changed.notify_all()

    def _run_stream(self) -> None:
        opening = self._session.stream if self._tells else self._session.generate_continuous
        requests = self._requests(self._round)
        stream = cast(_Events, opening(requests, batch_size=self._batch_size))
        self._stream = stream
        with closing(stream):
            for key, event in stream:
                if self._closed:
                    return
                with self._changed:
                    over = not isinstance(event, TextDelta)
                    call = self._running.pop(key, None) if over else self._running.get(key)
                if call is not None:
                    call.tell(event.error if isinstance(event, RequestFailure) else event)

    def _requests(self, number: int) -> Iterator[tuple[int, GenerationRequest]]:
        """What waits, for as long as stream `number` is the one that is read."""
        self._was_asked = True
        closes = time.monotonic() + _ROUND_S
        while True:
            patience = self._patience
            if patience is not None and time.monotonic() > closes:
                patience = 0.0  # what waits may still come along
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._closed or self._round != number,
                    timeout=patience,
                )
                if not self._waiting or self._closed or self._round != number:
                    return
                key, call = self._waiting.popitem(last=False)
                self._running[key] = call
            yield key, call.request
            # Given up in the moment before the stream had it, it was not under way to be cancelled.
            if call.is_given_up:
                self._cancel([key])


class _Call:
    """A request whose task waits for what becomes of it."""

    def __init__(self, request: GenerationRequest):
        self.request = request
        self.is_given_up = False
        self.events: asyncio.Queue[TextDelta | GenerationOutput | BaseException] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def tell(self, event: TextDelta | GenerationOutput | BaseException) -> None:
        # Nobody waits any more where the event loop has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)


def _answer(calls: MutableMapping[int, _Call], error: BaseException) -> None:
    while calls:
        calls.popitem()[1].tell(error)
