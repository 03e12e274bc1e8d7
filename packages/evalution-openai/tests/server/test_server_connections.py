"""A connection: heads without end, bodies together, whom it asks for, and how answers go out."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections import deque
from http.client import HTTPResponse
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
    length = b"Content-Length: 9\r\n" if request_line.startswith(b"POST") else b""
    with socket.create_connection((url.host, url.port), timeout=10) as idle:
        idle.sendall(request_line + b" HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n")
        assert idle.recv(10_000).startswith(b"HTTP/1.1 ")
        monkeypatch.setattr(connections, "HEAD_S", 0.1)  # a busy server may read a head later
        idle.sendall(rest)
        assert idle.recv(1) == b"", "the server closes it"


BODY = b'{"prompt": "a", "max_tokens": 2}'
POST = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(BODY)}\r\n".encode()
LOCAL = b"Host: localhost\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = f"{len(BODY):x}".encode()
TOO_LONG = "the headers are longer than the 65536 bytes that this server takes"


def exchange(client: Any, sent: bytes) -> tuple[int, Any]:
    """The status and the JSON that the server answers to these bytes."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as wire:
        wire.sendall(sent)
        answer = HTTPResponse(wire)
        answer.begin()
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (POST + LOCAL + b"X-A: " + b"a" * 66_000 + b"\r\n\r\n" + BODY, TOO_LONG),
        (POST + LOCAL + b"X-A: " + b"a" * 100_000, TOO_LONG),
        (POST + LOCAL + b"X-A: a\r\n" * 200 + b"\r\n" + BODY, "202 headers; this server takes 100"),
        (POST + b"\r\n" + BODY, "a request needs one Host header; this one has 0"),
        (POST + LOCAL * 2 + b"\r\n" + BODY, "a request needs one Host header; this one has 2"),
        (POST + LOCAL + b"Content-Length: 3\r\n\r\n" + BODY, "Invalid HTTP request received."),
        (POST + LOCAL + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Invalid HTTP request"),
        (
            POST + LOCAL + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + BODY,
            "this server speaks HTTP/1.1 alone; leave out the header Upgrade",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "Invalid HTTP request received."),
    ],
    ids=[
        "long header", "endless header", "many headers", "no host", "two hosts",
        "two lengths", "a length and chunks", "upgrade", "TLS",
    ],
)  # fmt: skip
def test_wrong_head_is_refused(client: Any, sent: bytes, message: str) -> None:
    status, answer = exchange(client, sent)
    assert status == 400
    assert message in answer["error"]["message"]


def test_head_within_its_bound_is_accepted(client: Any) -> None:
    for headers in (b"X-A: " + b"a" * 60_000 + b"\r\n", b"X-A: a\r\n" * 90):
        assert exchange(client, POST + LOCAL + headers + b"\r\n" + BODY)[0] == 200
    trailer = CHUNKED + LENGTH + b"\r\n" + BODY + b"\r\n0\r\nHost: evil.example\r\n\r\n"
    assert exchange(client, trailer)[0] == 200, "a trailer is no header"


@pytest.mark.parametrize("streamed", [False, True])
def test_half_closed_client_gets_its_answer(
    serving: Any, slow: BaseInferenceSession, streamed: bool
) -> None:
    client = serving(session=slow)
    body = json.dumps({"prompt": "a", "max_tokens": 40, "ignore_eos": True, "stream": streamed})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as wire:
        wire.sendall(f"{head}\r\n\r\n{body}".encode() * 2)
        wire.shutdown(socket.SHUT_WR)
        with wire.makefile("rb") as file:
            answers = file.read()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"connection: close" in answers
    for piece in answers.split(b"HTTP/1.1 200 OK")[1:]:
        assert b'"finish_reason":"length"' in piece
        assert (b"[DONE]" in piece) == streamed


def test_closed_client_of_a_waiting_answer_is_noticed(
    serving: Any, slow: BaseInferenceSession, until: Any
) -> None:
    client = serving(session=slow)
    body = b'{"prompt": "a", "max_tokens": 8000, "ignore_eos": true}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    with socket.create_connection((client.base_url.host, client.base_url.port)) as wire:
        wire.sendall(f"{head}\r\n\r\n".encode() + body)
        until(lambda: slow.requests_in_flight)  # type: ignore[attr-defined]
    until(lambda: not slow.requests_in_flight)  # type: ignore[attr-defined]
    assert "evalution_requests_aborted_total 1.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Origin": "http://evil.example"}, 403, "origin_not_allowed"),
        ({"Origin": "null"}, 403, "origin_not_allowed"),
        ({"Origin": "http://localhost:1"}, 403, "origin_not_allowed"),
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200, None),
    ],
)
def test_page_of_another_origin_and_other_media_are_refused(
    client: Any, headers: dict[str, str], status: int, code: str | None
) -> None:
    answer = client.post("/v1/completions", content=BODY, headers=headers)
    assert answer.status_code == status
    assert answer.json().get("error", {}).get("code") == code


def test_page_of_the_same_origin_and_a_page_with_a_key_are_answered(
    client: Any, serving: Any, mock: BaseInferenceSession
) -> None:
    own = {"Origin": f"http://127.0.0.1:{client.base_url.port}"}
    assert client.get("/v1/models", headers=own).status_code == 200
    key = {"Authorization": "Bearer key-4711-0815", "Origin": "https://pages.example"}
    guarded = serving(session=mock, api_key="key-4711-0815")
    assert guarded.get("/v1/models", headers=key).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:99", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("localhost:80@evil.example", 403),
        ("", 403),
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

    def is_closing(self) -> bool:
        return self.is_closed


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


def test_what_is_written_to_a_client_that_left_is_dropped() -> None:
    from evalution_openai.server.connections import _GatheringTransport

    async def run() -> None:
        wire: Any = Wire()
        transport = _GatheringTransport(wire, asyncio.get_running_loop())
        transport.write(b"head")
        wire.close()
        await asyncio.sleep(0)
        transport.write(b"a" * 20_000)
        transport.write(b"last")
        transport.close()
        assert not wire.pieces

    asyncio.run(run())


SIGNATURES = {
    "__init__": ["self", "config", "server_state", "app_state", "_loop"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "eof_received": ["self"],
    "on_header": ["self", "name", "value"],
    "on_body": ["self", "body"],
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
    known = {"transport", "flow", "cycle", "scope", "loop", "headers", "pipeline"}
    assert known <= vars(protocol).keys()
    cycle = inspect.getsource(RequestResponseCycle.__init__)
    for name in (
        "disconnected", "keep_alive", "more_body", "response_complete", "response_started",
    ):  # fmt: skip
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
