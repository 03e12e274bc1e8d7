"""Many requests on one event loop: depth, refill, abort, faults and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    InvalidRequestError,
    RequestFailure,
    SessionClosedError,
    TextDelta,
)
from evalution_enginekit.request_loop import Emit, RequestJob, RequestLoop
from evalution_enginekit.streams import StreamLimits

WAIT_S = 10.0


class Server:
    """Serves jobs that end when they are told to, and counts how many run at once."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.most = 0
        self._running = 0
        self._gates: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._changed = threading.Condition()

    def job(self, name: str) -> RequestJob:
        async def serve(_: Emit) -> str:
            gate = asyncio.Event()
            with self._changed:
                self.began.append(name)
                self._gates[name] = asyncio.get_running_loop(), gate
                self._running += 1
                self.most = max(self.most, self._running)
                self._changed.notify_all()
            try:
                await gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            finally:
                self._running -= 1
            return name.upper()

        return RequestJob(serve, {"name": name})

    def wait_for(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(names) <= set(self.began), WAIT_S)

    def end(self, name: str) -> None:
        loop, gate = self._gates[name]
        loop.call_soon_threadsafe(gate.set)


@pytest.fixture
def loop() -> Iterator[RequestLoop]:
    loop = RequestLoop("the test session", 2)
    yield loop
    loop.close(_nothing)


async def _nothing() -> None:
    return None


def failing(error: BaseException) -> RequestJob:
    async def serve(_: Emit) -> Any:
        raise error

    return RequestJob(serve, {})


def immediate(value: Any) -> RequestJob:
    async def serve(_: Emit) -> Any:
        return value

    return RequestJob(serve, {})


def test_a_free_slot_is_refilled_in_the_order_of_completion(loop: RequestLoop) -> None:
    server = Server()
    stream = loop.open(StreamLimits(running=2, ahead=2))
    for name in "abcd":
        stream.submit(name, server.job(name))
    stream.finish_input()
    results = stream.results()
    server.wait_for("a", "b")
    assert "c" not in server.began
    server.end("b")
    assert next(results) == ("b", "B")
    server.wait_for("c")
    server.end("c")
    server.wait_for("d")
    server.end("d")
    server.end("a")
    assert {key for key, _ in results} == {"a", "c", "d"}
    assert server.most == 2


def test_the_depth_may_shrink_and_grow_while_requests_run(loop: RequestLoop) -> None:
    server = Server()
    stream = loop.open(StreamLimits(running=4, ahead=4))
    for name in "abcde":
        stream.submit(name, server.job(name))
    server.wait_for("a", "b")
    loop.set_depth(1)
    server.end("a")
    results = stream.results()
    assert next(results)[0] == "a"
    assert server.began == ["a", "b"], "above a depth that shrank, none starts"
    loop.set_depth(3)
    server.wait_for("c", "d")
    assert loop.running == 3
    stream.close()


def test_closing_a_stream_cancels_what_runs_and_no_other(loop: RequestLoop) -> None:
    server = Server()
    first, second = (loop.open(StreamLimits(running=1, ahead=0)) for _ in range(2))
    first.submit("a", server.job("a"))
    second.submit("b", server.job("b"))
    server.wait_for("a", "b")
    first.close()
    assert server.cancelled == ["a"]
    assert loop.running == 1
    server.end("b")
    assert next(second.results()) == ("b", "B")


def test_slow_cancellation_is_not_interrupted(loop: RequestLoop) -> None:
    begun, leaving, let_go = threading.Event(), threading.Event(), threading.Event()
    go_on = threading.Event()

    async def serve(_: Emit) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            leaving.set()
            while not go_on.is_set():
                await asyncio.sleep(0)
            let_go.set()

    first, second = (loop.open(StreamLimits(running=1, ahead=0)) for _ in range(2))
    first.submit("a", RequestJob(serve, {}))
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=first.close)
    closing.start()
    assert leaving.wait(WAIT_S)
    loop.wake()
    second.submit("b", immediate(1))
    assert next(second.results()) == ("b", 1)
    assert closing.is_alive()
    go_on.set()
    closing.join(WAIT_S)
    assert let_go.is_set()


def test_streams_take_turns(loop: RequestLoop) -> None:
    server = Server()
    loop.set_depth(1)
    first, second = (loop.open(StreamLimits(running=3, ahead=0)) for _ in range(2))
    first.submit("a1", server.job("a1"))
    server.wait_for("a1")
    for name in ("a2", "a3"):
        first.submit(name, server.job(name))
    second.submit("b1", server.job("b1"))
    server.end("a1")
    server.wait_for("b1")
    assert server.began == ["a1", "b1"], "the stream that was served goes last"


def test_an_error_is_its_requests_own(loop: RequestLoop) -> None:
    stream = loop.open(StreamLimits(running=3, ahead=0))
    stream.submit("bad", failing(InvalidRequestError("no")))
    stream.submit("foreign", failing(KeyError("x")))
    stream.submit("good", immediate(7))
    stream.finish_input()
    results = dict(stream.results())
    assert results["good"] == 7
    bad, foreign = results["bad"], results["foreign"]
    assert isinstance(bad, RequestFailure)
    assert isinstance(bad.error, InvalidRequestError)
    assert isinstance(foreign, RequestFailure)
    assert isinstance(foreign.error, EngineRuntimeError)
    assert isinstance(foreign.error.__cause__, KeyError)


def test_a_runtime_that_fails_for_every_slot_ends_the_stream(loop: RequestLoop) -> None:
    stream = loop.open(StreamLimits(running=8, ahead=8))
    for number in range(8):
        stream.submit(number, failing(EngineRuntimeError("connection refused")))
    failed: list[Any] = []
    results = stream.results()
    with pytest.raises(EngineRuntimeError, match="connection refused") as caught:
        failed.extend(key for key, _ in results)
    assert len(failed) == 2, "depth 2: the third failure in a row is the last"
    assert caught.value.in_flight, "the error names the requests that were lost"
    assert not set(failed) & set(caught.value.in_flight)


def test_successes_between_failures_keep_the_stream(loop: RequestLoop) -> None:
    loop.set_depth(1)
    stream = loop.open(StreamLimits(running=20, ahead=20))
    for number in range(20):
        bad = number % 3
        stream.submit(number, failing(EngineRuntimeError("500")) if bad else immediate(number))
    stream.finish_input()
    results = dict(stream.results())
    assert sorted(results) == list(range(20))
    assert sum(isinstance(result, RequestFailure) for result in results.values()) == 13


def test_unread_deltas_of_a_request_are_joined(loop: RequestLoop) -> None:
    async def serve(tell: Emit) -> str:
        for letter in "abc":
            tell(TextDelta(letter, (ord(letter),)))
        return "abc"

    stream = loop.open(StreamLimits(running=1, ahead=0))
    stream.submit(0, RequestJob(serve, {}))
    stream.finish_input()
    loop.call(_nothing)
    events = [event for _, event in stream.results()]
    assert events[-1] == "abc"
    assert "".join(event.text for event in events[:-1] if isinstance(event, TextDelta)) == "abc"


def test_closing_ends_streams_and_refuses_calls() -> None:
    server = Server()
    loop = RequestLoop("the test session", 1)
    stream = loop.open(StreamLimits(running=1, ahead=0))
    stream.submit("a", server.job("a"))
    server.wait_for("a")
    closings: list[int] = []

    async def last() -> None:
        closings.append(1)

    others = [threading.Thread(target=loop.close, args=(last,)) for _ in range(3)]
    for thread in others:
        thread.start()
    loop.close(last)
    for thread in others:
        thread.join(WAIT_S)
    assert closings == [1], "the last coroutine is awaited once"
    assert server.cancelled == ["a"]
    for use in (lambda: list(stream.results()), lambda: loop.call(_nothing)):
        with pytest.raises(SessionClosedError, match="the test session"):
            use()
    with pytest.raises(SessionClosedError, match="the test session"):
        loop.open(StreamLimits(1, 0))


def test_closing_leaves_the_tasks_of_a_request_to_it() -> None:
    loop = RequestLoop("the test session", 2)
    ran: list[str] = []

    async def child() -> None:
        ran.append("child")

    async def serve(_: Emit) -> None:
        loop.close(_nothing)
        await asyncio.sleep(0)  # it is about to cancel
        task = asyncio.ensure_future(child())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await task

    stream = loop.open(StreamLimits(running=1, ahead=1))
    stream.submit("a", RequestJob(serve, {}))
    with pytest.raises(SessionClosedError, match="the test session"):
        list(stream.results())
    loop.close(_nothing)
    assert ran == ["child"]


def test_request_that_ignores_cancellation_does_not_block_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evalution_enginekit.request_loop._LETTING_GO_S", 0.05)
    loop = RequestLoop("the test session", 2)
    server = Server()

    async def serve(tell: Emit) -> None:
        try:
            await server.job("a").serve(tell)
        finally:
            await asyncio.get_running_loop().create_future()

    loop.open(StreamLimits(running=1, ahead=1)).submit("a", RequestJob(serve, {}))
    server.wait_for("a")
    loop.close(_nothing)
    assert server.cancelled == ["a"]


def test_error_of_close_is_raised_to_its_caller() -> None:
    loop = RequestLoop("the test session")

    async def last() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        loop.close(last)
    loop.close(last)


def test_call_waiting_at_close_gets_an_error() -> None:
    loop = RequestLoop("the test session")
    begun = threading.Event()
    caught: list[BaseException] = []

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call(function: Callable[[], Any]) -> None:
        try:
            loop.call(function)
        except SessionClosedError as error:
            caught.append(error)

    caller = threading.Thread(target=call, args=(forever,))
    caller.start()
    assert begun.wait(WAIT_S)
    closed: Callable[[], Awaitable[None]] = _nothing
    loop.close(closed)
    caller.join(WAIT_S)
    assert len(caught) == 1


def test_a_call_from_the_loop_itself_is_refused_and_does_not_hang(loop: RequestLoop) -> None:
    async def nested() -> None:
        loop.call(_nothing)

    with pytest.raises(EngineRuntimeError, match="waits for its own event loop"):
        loop.call(nested)
