"""Calls that share a stream of the session: who joins, who leaves, whom a failure costs what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import GenerationRequest, TextDelta
from evalution_enginekit.mock import MockSession
from evalution_enginekit.tokens import TokenEvent

WAIT_S = 20


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


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


def test_a_call_with_many_prompts_holds_up_none_with_one(serving: Any, watched: Watched) -> None:
    watched.before_step = lambda _: time.sleep(0.002)
    client = serving(session=watched)
    with ThreadPoolExecutor(1) as threads:
        many = threads.submit(
            client.post, "/v1/completions", json=body(20, prompt=["abc"] * 200), timeout=60
        )
        until(lambda: watched.requests_in_flight == 4)
        assert client.post("/v1/completions", json=body(5)).status_code == 200
        assert not many.done()
        answer = many.result().json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(200))
    assert answer["usage"]["completion_tokens"] == 4000


def test_who_leaves_takes_along_what_waits_too(serving: Any, watched: Watched) -> None:
    watched.before_step = lambda _: time.sleep(0.002)
    client = serving(session=watched)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body(2000, prompt=["abc"] * 50), timeout=0.3)
    until(lambda: watched.requests_in_flight == 0)
    assert client.post("/v1/completions", json=body(1)).status_code == 200
    steps = watched.steps
    assert client.post("/v1/completions", json=body(3)).status_code == 200
    assert watched.steps == steps + 3, "nothing else ran"


def test_a_crash_costs_those_who_ran_and_the_others_move_on(serving: Any) -> None:
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


def test_a_session_that_was_closed_is_told_of_at_once(serving: Any) -> None:
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
def test_what_takes_long_to_prepare_has_a_stream_of_its_own(
    serving: Any, watched: Watched, monkeypatch: pytest.MonkeyPatch, path: str, asked: Any
) -> None:
    from evalution_openai.server import generation_lane

    monkeypatch.setattr(generation_lane, "_LONG_TEXT", 100)
    monkeypatch.setattr(generation_lane, "_LONG_IDS", 50)
    client = serving(session=watched)
    for number in range(2):
        answer = client.post(path, json={**asked, "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert len(watched.opened) == number + 1


def test_a_lane_that_is_closed_ends_its_calls(watched: Watched) -> None:
    from evalution_core import SessionClosedError
    from evalution_openai.server.generation_lane import GenerationLane

    async def run() -> None:
        lane = GenerationLane(watched, limit=2, refills=True, streams=True, waited=lambda _: None)
        request = GenerationRequest("abc", max_new_tokens=4000, ignore_eos=True)
        calls = [asyncio.ensure_future(lane.outputs([request, request])) for _ in range(2)]
        while not watched.requests_in_flight:
            await asyncio.sleep(0.001)
        lane.close()
        for call in calls:
            with pytest.raises(SessionClosedError, match="the server ends"):
                await call

    watched.before_step = lambda _: time.sleep(0.002)
    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    until(lambda: watched.requests_in_flight == 0)


def test_an_event_loop_that_is_gone_leaves_nothing_running(watched: Watched) -> None:
    from evalution_openai.server.generation_lane import GenerationLane

    async def run() -> None:
        lane = GenerationLane(watched, limit=2, refills=True, streams=True, waited=lambda _: None)
        request = GenerationRequest("abc", max_new_tokens=4000, ignore_eos=True)
        call = asyncio.ensure_future(lane.outputs([request]))
        while not watched.requests_in_flight:
            await asyncio.sleep(0.001)
        assert not call.done()

    watched.before_step = lambda _: time.sleep(0.002)
    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    until(lambda: watched.requests_in_flight == 0)


class Crashing(MockSession):
    """Its steps fail at the given numbers, counted from when it is armed."""

    def __init__(self, crashes: set[int]):
        super().__init__("mock", 8192, 4)
        self.crashes = crashes
        self.steps = 0

    def _step(self, sequences: Any) -> list[TokenEvent]:
        self.steps += 1
        if self.steps in self.crashes:
            raise OSError("the card fell off the bus")
        return super()._step(sequences)


@given(st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_every_call_is_answered_once_or_told_why_not(chance: Random) -> None:
    """Clients leave at any moment, and the runtime fails again and again."""
    calls = [
        [
            GenerationRequest(f"{number}.{part}", max_new_tokens=length, ignore_eos=True)
            for part in range(chance.choice([1, 1, 3]))
        ]
        for number, length in enumerate(chance.choices([1, 4, 25], k=40))
    ]
    leaving = {number: chance.randrange(60) for number in chance.sample(range(40), 15)}
    limit = chance.choice([3, 40])

    from evalution_openai.server.generation_lane import GenerationLane

    async def work(session: Crashing) -> list[Any]:
        lane = GenerationLane(
            session, limit=limit, refills=True, streams=True, waited=lambda _: None
        )
        tasks = [asyncio.ensure_future(texts(lane, call, chance.random() < 0.5)) for call in calls]
        for turn in range(60):
            await asyncio.sleep(0)
            for number in (number for number, when in leaving.items() if when == turn):
                tasks[number].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        session.crashes = set()
        # Every turn came back: so many calls run at once, and one more has its turn after them.
        await asyncio.gather(*(lane.outputs(calls[0]) for _ in range(limit + 1)))
        lane.close()
        return found

    with Crashing(set(chance.sample(range(1, 60), 3))) as session:
        found = asyncio.run(asyncio.wait_for(work(session), WAIT_S))
        for number, (call, answer) in enumerate(zip(calls, found, strict=True)):
            if isinstance(answer, asyncio.CancelledError):
                assert number in leaving
            elif isinstance(answer, Exception):
                assert "the card fell off the bus" in str(answer)
            else:
                assert answer == [output.text for output in session.generate(call)]
        until(lambda: session.requests_in_flight == 0)


async def texts(lane: Any, call: list[GenerationRequest], deltas: bool) -> list[str]:
    """The text of each request; of a stream, out of its pieces, and its output ends each."""
    if not deltas:
        return [output.text for output in await lane.outputs(call)]
    pieces: dict[int, str] = dict.fromkeys(range(len(call)), "")
    ended: list[int] = []
    async with aclosing(lane.stream_of(call)) as events:
        async for index, event in events:
            assert index not in ended
            if isinstance(event, TextDelta):
                pieces[index] += event.text
            else:
                ended.append(index)
                assert event.text == pieces[index]
    assert sorted(ended) == list(pieces)
    return list(pieces.values())


def test_a_call_without_requests_ends_and_takes_no_turn(watched: Watched) -> None:
    from evalution_openai.server.generation_lane import GenerationLane

    async def run() -> None:
        lane = GenerationLane(watched, limit=1, refills=True, streams=True, waited=lambda _: None)
        for _ in range(2):
            assert await lane.outputs([]) == []
            assert await texts(lane, [], True) == []
        lane.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_caller_with_one_request_to_score_waits_for_no_batch() -> None:
    from evalution_openai.server.scoring_lane import ScoringLane

    windows: list[list[str]] = []
    begun, go_on = threading.Semaphore(0), threading.Event()

    def score(requests: list[str]) -> Iterator[tuple[int, str]]:
        windows.append(requests)
        begun.release()
        assert go_on.wait(WAIT_S)
        yield from enumerate(requests)

    async def run() -> None:
        lane: ScoringLane[str, str] = ScoringLane(score, lambda _: None)
        many = asyncio.ensure_future(lane.results([f"many {n}" for n in range(1000)]))
        await asyncio.sleep(0)
        one = asyncio.ensure_future(lane.results(["one"]))
        await asyncio.sleep(0)
        for _ in range(2):
            assert begun.acquire(timeout=WAIT_S)
        go_on.set()
        assert await one == ["one"]
        assert await many == [f"many {n}" for n in range(1000)]
        assert await lane.results([]) == []
        lane.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert "one" in windows[2], "the first window that was made after it came"


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


def test_what_is_written_in_one_turn_goes_out_in_one_piece() -> None:
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
