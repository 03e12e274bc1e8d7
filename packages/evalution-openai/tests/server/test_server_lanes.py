"""Lanes, by which calls get to the session: how they end, fail, and whom they hold up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import GenerationRequest, TextDelta
from evalution_enginekit.mock import MockSession
from evalution_enginekit.tokens import TokenEvent

WAIT_S = 20


def test_a_lane_that_is_closed_ends_its_calls(slow: Any, until: Any) -> None:
    from evalution_core import SessionClosedError
    from evalution_openai.server.generation_scheduler import GenerationScheduler

    async def run() -> None:
        scheduler = GenerationScheduler(
            slow, limit=2, refills=True, streams=True, waited=lambda _: None
        )
        request = GenerationRequest("abc", max_new_tokens=4000, ignore_eos=True)
        calls = [asyncio.ensure_future(scheduler.outputs([request, request])) for _ in range(2)]
        while not slow.requests_in_flight:
            await asyncio.sleep(0.001)
        scheduler.close()
        for call in calls:
            with pytest.raises(SessionClosedError, match="the server ends"):
                await call

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    until(lambda: slow.requests_in_flight == 0)


def test_an_event_loop_that_is_gone_leaves_nothing_running(slow: Any, until: Any) -> None:
    from evalution_openai.server.generation_scheduler import GenerationScheduler

    async def run() -> None:
        scheduler = GenerationScheduler(
            slow, limit=2, refills=True, streams=True, waited=lambda _: None
        )
        request = GenerationRequest("abc", max_new_tokens=4000, ignore_eos=True)
        call = asyncio.ensure_future(scheduler.outputs([request]))
        while not slow.requests_in_flight:
            await asyncio.sleep(0.001)
        assert not call.done()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    until(lambda: slow.requests_in_flight == 0)


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
def test_every_call_is_answered_once_or_told_why_not(until: Any, chance: Random) -> None:
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

    from evalution_openai.server.generation_scheduler import GenerationScheduler

    async def work(session: Crashing) -> list[Any]:
        scheduler = GenerationScheduler(
            session, limit=limit, refills=True, streams=True, waited=lambda _: None
        )
        tasks = [
            asyncio.ensure_future(texts(scheduler, call, chance.random() < 0.5)) for call in calls
        ]
        for turn in range(60):
            await asyncio.sleep(0)
            for number in (number for number, when in leaving.items() if when == turn):
                tasks[number].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        session.crashes = set()
        # Every turn came back: so many calls run at once, and one more has its turn after them.
        await asyncio.gather(*(scheduler.outputs(calls[0]) for _ in range(limit + 1)))
        scheduler.close()
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


async def texts(scheduler: Any, call: list[GenerationRequest], deltas: bool) -> list[str]:
    """The text of each request; of a stream, out of its pieces, and its output ends each."""
    if not deltas:
        return [output.text for output in await scheduler.outputs(call)]
    pieces: dict[int, str] = dict.fromkeys(range(len(call)), "")
    ended: list[int] = []
    async with aclosing(scheduler.stream_of(call)) as events:
        async for index, event in events:
            assert index not in ended
            if isinstance(event, TextDelta):
                pieces[index] += event.text
            else:
                ended.append(index)
                assert event.text == pieces[index]
    assert sorted(ended) == list(pieces)
    return list(pieces.values())


def test_a_call_without_requests_ends_and_takes_no_turn(mock: Any) -> None:
    from evalution_openai.server.generation_scheduler import GenerationScheduler

    async def run() -> None:
        scheduler = GenerationScheduler(
            mock, limit=1, refills=True, streams=True, waited=lambda _: None
        )
        for _ in range(2):
            assert await scheduler.outputs([]) == []
            assert await texts(scheduler, [], True) == []
        scheduler.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_caller_with_one_request_to_score_waits_for_no_batch() -> None:
    from evalution_openai.server.scoring_batcher import ScoringBatcher

    windows: list[list[str]] = []
    begun, go_on = threading.Semaphore(0), threading.Event()

    def score(requests: list[str]) -> Iterator[tuple[int, str]]:
        windows.append(requests)
        begun.release()
        assert go_on.wait(WAIT_S)
        yield from enumerate(requests)

    async def run() -> None:
        scheduler: ScoringBatcher[str, str] = ScoringBatcher(score, lambda _: None)
        many = asyncio.ensure_future(scheduler.results([f"many {n}" for n in range(1000)]))
        await asyncio.sleep(0)
        one = asyncio.ensure_future(scheduler.results(["one"]))
        await asyncio.sleep(0)
        for _ in range(2):
            assert begun.acquire(timeout=WAIT_S)
        go_on.set()
        assert await one == ["one"]
        assert await many == [f"many {n}" for n in range(1000)]
        assert await scheduler.results([]) == []
        scheduler.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    # Two windows run at once, and either may be noted first.
    (window,) = (window for window in windows if "one" in window)
    after_the_first_two = len(windows[0]) + len(windows[1])
    assert f"many {after_the_first_two}" in window, "the first window that was made after it came"


class Forgetful:
    """A scoring call that forgets one of its requests."""

    def __call__(self, requests: list[str]) -> Iterator[tuple[int, str]]:
        yield from list(enumerate(requests))[1:]


def test_a_request_that_the_session_forgets_does_not_hang() -> None:
    from evalution_openai.server.scoring_batcher import ScoringBatcher

    async def score() -> None:
        scheduler: ScoringBatcher[str, str] = ScoringBatcher(Forgetful(), lambda _: None)
        with pytest.raises(KeyError):
            await scheduler.results(["a", "b"])
        scheduler.close()

    asyncio.run(asyncio.wait_for(score(), WAIT_S))
