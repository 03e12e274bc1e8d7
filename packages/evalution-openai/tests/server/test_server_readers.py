"""Clients that read slowly or not at all, and answers too large to hold in one piece."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evalution_core import BaseInferenceSession, Model
from evalution_enginekit.mock import Mock


def asgi(path: str, body: Any, **scope: Any) -> tuple[dict[str, Any], Callable[..., Any]]:
    """A request as a server hands it to an application: its scope, and what it receives."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode()}]
    headers = [(b"host", b"localhost")]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()

    whole = {"type": "http", "method": "POST", "path": path, "headers": headers, **scope}
    return whole, receive


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


def test_slow_reader_does_not_block_other_requests(mock: BaseInferenceSession) -> None:
    from evalution_openai.server import build_openai_compatible_server

    async def serve() -> int:
        app = build_openai_compatible_server(session=mock, max_concurrent=1)
        reading, status = asyncio.Event(), 0

        async def stuck(message: Any) -> None:
            reading.set()
            await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        asked = {"prompt": "a", "max_tokens": 5, "ignore_eos": True}
        slow = asyncio.ensure_future(
            app(*asgi("/v1/completions", {**asked, "stream": True}), stuck)
        )
        await reading.wait()
        await app(*asgi("/v1/completions", asked), send)
        slow.cancel()
        await asyncio.wait([slow])
        return status

    assert run(serve()) == 200


def test_stream_that_is_not_read_is_dropped(
    mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalution_openai.server import build_openai_compatible_server
    from evalution_openai.server import streaming as sending

    monkeypatch.setattr(sending, "STALL_S", 0.05)

    async def serve() -> bytes:
        app = build_openai_compatible_server(session=mock)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.get_running_loop().create_future()

        await app(*asgi("/v1/completions", {"prompt": "a", "stream": True}), send)
        return app.metrics.render()

    page = run(serve())
    assert b"evalution_requests_aborted_total 1.0" in page
    assert b"evalution_requests_inside 0.0" in page


def test_unread_long_answer_counts_as_inside_until_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from evalution_openai.server import build_openai_compatible_server
    from evalution_openai.server import streaming as sending

    async def serve(session: BaseInferenceSession) -> tuple[list[Any], bytes, bytes]:
        app = build_openai_compatible_server(session=session)
        sent: list[Any] = []
        stuck = asyncio.Event()

        async def send(message: Any) -> None:
            if len(sent) == 3:
                stuck.set()
                await asyncio.get_running_loop().create_future()
            sent.append(message)

        body = {"prompt": "a" * 200_000, "echo": True, "max_tokens": 1}
        asking = asyncio.ensure_future(app(*asgi("/v1/completions", body), send))
        await stuck.wait()
        during = app.metrics.render()
        await asking
        return sent, during, app.metrics.render()

    monkeypatch.setattr(sending, "STALL_S", 0.2)
    with Mock(max_model_len=300_000).build(Model("mock")) as session:
        sent, during, after = run(serve(session))
    assert all(len(message.get("body", b"")) <= 65536 for message in sent)
    assert b"evalution_requests_inside 1.0" in during
    assert b"evalution_requests_inside 0.0" in after
    assert b"evalution_requests_aborted_total 1.0" in after


def test_long_answer_arrives_complete(serving: Any) -> None:
    with Mock(max_model_len=300_000).build(Model("mock")) as session:
        client = serving(session=session)
        text = "abcdefg" * 30_000
        answer = client.post(
            "/v1/completions", json={"prompt": text, "echo": True, "max_tokens": 1}
        )
        assert answer.json()["choices"][0]["text"].startswith(text)
        ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert len(ids) >= len(text)


def is_refused(wire: socket.socket) -> bool:
    try:
        wire.sendall(b"x")
    except ConnectionError:
        return True
    return False


def test_client_that_does_not_read_is_dropped(
    serving: Any,
    mock: BaseInferenceSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    until: Any,
) -> None:
    from evalution_openai.server import streaming as sending

    monkeypatch.setattr(sending, "STALL_S", 0.2)
    client = serving(session=mock, max_text=3_000_000)
    body = json.dumps({"prompt": "a" * 3_000_000}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((client.base_url.host, client.base_url.port))
        deaf.sendall(head.encode() + body)
        until(lambda: "evalution_requests_aborted_total 1.0" in client.get("/metrics").text)
        # Its connection is closed although it holds an answer: what is sent there is refused.
        until(lambda: is_refused(deaf))
    assert "evalution_requests_inside 0.0" in client.get("/metrics").text
    assert not [
        one for one in caplog.records if one.name == "uvicorn.error" and one.levelname == "ERROR"
    ]
