"""What one task is told by others, in its order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from itertools import count
from threading import Event
from typing import Any, Generic, Protocol, TypeVar, cast

from evalution_core import (
    BaseInferenceSession,
    CancellableStream,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    GenerationRequest,
    RequestFailure,
    SessionClosedError,
    StreamEvent,
    TextDelta,
)

T = TypeVar("T")


class EventQueue(Generic[T]):
    """A queue without an end and with one reader, all on one event loop.

    `asyncio.Queue` is for many readers, and a request makes one: its two waiting lists and its
    event cost more than what passes through.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> T:
        """The next item, as soon as there is one."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()


_POKE = -1

Keyed = Iterator[tuple[int, StreamEvent]]
Opening = Callable[[Iterable[tuple[int, GenerationRequest]]], Keyed]


class OwnStreamCall:
    """One stream into the session, pulled on a thread and read on the event loop.

    Args:
        opening: begins a stream of the session.
        requests: what goes into it.
        stays_open: whether the session takes input that stays open, which lets the call be aborted
            before it has given anything.
        threads: where it is pulled.
        over: called on the event loop when the session has let go, however slowly events are read.
    """

    def __init__(
        self,
        opening: Opening,
        requests: Sequence[GenerationRequest],
        *,
        stays_open: bool,
        threads: Executor,
        over: Callable[[], None],
    ):
        self.events: EventQueue[tuple[int, StreamEvent] | None] = EventQueue()
        self._opening = opening
        self._requests = requests
        self._stays_open = stays_open
        self._loop = asyncio.get_running_loop()
        self._over = Event()
        self._aborted = False
        self._done = self._loop.run_in_executor(threads, self._run)
        self._done.add_done_callback(lambda _: over())
        self._done.add_done_callback(lambda _: self.events.put(None))

    @property
    def error(self) -> BaseException | None:
        """What went wrong, once the events have ended."""
        return self._done.exception()

    async def leave(self) -> None:
        """Abort what runs, and wait until the session has let go."""
        self._aborted = True
        self._over.set()
        await asyncio.wait([self._done])

    def _run(self) -> None:
        left = len(self._requests)
        stream = cast("Generator[tuple[int, StreamEvent]]", self._opening(self._input()))
        try:
            with closing(stream):
                for key, event in stream:
                    if self._aborted:
                        return
                    self._loop.call_soon_threadsafe(self.events.put, (key, event))
                    left -= not isinstance(event, TextDelta)
                    if not left:
                        return
        finally:
            self._over.set()

    def _input(self) -> Iterator[tuple[int, GenerationRequest]]:
        """The requests; then, if the call is aborted, one that is refused.

        `_run` waits for the session's next result, and this is one that comes at once: an iterator
        can't be closed by another thread while it is at work.
        """
        yield from enumerate(self._requests)
        if self._stays_open:
            self._over.wait()
            if self._aborted:
                yield _POKE, GenerationRequest()


class _Results(CancellableStream, Protocol):
    def __iter__(self) -> Iterator[tuple[int, StreamEvent]]: ...
    def close(self) -> None: ...


class SharedCall:
    """The requests of one client: those that wait for their turn, and those in the session."""

    def __init__(self, requests: Sequence[GenerationRequest], over: Callable[[], None]):
        self.events: EventQueue[tuple[int, StreamEvent] | None] = EventQueue()
        self.error: BaseException | None = None
        self.to_go = deque(range(len(requests)))
        self.under_way: dict[int, int] = {}
        self.stream: SharedStream | None = None
        self._requests = requests
        self._over: Callable[[], None] | None = over

    def take(self, number: int) -> GenerationRequest:
        """The next request that waits; it is in the session under that number then."""
        self.under_way[number] = index = self.to_go.popleft()
        return self._requests[index]

    def put_back(self) -> None:
        """Let what was in a stream that failed wait for another one."""
        self.to_go.extendleft(sorted(self.under_way.values(), reverse=True))
        self.under_way.clear()

    def tell(self, number: int, event: StreamEvent) -> None:
        index = self.under_way[number]
        self.events.put((index, event))
        if not isinstance(event, TextDelta):
            del self.under_way[number]
            if not (self.under_way or self.to_go):
                self.end()

    def end(self, error: BaseException | None = None) -> None:
        """No event follows, and the call's turn is over."""
        if self._over is not None:
            over, self._over = self._over, None
            self.error = error
            self.events.put(None)
            over()

    async def leave(self) -> None:
        """Give up what isn't finished."""
        if self.stream is not None and self._over is not None:
            self.stream.leave(self)


class SharedStream:
    """A stream of the session that stays open.

    The session takes the calls in turns, a request of each, so that a call with many holds up
    none with few. A runtime that fails costs the calls that had requests in it: the others go on in
    a stream that follows.

    Args:
        opening: begins a stream of the session, one that can cancel requests.
        succeed: gives the stream that follows this one, once it failed.
    """

    def __init__(self, opening: Opening, succeed: Callable[[], SharedStream]):
        self._loop = asyncio.get_running_loop()
        self._succeed = succeed
        self._changed = threading.Condition()
        self._ready: deque[SharedCall] = deque()
        self._calls: dict[int, SharedCall] = {}
        self._numbers = count()
        self._mail: deque[tuple[int, StreamEvent]] = deque()
        self._is_told = False
        self.is_over = False
        self._results = cast(_Results, opening(self._input()))
        threading.Thread(target=self._read, name="generation", daemon=True).start()

    # on the event loop

    def join(self, call: SharedCall) -> None:
        call.stream = self
        with self._changed:
            self._ready.append(call)
            self._changed.notify()

    def leave(self, call: SharedCall) -> None:
        with self._changed:
            call.to_go.clear()
            numbers = list(call.under_way)
            call.under_way.clear()
            for number in numbers:
                self._calls.pop(number, None)
        for number in numbers:
            self._results.cancel(number)
        call.end()

    def close(self) -> None:
        """Take nothing more, and cancel what runs."""
        with self._changed:
            self.is_over = True
            numbers, calls = list(self._calls), self._all_calls()
            self._calls.clear()
            self._changed.notify()
        for number in numbers:
            self._results.cancel(number)
        for call in calls:
            call.end(SessionClosedError("the server ends"))

    def _deliver(self) -> None:
        self._is_told = False
        with self._changed:
            while self._mail:
                number, event = self._mail.popleft()
                call = self._calls.get(number)
                if call is None:
                    continue  # its client has left
                if not isinstance(event, TextDelta):
                    del self._calls[number]
                call.tell(number, event)

    def _end(self, error: BaseException) -> None:
        """The session ended the stream: calls that lost a request fail, the others move on."""
        self._deliver()
        lost = set(error.in_flight if isinstance(error, EngineRuntimeError) else ())
        hit = {call for number, call in self._calls.items() if number in lost}
        for call in self._all_calls():
            if call in hit or not lost:
                call.end(error)
                continue
            call.put_back()
            try:
                self._succeed().join(call)
            except EvalutionError as failure:
                call.end(failure)

    def _all_calls(self) -> list[SharedCall]:
        return list(dict.fromkeys([*self._calls.values(), *self._ready]))

    # on the session's input thread

    def _input(self) -> Iterator[tuple[int, GenerationRequest]]:
        while (asked := self._next()) is not None:
            yield asked
            # Its client left in the moment before the session had it, when there was nothing to
            # cancel.
            if asked[0] not in self._calls:
                self._results.cancel(asked[0])

    def _next(self) -> tuple[int, GenerationRequest] | None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._ready or self.is_over)
                if self.is_over:
                    return None
                call = self._ready.popleft()
                if not call.to_go:
                    continue  # its client has left
                number = next(self._numbers)
                self._calls[number] = call
                request = call.take(number)
                if call.to_go:
                    self._ready.append(call)
                return number, request

    # on the thread that reads

    def _read(self) -> None:
        error: BaseException = EngineRuntimeError("the session ended its stream too early")
        try:
            with closing(self._results):
                for pair in self._results:
                    self._mail.append(pair)
                    if not self._is_told:
                        self._is_told = True
                        self._loop.call_soon_threadsafe(self._deliver)
        except BaseException as failure:  # noqa: BLE001 - the calls raise it where they are awaited
            error = failure
        with self._changed:
            self.is_over = True
            self._changed.notify()
        with suppress(RuntimeError):  # the event loop is gone, and whoever waited on it
            self._loop.call_soon_threadsafe(self._end, error)


_LONG_TEXT = 32_768
_LONG_IDS = 8_192
"""Characters, or ids, of a request that it takes a while to prepare. It has a stream of its own: in
a shared one, the requests of others would wait for that."""


class GenerationScheduler:
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
    ) -> SharedCall | OwnStreamCall:
        """A call that has had its turn; whoever gets it has it `leave`."""
        began = time.perf_counter()
        await self._turns.acquire()
        self._waited(time.perf_counter() - began)
        try:
            return self._begun(requests, deltas)
        except BaseException:
            self._turns.release()
            raise

    def _begun(
        self, requests: Sequence[GenerationRequest], deltas: bool
    ) -> SharedCall | OwnStreamCall:
        over = self._turns.release
        if self._shares(deltas) and not any(_is_long(request) for request in requests):
            call = SharedCall(requests, over)
            self._shared_stream(deltas).join(call)
            return call
        return OwnStreamCall(
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


async def _next_event(call: SharedCall | OwnStreamCall) -> tuple[int, StreamEvent] | None:
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
