"""A connection: heads without end, bodies together, whom it asks for, and how answers go out."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections import deque
from importlib import metadata
from typing import Any

import pytest
from packaging.requirements import Requirement

from evalution_core import BaseInferenceSession, ConfigurationError


def test_bodies_held_at_once_are_bounded_in_bytes(
    serving: Any, mock: BaseInferenceSession, until: Any
) -> None:
    client = serving(session=mock, max_body_bytes=50_000, max_held_bytes=60_000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n"
    large = {"prompt": "a", "user": "x" * 30_000}
    assert client.post("/v1/completions", json=large).status_code == 200
    with socket.create_connection((client.base_url.host, client.base_url.port)) as half:
        half.sendall(head + b"x" * 40_000)
        until(lambda: "evalution_body_bytes 40000.0" in client.get("/metrics").text)
        full = client.post("/v1/completions", json=large)
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "bodies_full"
        assert "have 40000 bytes" in full.json()["error"]["message"]
        assert full.headers["retry-after"] == "1"
        assert full.headers["connection"] == "close"
        grown = client.post(  # it doesn't say beforehand how long it is
            "/v1/completions", content=iter([b"{", b" " * 15_000, b" " * 15_000])
        )
        assert grown.status_code == 429
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    until(lambda: "evalution_body_bytes 0.0" in client.get("/metrics").text)
    assert client.post("/v1/completions", json=large).status_code == 200


def test_room_for_less_than_one_body_is_refused() -> None:
    from evalution_openai.server import ServerSettings

    with pytest.raises(ConfigurationError, match="no room for one body of max_body_bytes=50"):
        ServerSettings(max_body_bytes=50, max_held_bytes=49)
    with pytest.raises(
        ConfigurationError, match="option 'max_held_bytes' of server ServerSettings"
    ):
        ServerSettings(max_held_bytes=0)


@pytest.mark.parametrize("told", [b"", b"GET /health HTTP/1.1\r\nX-A: "])
def test_connection_without_a_head_is_closed_in_time(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, told: bytes
) -> None:
    from evalution_openai.server import connections

    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    url = serving(session=mock).base_url
    with socket.create_connection((url.host, url.port), timeout=10) as idle:
        idle.sendall(told)
        assert idle.recv(1) == b"", "the server closes it"


@pytest.mark.parametrize(
    ("request_line", "rest"),
    [(b"GET /health", b"\r\n"), (b"POST /nowhere", b"a"), (b"POST /nowhere", b"abcdefghi")],
    ids=["a blank line", "a part of a body", "a body and no more"],
)
def test_data_after_an_answer_does_not_keep_a_connection_open(
    serving: Any,
    mock: BaseInferenceSession,
    monkeypatch: pytest.MonkeyPatch,
    request_line: bytes,
    rest: bytes,
) -> None:
    from evalution_openai.server import connections

    url = serving(session=mock).base_url
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    length = b"Content-Length: 9\r\n" if request_line.startswith(b"POST") else b""
    with socket.create_connection((url.host, url.port), timeout=10) as idle:
        idle.sendall(request_line + b" HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n")
        assert idle.recv(10_000).startswith(b"HTTP/1.1 ")
        idle.sendall(rest)
        assert idle.recv(1) == b"", "the server closes it"


def test_head_beyond_its_bound_is_refused(serving: Any, mock: BaseInferenceSession) -> None:
    client = serving(session=mock)
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as long:
        long.sendall(b"GET /health HTTP/1.1\r\nX-A: " + b"a" * 100_000)
        assert long.recv(10_000).startswith(b"HTTP/1.1 400 ")
    assert client.get("/health", headers={"X-A": "a" * 10_000}).status_code == 200
    assert client.get("/health", headers={"X-A": "a" * 60_000}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:99", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
    ],
)
def test_foreign_host_name_is_refused_without_a_key(
    serving: Any, mock: BaseInferenceSession, host: str, status: int
) -> None:
    client = serving(session=mock)
    answer = client.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert "start it with --api-key-env NAME" in answer.json()["error"]["message"]


@pytest.mark.parametrize("option", [{"any_host": True}, {"api_key": "key-4711-0815"}])
def test_any_host_name_is_accepted_with_a_key_or_any_host(
    serving: Any, mock: BaseInferenceSession, option: Any
) -> None:
    headers = {"Host": "models.example", "Authorization": "Bearer key-4711-0815"}
    assert serving(session=mock, **option).get("/v1/models", headers=headers).status_code == 200


class Wire:
    """A transport that keeps what is sent, piece by piece."""

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True


def test_writes_of_one_loop_turn_are_sent_together() -> None:
    from evalution_openai.server.connections import _GatheringTransport

    async def run() -> None:
        wire: Any = Wire()
        transport = _GatheringTransport(wire, asyncio.get_running_loop())
        transport.write(b"head ")
        transport.write(b"body")
        assert not wire.pieces
        await asyncio.sleep(0)
        assert wire.pieces.popleft() == b"head body"
        transport.write(b"a" * 10_000)
        transport.write(b"b" * 10_000)
        assert len(wire.pieces.popleft()) == 20_000, "so much isn't held until the turn is over"
        transport.write(b"last")
        transport.close()
        assert wire.pieces.popleft() == b"last"
        assert wire.is_closed
        await asyncio.sleep(0)
        assert not wire.pieces

    asyncio.run(run())


SIGNATURES = {
    "__init__": ["self", "config", "server_state", "app_state", "_loop"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_headers_complete": ["self"],
    "send_400_response": ["self", "msg"],
    "timeout_keep_alive_handler": ["self"],
}


def test_uvicorn_still_has_the_class_that_connections_build_on() -> None:
    """docs/decisions/0016-uvicorn-connections.md: a release that changes it fails here."""
    import uvicorn
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
    from uvicorn.server import ServerState

    for name, parameters in SIGNATURES.items():
        found = inspect.signature(getattr(HttpToolsProtocol, name))
        assert list(found.parameters) == parameters, name

    async def make() -> Any:
        config = uvicorn.Config(print, http=HttpToolsProtocol, log_config=None)
        return HttpToolsProtocol(config, ServerState(), {})

    protocol = asyncio.run(make())
    known = {"transport", "flow", "cycle", "scope", "loop"}
    assert known <= vars(protocol).keys()
    cycle = inspect.getsource(RequestResponseCycle.__init__)
    for name in ("disconnected", "more_body", "response_complete"):
        assert f"self.{name} = " in cycle, name
    assert callable(FlowControl.resume_reading)
    assert "self.write_paused = " in inspect.getsource(FlowControl.__init__)
    assert "self.when_lost" not in inspect.getsource(HttpToolsProtocol), "a name of our own"


def test_uvicorn_is_of_the_range_that_was_tried() -> None:
    wanted = next(
        Requirement(text)
        for text in metadata.requires("evalution-openai") or ()
        if text.startswith("uvicorn")
    )
    assert "<" in str(wanted.specifier)
    assert wanted.specifier.contains(metadata.version("uvicorn"))
