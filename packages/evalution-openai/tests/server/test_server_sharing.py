"""Calls that share a stream of the session: who joins, who leaves, whom a failure costs what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from evalution_enginekit.fair_queue import Accounts
from evalution_enginekit.generation import TokenEvent
from evalution_enginekit.mock import MockSession

WAIT_S = 20


class Watched(MockSession):
    """Each step waits for `before_step`; it notes the streams that are opened, and what ran."""

    def __init__(self, batch_size: int = 4):
        super().__init__("mock", 8192, batch_size)
        self.opened: list[str] = []
        self.before_step: Callable[[int], None] = lambda _: None
        self.steps = 0

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        if requests != ():
            self.opened.append("generate_continuous")
        return super().generate_continuous(requests, batch_size=batch_size)

    def stream(self, requests: Any, *, batch_size: int | None = None) -> Any:
        if requests != ():
            self.opened.append("stream")
        return super().stream(requests, batch_size=batch_size)

    def _step(self, sequences: Any) -> list[TokenEvent]:
        self.steps += 1
        self.before_step(len(sequences))
        return super()._step(sequences)


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as session:
        yield session
        session.before_step = lambda _: None


def body(tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": "abc", "max_tokens": tokens, "ignore_eos": True, **more}


def test_calls_of_a_kind_share_one_stream(serving: Any, watched: Watched) -> None:
    client = serving(session=watched)
    bodies = [body(n, stream=n % 2 == 0) for n in range(1, 21)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda one: client.post("/v1/completions", json=one), bodies))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert sorted(watched.opened) == ["generate_continuous", "stream"]


def test_call_with_many_prompts_does_not_delay_a_single_one(
    serving: Any, watched: Watched, until: Any
) -> None:
    watched.before_step = lambda _: time.sleep(0.002)
    client = serving(session=watched)
    with ThreadPoolExecutor(1) as threads:
        many = threads.submit(
            client.post, "/v1/completions", json=body(20, prompt=["abc"] * 200), timeout=60
        )
        until(lambda: watched.requests_in_flight == 4)
        assert client.post("/v1/completions", json=body(5)).status_code == 200
        assert not many.done()
        watched.before_step = lambda _: None
        answer = many.result().json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(200))
    assert answer["usage"]["completion_tokens"] == 4000


def test_disconnect_drops_waiting_prompts_too(serving: Any, watched: Watched, until: Any) -> None:
    watched.before_step = lambda _: time.sleep(0.002)
    client = serving(session=watched)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body(2000, prompt=["abc"] * 50), timeout=0.3)
    until(lambda: watched.requests_in_flight == 0)
    assert client.post("/v1/completions", json=body(1)).status_code == 200
    steps = watched.steps
    assert client.post("/v1/completions", json=body(3)).status_code == 200
    assert watched.steps == steps + 3, "nothing else ran"


def test_crash_fails_running_calls_and_waiting_ones_go_on(serving: Any, until: Any) -> None:
    with Watched(batch_size=1) as session:
        crashing = threading.Event()

        def crash(_: int) -> None:
            assert crashing.wait(WAIT_S)
            session.before_step = lambda _: None
            raise OSError("the card fell off the bus")

        session.before_step = crash
        client = serving(session=session)
        with ThreadPoolExecutor(3) as threads:
            ran = threads.submit(client.post, "/v1/completions", json=body(2))
            until(lambda: session.requests_in_flight == 1)
            waited = [
                threads.submit(client.post, "/v1/completions", json=body(n, prompt=["abc"] * 2))
                for n in (3, 4)
            ]
            until(lambda: "evalution_requests_inside 3.0" in client.get("/metrics").text)
            crashing.set()
            assert ran.result().status_code == 500
            answers = [one.result() for one in waited]
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [6, 8]
        assert session.opened == ["generate_continuous"] * 2


def test_closed_session_is_reported_at_once(serving: Any) -> None:
    session = Watched()
    client = serving(session=session)
    assert client.post("/v1/completions", json=body(1)).status_code == 200
    session.close()
    for stream in (False, True):
        answer = client.post("/v1/completions", json=body(1, stream=stream))
        assert answer.status_code == 503
        assert "closed" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "x" * 101}),
        ("/v1/completions", {"prompt": [1] * 51}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 101}]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x" * 51}]},
                    {"role": "user", "content": "x" * 51},
                ]
            },
        ),
    ],
)
def test_long_prompts_have_a_stream_of_their_own(
    serving: Any, watched: Watched, monkeypatch: pytest.MonkeyPatch, path: str, asked: Any
) -> None:
    from evalution_enginekit import async_session

    monkeypatch.setattr(async_session, "_LONG_TEXT", 100)
    monkeypatch.setattr(async_session, "_LONG_IDS", 50)
    client = serving(session=watched)
    for content, streams in (({"prompt": "a"}, 1), (asked, 2), ({"prompt": "a"}, 2), (asked, 2)):
        target = "/v1/completions" if "prompt" in content else path
        answer = client.post(target, json={**content, "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert len(watched.opened) == streams


class Windowed(MockSession):
    """Notes the texts of each window that is scored; the first two wait to go on."""

    def __init__(self) -> None:
        super().__init__("mock", 8192, 4)
        self.windows: list[list[str]] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()

    def loglikelihood_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        keyed = list(requests)
        self.windows.append([request.continuation for _, request in keyed])
        self.begun.release()
        assert self.go_on.wait(WAIT_S)
        return super().loglikelihood_continuous(keyed, batch_size=batch_size)


def test_single_request_to_score_is_not_delayed_by_a_batch(serving: Any, until: Any) -> None:
    with Windowed() as session, ThreadPoolExecutor(2) as threads:
        client = serving(session=session)
        many = {"requests": [{"context": "a", "continuation": f"many {n}"} for n in range(500)]}
        batch = threads.submit(client.post, "/v1/eval/loglikelihood", json=many)
        for _ in range(2):
            assert session.begun.acquire(timeout=WAIT_S)
        one = threads.submit(
            client.post, "/v1/eval/loglikelihood", json={"context": "a", "continuation": "one"}
        )
        until(lambda: "evalution_requests_inside 2.0" in client.get("/metrics").text)
        session.go_on.set()
        assert one.result().json()["token_count"] == 3
        assert len(batch.result().json()["results"]) == 500
        assert "one" in {text for window in session.windows[2:4] for text in window}


def test_callers_are_connections_in_the_group_of_their_address(
    serving: Any, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, callers = Accounts.open, list[Any]()

    def note(self: Accounts, caller: Any) -> Any:
        callers.append(caller)
        return opening(self, caller)

    monkeypatch.setattr(Accounts, "open", note)
    client = serving(session=watched)
    with httpx.Client(base_url=client.base_url) as other:
        for connection in (client, client, other):
            assert connection.post("/v1/completions", json=body(1)).status_code == 200
    hosts, connections = zip(*callers, strict=True)
    assert set(hosts) == {"127.0.0.1"}
    assert connections[0] == connections[1] != connections[2]
