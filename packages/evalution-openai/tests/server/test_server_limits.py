"""What one client may cost the others: slow readers, endless heads, answers too large to hold."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, GenerationRequest, Model
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
    from evalution_openai.server import build_openai_compatible_server, events

    monkeypatch.setattr(events, "STALL_S", 0.05)

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
