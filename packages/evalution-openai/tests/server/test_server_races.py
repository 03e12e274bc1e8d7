"""A client that goes, sends on or stays away at an awkward moment."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from evalution_core import Model
from evalution_enginekit.mock import Mock

WAIT_S = 20


def request(body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


@pytest.fixture
def long() -> Iterator[Any]:
    """A session of which a request may run for minutes."""
    with Mock(max_model_len=3_000_000).build(Model("mock")) as session:
        yield session


LONG = {"prompt": "a", "max_tokens": 1_000_000, "ignore_eos": True}


class Wire(asyncio.Transport):
    """A client whose bytes come in the pieces that a test wants."""

    def __init__(self, app: Any):
        import uvicorn
        from uvicorn.server import ServerState

        from evalution_openai.server.connections import Connection

        super().__init__()
        config = uvicorn.Config(app, http=Connection, lifespan="off", ws="none", log_config=None)
        self.state = ServerState()
        self.is_read = True
        self.written = b""
        self._is_closing = False
        self._connection = Connection(config, self.state, {})
        self._connection.connection_made(self)

    @property
    def timer(self) -> Any:
        """What ends the wait for the rest of a head."""
        return self._connection._timer

    def come(self, piece: bytes) -> None:
        assert self.is_read
        assert not self._is_closing
        self._connection.data_received(piece)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.written += data

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    async def end(self) -> None:
        """Go, and see the requests end."""
        self.close()
        await self.until(lambda: not self.state.tasks)

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await asyncio.sleep(0.001)


def on_a_wire(session: Any, work: Callable[[Wire, Any], Coroutine[Any, Any, None]]) -> str:
    """The server's figures after `work`, which gets a client and the application."""
    from evalution_openai.server import build_openai_compatible_server

    async def within() -> str:
        app = build_openai_compatible_server(session=session)
        wire = Wire(app)
        async with asyncio.timeout(WAIT_S):
            await work(wire, app)
            await wire.end()
        app.served().calls.close()
        return app.metrics.render().decode()

    return asyncio.run(within())


ABORTED = "evalution_requests_aborted_total 1.0"


def test_disconnect_after_a_large_body_is_noticed(long: Any, until: Any) -> None:
    text = request({**LONG, "user": "u" * 300_000})

    async def work(wire: Wire, app: Any) -> None:
        wire.come(text[:1000])
        await wire.until(lambda: app.served().bodies.total)
        wire.come(text[1000:])
        await wire.until(lambda: long.requests_in_flight)
        assert wire.is_read, "else nobody learns that the client goes"

    assert ABORTED in on_a_wire(long, work)
    until(lambda: not long.requests_in_flight)


def test_disconnect_aborts_pipelined_requests_silently(
    long: Any, caplog: pytest.LogCaptureFixture, until: Any
) -> None:
    async def work(wire: Wire, app: Any) -> None:
        wire.come(request(LONG) + request(LONG))
        await wire.until(lambda: long.requests_in_flight)

    page = on_a_wire(long, work)
    assert ABORTED in page
    assert 'status="499"} 1.0' in page
    assert "evalution_requests_inside 0.0" in page
    assert "evalution_body_bytes 0.0" in page
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING], caplog.text
    until(lambda: not long.requests_in_flight)


async def on_a_bare_wire(work: Callable[[Wire, list[Asked]], Coroutine[Any, Any, None]]) -> None:
    """`work` with a client, and a list of what it asked, which is answered when it says so."""
    asked: list[Asked] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        asked.append(Asked(scope["extensions"]["evalution.client"]))
        await asked[-1].answer(send)

    async with asyncio.timeout(WAIT_S):
        wire = Wire(answer)
        await work(wire, asked)
        for one in asked:
            one.let_it_answer.set()
            one.let_it_end.set()
        await wire.end()


class Asked:
    """A request that is answered, and then ends, when it is told to."""

    def __init__(self, client: Any):
        self.let_it_answer = asyncio.Event()
        self.let_it_end = asyncio.Event()
        self.is_gone = False
        self.stop = client.call_when_gone(self._leave)

    async def answer(self, send: Any) -> None:
        await self.let_it_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        await self.let_it_end.wait()
        self.stop()

    def _leave(self) -> None:
        self.is_gone = True


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_end_of_a_request_keeps_the_watch_of_the_next_one() -> None:
    async def work(wire: Wire, asked: list[Asked]) -> None:
        wire.come(GET + GET)
        await wire.until(lambda: asked)
        asked[0].let_it_answer.set()
        await wire.until(lambda: len(asked) == 2)
        asked[0].let_it_end.set()
        await wire.until(lambda: len(wire.state.tasks) == 1)
        wire.close()
        await wire.until(lambda: asked[1].is_gone)
        assert not asked[0].is_gone

    asyncio.run(on_a_bare_wire(work))


def test_pipelined_head_does_not_time_out_the_running_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from evalution_openai.server import connections

    monkeypatch.setattr(connections, "HEAD_S", 0.01)

    async def work(wire: Wire, asked: list[Asked]) -> None:
        wire.come(GET + GET[:10])
        await wire.until(lambda: asked)
        first = wire.timer
        assert first is not None
        await wire.until(lambda: wire.is_closing() or wire.timer is not first)
        assert not wire.is_closing()
        asked[0].let_it_answer.set()
        await wire.until(wire.is_closing)
        assert wire.written.startswith(b"HTTP/1.1 200 ")

    asyncio.run(on_a_bare_wire(work))


def test_body_bytes_do_not_count_as_head() -> None:
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"

    async def work(wire: Wire, asked: list[Asked]) -> None:
        wire.come(post)
        await wire.until(lambda: asked)
        wire.come(b"a" * 60_000 + GET[:-2] + b"X-A: " + b"a" * 10_000)
        assert not wire.is_closing()
        wire.come(b"a" * 70_000)
        assert wire.is_closing(), "a head has a limit all the same"
        assert b"400 " in wire.written

    asyncio.run(on_a_bare_wire(work))


@pytest.mark.parametrize("target", [b"CONNECT localhost:1", b"GET http://["])
def test_first_request_with_an_invalid_target_is_refused(
    target: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(wire: Wire, asked: list[Asked]) -> None:
        wire.come(target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.is_closing()
        assert wire.written.startswith(b"HTTP/1.1 400 ")
        assert not asked

    asyncio.run(on_a_bare_wire(work))
    assert caplog.messages == ["Invalid HTTP request received."]


@pytest.mark.parametrize("around", [b"1;", b"1\r\n{\r\n0\r\nX-A: "], ids=["extension", "trailer"])
def test_bytes_around_the_parts_of_a_body_are_bounded(long: Any, around: bytes) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def work(wire: Wire, app: Any) -> None:
        wire.come(head + around)
        wire.come(b"a" * 60_000)
        assert not wire.written
        wire.come(b"a" * 10_000)
        assert wire.written.startswith(b"HTTP/1.1 400 ")

    on_a_wire(long, work)
