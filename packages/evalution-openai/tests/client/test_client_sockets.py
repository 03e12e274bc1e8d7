"""The client on real sockets: connections that end early, stall, or are let go."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evalution_core import EngineRuntimeError, GenerationRequest, Model, RequestFailure
from evalution_openai.client.retry import Clock
from evalution_openai.client.session import OpenAISession, build_session
from evalution_openai.engine import OpenAICompatible

WAIT_S = 10.0
MODELS = {"data": [{"id": "socket", "owned_by": "socket"}]}


class SocketServer:
    """HTTP/1.1 by hand: what each completion request meets is next in `script`, else an answer.

    `half` closes after half of the body, `shut` before any, `stall` never answers, `429` and `500`
    are answered with `Retry-After: 0`.
    """

    def __init__(self, script: Iterator[str]):
        self._script = script
        self.prompts: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.dropped = threading.Semaphore(0)
        self._connections: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(
                    next((x[15:] for x in head.split(b"\r\n") if x.startswith(b"Content-L")), b"0")
                )
                body = await reader.readexactly(length)
                if not await self._answer(head, body, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def end(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _answer(
        self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if head.startswith(b"GET /v1/models"):
            return await _send(writer, 200, MODELS)
        if b"/completions" not in head.split(b"\r\n")[0]:
            return await _send(writer, 404, {})
        prompt = json.loads(body)["prompt"]
        self.prompts.append(prompt)
        self.arrived.release()
        match next(self._script, "ok"):
            case "shut":
                return False
            case "half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{")
                await writer.drain()
                return False
            case "stall":
                if not await reader.read(1):
                    self.dropped.release()
                return False
            case "429" | "500" as code:
                return await _send(writer, int(code), {"error": {"message": "busy"}})
            case _:
                answer = {"choices": [{"text": f"<{prompt}>", "finish_reason": "stop"}]}
                return await _send(writer, 200, answer)


async def _send(writer: asyncio.StreamWriter, code: int, content: Any) -> bool:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {code} X\r\nRetry-After: 0\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


@contextmanager
def running(script: Iterator[str]) -> Iterator[tuple[SocketServer, str]]:
    """The server on a loopback port, on a thread of its own."""
    scripted = SocketServer(script)
    ready: threading.Event = threading.Event()
    state: dict[str, Any] = {}

    async def main() -> None:
        server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
        state["port"] = server.sockets[0].getsockname()[1]
        state["loop"], state["end"] = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await state["end"].wait()
        server.close()
        await scripted.end()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield scripted, f"http://127.0.0.1:{state['port']}"
    finally:
        state["loop"].call_soon_threadsafe(state["end"].set)
        thread.join(WAIT_S)


class NoWaiting(Clock):
    """Waits between tries take no time: only the sockets are real here."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def connected() -> Callable[..., OpenAISession]:
    def build(url: str, **options: Any) -> OpenAISession:
        engine = OpenAICompatible(url, scoring="none", dialect="openai", **options)
        return build_session(engine, Model("socket"), clock=NoWaiting())

    return build


def test_every_request_is_answered_exactly_once(connected: Callable[..., OpenAISession]) -> None:
    chance = random.Random(7)
    faults = ["half", "shut", "429", "500"]
    script = (chance.choice([*faults, "ok", "ok"]) for _ in range(120))
    with running(script) as (server, url), connected(url, max_retries=40, batch_size=6) as session:
        requests = [(n, GenerationRequest(f"p{n}")) for n in range(60)]
        results = list(session.generate_continuous(iter(requests)))
        assert sorted(key for key, _ in results) == list(range(60))
        for key, result in results:
            assert not isinstance(result, RequestFailure), result
            assert result.text == f"<p{key}>"
        assert len(server.prompts) > 60, "some were asked for again"
        assert session.requests_in_flight == 0


def test_loopback_requests_bypass_proxies(
    connected: Callable[..., OpenAISession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with running(iter(["ok"])) as (_, url), connected(url, max_retries=0) as session:
        (output,) = session.generate([GenerationRequest("near")])
        assert output.text == "<near>"


class Waiting(Clock):
    """Every wait takes longer than a try may."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.7)


def test_rate_limit_wait_does_not_count_against_the_timeout() -> None:
    with running(iter(["500", "ok"])) as (_, url):
        limits: dict[str, Any] = {"requests_per_minute": 1, "timeout_s": 0.5, "max_retries": 1}
        engine = OpenAICompatible(url, scoring="none", dialect="openai", **limits)
        with build_session(engine, Model("socket"), clock=Waiting()) as session:
            (output,) = session.generate([GenerationRequest("late")])
    assert output.text == "<late>"


def test_stalled_answer_times_out(connected: Callable[..., OpenAISession]) -> None:
    with (
        running(iter(["stall", "ok", "stall"])) as (server, url),
        connected(url, timeout_s=0.2, max_retries=1) as session,
    ):
        (output,) = session.generate([GenerationRequest("again")])
        assert output.text == "<again>"
        assert server.dropped.acquire(timeout=WAIT_S), "the stalled connection is let go"
    with (
        running(iter(["stall"] * 9)) as (_, url),
        connected(url, timeout_s=0.1, max_retries=1) as session,
        pytest.raises(
            EngineRuntimeError, match="TimeoutError: no answer in time; given up after 2"
        ),
    ):
        session.generate([GenerationRequest("never")])


def test_closing_a_stream_closes_its_connection(
    connected: Callable[..., OpenAISession],
) -> None:
    script = iter(["ok", *["stall"] * 9])
    with running(script) as (server, url), connected(url, batch_size=3) as session:
        stream = session.generate_continuous((n, GenerationRequest(f"p{n}")) for n in range(99))
        next(stream)
        for _ in range(4):
            assert server.arrived.acquire(timeout=WAIT_S)
        stream.close()  # pyright: ignore[reportAttributeAccessIssue]
        assert session.requests_in_flight == 0
        for _ in range(3):
            assert server.dropped.acquire(timeout=WAIT_S), "the server sees the client go"


def test_dead_server_ends_the_run_and_names_requests_in_flight(
    connected: Callable[..., OpenAISession],
) -> None:
    script = iter(["ok", "ok"] + ["shut"] * 99)
    with running(script) as (_, url), connected(url, batch_size=2, max_retries=0) as session:
        done: dict[int, Any] = {}
        stream = session.generate_continuous((n, GenerationRequest(f"p{n}")) for n in range(50))
        with pytest.raises(EngineRuntimeError, match="in flight") as caught:
            _read(stream, done)
        good = [result for result in done.values() if not isinstance(result, RequestFailure)]
        assert len(good) == 2, "what was answered is kept"
        assert caught.value.in_flight
        assert not set(caught.value.in_flight) & set(done)


def _read(stream: Iterator[tuple[int, Any]], done: dict[int, Any]) -> None:
    """Take results into `done`, so that they are there whatever the stream ends with."""
    for key, result in stream:
        done[key] = result  # noqa: PERF403 - a comprehension would lose all when the stream raises
