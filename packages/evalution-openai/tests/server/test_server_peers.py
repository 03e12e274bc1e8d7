"""A request's client as the server sees it: whether it is there, has sent all, and reads on."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evalution_core import BaseInferenceSession, Model
from evalution_enginekit.mock import Mock


class Client:
    """A connection's word on its client."""

    has_sent_all = True
    takes_more = True

    def __init__(self, *, is_gone: bool = False):
        self.is_gone = is_gone
        self.told: Callable[[], None] | None = None

    def call_when_gone(self, function: Callable[[], None]) -> Callable[[], None]:
        self.told = function
        return self.forget

    def forget(self) -> None:
        self.told = None


class Exchange:
    """One request to an application, without a server: what is sent, and a client that can go."""

    def __init__(self, app: Any, body: Any, client: Client | None = None):
        self.sent: list[Any] = []
        self._app = app
        self._client = client
        self._body: list[bytes] = [json.dumps(body).encode()]
        self._is_gone = asyncio.Event()

    async def run(self) -> None:
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
        if self._client is not None:
            scope["extensions"] = {"evalution.client": self._client}
        await self._app(scope, self._receive, self._send)

    def go(self) -> None:
        self._is_gone.set()
        if self._client is not None and self._client.told is not None:
            self._client.told()

    async def _receive(self) -> Any:
        if self._body:
            return {"type": "http.request", "body": self._body.pop()}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 20))


LONG = {"prompt": "a", "max_tokens": 1_000_000, "ignore_eos": True}


@pytest.mark.parametrize("client", [Client(), None], ids=["a connection tells", "messages tell"])
def test_who_goes_takes_its_request_along(client: Client | None, until: Any) -> None:
    from evalution_openai.server import build_openai_compatible_server

    with Mock(max_model_len=2_000_000).build(Model("mock")) as session:

        async def serve() -> bytes:
            app = build_openai_compatible_server(session=session)
            exchange = Exchange(app, LONG, client)
            asking = asyncio.ensure_future(exchange.run())
            while not session.requests_in_flight:
                await asyncio.sleep(0)
            exchange.go()
            await asking
            assert not exchange.sent
            return app.metrics.render()

        page = run(serve)
        until(lambda: not session.requests_in_flight)
    assert b"evalution_requests_aborted_total 1.0" in page
    assert b'evalution_requests_total{route="/v1/completions",status="499"} 1.0' in page
    assert client is None or client.told is None


def test_the_request_of_who_is_gone_already_does_not_begin(mock: BaseInferenceSession) -> None:
    from evalution_openai.server import build_openai_compatible_server

    async def serve() -> bytes:
        app = build_openai_compatible_server(session=mock)
        exchange = Exchange(app, {"prompt": "a"}, Client(is_gone=True))
        await exchange.run()
        assert not exchange.sent
        return app.metrics.render()

    page = run(serve)
    assert b"evalution_requests_aborted_total 1.0" in page
    assert b"evalution_requests_inside 0.0" in page
    assert b"evalution_body_bytes 0.0" in page
    assert b'evalution_queue_seconds_count{kind="generation"} 0.0' in page, "it took no turn"


@pytest.mark.parametrize("client", [Client(), None], ids=["a connection tells", "messages tell"])
def test_who_stays_is_answered(mock: BaseInferenceSession, client: Client | None) -> None:
    from evalution_openai.server import build_openai_compatible_server

    async def serve() -> list[Any]:
        exchange = Exchange(build_openai_compatible_server(session=mock), {"prompt": "a"}, client)
        await exchange.run()
        exchange.go()  # the end of its answer ends the watch
        return exchange.sent

    start, body = run(serve)
    assert start["status"] == 200
    assert json.loads(body["body"])["choices"]
    assert not body["more_body"]


def test_requests_that_come_together_are_answered_one_after_the_other(
    serving: Any, mock: BaseInferenceSession
) -> None:
    url = serving(session=mock).base_url

    def request(tokens: int) -> bytes:
        body = json.dumps({"prompt": "a", "max_tokens": tokens, "ignore_eos": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    with socket.create_connection((url.host, url.port), timeout=10) as wire:
        wire.sendall(request(3) + request(5) + request(7))
        found: list[bytes] = []
        text = b""
        while len(found) < 3:
            part = wire.recv(65536)
            assert part, text
            text += part
            found = re.findall(rb'"completion_tokens":(\d+),', text)
    assert found == [b"3", b"5", b"7"]
