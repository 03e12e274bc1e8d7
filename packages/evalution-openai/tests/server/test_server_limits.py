"""What one client may cost the others: slow readers, endless heads, answers too large to hold."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, ConfigurationError, GenerationRequest, Model
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


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def within() -> Any:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(within())


def test_a_slow_reader_keeps_no_turn(mock: BaseInferenceSession) -> None:
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


def test_a_stream_that_nobody_reads_is_given_up(
    mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalution_openai.server import build_openai_compatible_server, sending

    monkeypatch.setattr(sending, "STALL_S", 0.05)

    async def serve() -> bytes:
        app = build_openai_compatible_server(session=mock)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.get_running_loop().create_future()

        await app(*asgi("/v1/completions", {"prompt": "a", "stream": True}), send)
        return app.metrics.page()

    page = run(serve())
    assert b"evalution_requests_aborted_total 1.0" in page
    assert b"evalution_requests_inside 0.0" in page


def test_a_long_answer_that_nobody_reads_keeps_its_place_until_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from evalution_openai.server import build_openai_compatible_server, sending

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
        during = app.metrics.page()
        await asking
        return sent, during, app.metrics.page()

    monkeypatch.setattr(sending, "STALL_S", 0.2)
    with Mock(max_model_len=300_000).build(Model("mock")) as session:
        sent, during, after = run(serve(session))
    assert all(len(message.get("body", b"")) <= 65536 for message in sent)
    assert b"evalution_requests_inside 1.0" in during
    assert b"evalution_requests_inside 0.0" in after
    assert b"evalution_requests_aborted_total 1.0" in after


def test_a_long_answer_comes_whole(serving: Any) -> None:
    with Mock(max_model_len=300_000).build(Model("mock")) as session:
        client = serving(session=session)
        text = "abcdefg" * 30_000
        answer = client.post(
            "/v1/completions", json={"prompt": text, "echo": True, "max_tokens": 1}
        )
        assert answer.json()["choices"][0]["text"].startswith(text)
        ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert len(ids) >= len(text)


def test_bodies_that_come_together_are_bounded_in_bytes(
    serving: Any, mock: BaseInferenceSession
) -> None:
    client = serving(session=mock, max_body_bytes=50_000, max_held_bytes=60_000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n"
    large = {"prompt": "a", "x": "x" * 30_000}
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
    with pytest.raises(ConfigurationError, match="max_held_bytes must be an int >= 1"):
        ServerSettings(max_held_bytes=0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "abc"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}]}),
    ],
)
def test_prompts_are_encoded_where_they_hold_up_nobody(
    serving: Any,
    mock: BaseInferenceSession,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    asked: Any,
    stream: bool,
) -> None:
    from evalution_openai.server.served import Served

    encode, threads = Served.prompt_ids, set[str]()

    def watched(self: Any, text: str) -> Any:
        threads.add(threading.current_thread().name)
        return encode(self, text)

    monkeypatch.setattr(Served, "prompt_ids", watched)
    body = {**asked, "return_token_ids": True, "max_tokens": 2, "stream": stream}
    answer = serving(session=mock).post(path, json=body)
    assert '"prompt_token_ids":[' in answer.text
    assert threads
    assert "server" not in threads, "the event loop's own"


@pytest.mark.parametrize("prompt", ["a" * 21, ["a" * 20, "a"], [7] * 21, [[7] * 20, [7]]])
def test_long_prompts_are_checked_where_they_hold_up_nobody(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, prompt: Any
) -> None:
    from evalution_openai.server import completions
    from evalution_openai.server.served import Served

    admit, threads = Served.admit, list[str]()

    def watched(self: Any, requests: Any) -> None:
        threads.append(threading.current_thread().name)
        admit(self, requests)

    monkeypatch.setattr(Served, "admit", watched)
    monkeypatch.setattr(completions, "_LONG", 20)
    client = serving(session=mock)
    for asked, is_aside in ((prompt, True), ("a", False)):
        answer = client.post("/v1/completions", json={"prompt": asked, "max_tokens": 1})
        assert answer.status_code == 200
        assert (threads.pop() != "server") == is_aside


def test_what_the_end_of_the_server_cuts_off_is_told_to_come_back() -> None:
    from evalution_openai.server import build_openai_compatible_server

    with Mock().build(Model("mock")) as session:

        async def serve() -> list[Any]:
            app = build_openai_compatible_server(session=session)
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            async def receive() -> Any:
                return await asyncio.get_running_loop().create_future()

            scope, _ = asgi("/v1/completions", {})
            held = asyncio.ensure_future(app(scope, receive, send))
            await asyncio.sleep(0)
            held.cancel()
            await asyncio.wait([held])
            assert held.cancelled()
            return sent

        start, body = run(serve())
    assert start["status"] == 503
    assert (b"retry-after", b"5") in start["headers"]
    assert json.loads(body["body"])["error"]["message"] == "the server ends"


class Forgetful:
    """A scoring call that forgets one of its requests."""

    def __call__(self, requests: list[str]) -> Iterator[tuple[int, str]]:
        yield from list(enumerate(requests))[1:]


def test_a_request_that_the_session_forgets_does_not_hang() -> None:
    from evalution_openai.server.scoring_lane import ScoringLane

    async def score() -> None:
        lane: ScoringLane[str, str] = ScoringLane(Forgetful(), lambda _: None)
        with pytest.raises(KeyError):
            await lane.results(["a", "b"])
        lane.close()

    run(score())


@pytest.mark.parametrize("told", [b"", b"GET /health HTTP/1.1\r\nX-A: "])
def test_a_head_that_never_comes_is_not_waited_for(
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
def test_what_follows_an_answer_does_not_keep_a_connection(
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


def test_a_head_without_end_is_refused(serving: Any, mock: BaseInferenceSession) -> None:
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
def test_a_web_page_does_not_get_in_by_a_name_of_its_own(
    serving: Any, mock: BaseInferenceSession, host: str, status: int
) -> None:
    client = serving(session=mock)
    answer = client.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert "start it with --api-key-env NAME" in answer.json()["error"]["message"]


@pytest.mark.parametrize("option", [{"any_host": True}, {"api_key": "key-4711-0815"}])
def test_with_a_key_or_a_second_word_any_name_will_do(
    serving: Any, mock: BaseInferenceSession, option: Any
) -> None:
    headers = {"Host": "models.example", "Authorization": "Bearer key-4711-0815"}
    assert serving(session=mock, **option).get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"stop": ["x"] * 65}, "at most 64 items"),
        ({"stop": "x" * 1001}, "at most 1000 characters"),
        ({"logprobs": 1000, "max_tokens": 100, "n": 128}, "1000 log-probabilities at up to 12800"),
    ],
)
def test_what_would_cost_the_others_too_much_is_refused(
    serving: Any, mock: BaseInferenceSession, body: Any, message: str
) -> None:
    answer = serving(session=mock).post("/v1/completions", json={"prompt": "a", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_message_does_not_give_a_long_body_back(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "x" * 100_000})
    assert answer.status_code == 404
    assert len(answer.content) < 3000


def test_a_long_text_is_encoded_while_others_are_answered(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Any = type(mock.tokenizer)  # type: ignore[attr-defined]
    encode, begun, go_on = tokenizer.encode, threading.Event(), threading.Event()

    def slow(self: Any, text: str) -> list[int]:
        if text == "long":
            begun.set()
            assert go_on.wait(10)
        return encode(self, text)

    monkeypatch.setattr(tokenizer, "encode", slow)
    client = serving(session=mock)
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(client.post("/tokenize", json={"prompt": "long"}))
    )
    asking.start()
    assert begun.wait(10)
    assert client.get("/health").status_code == 200
    go_on.set()
    asking.join()
    assert answers[0].status_code == 200


def test_beginnings_of_a_prompt_are_made_one_at_a_time() -> None:
    from evalution_openai.server.echo import NextTokens

    asked = NextTokens([5, 6, 7], 2)
    assert [request.input_ids for request in asked] == [[5, 6], [5]]
    assert asked[0] == GenerationRequest(
        input_ids=[5, 6], max_new_tokens=1, logprobs=2, ignore_eos=True
    )
    assert asked[1:] == [asked[1]]
    with pytest.raises(IndexError):
        asked[2]
