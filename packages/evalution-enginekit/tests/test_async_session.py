"""Tasks that share one stream of a session."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from queue import SimpleQueue
from random import Random
from threading import Semaphore
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    RequestStream,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    SessionInfo,
    TextDelta,
)
from evalution_enginekit import async_session, calls, channels
from evalution_enginekit.async_session import AsyncSession
from evalution_enginekit.calls import Call
from evalution_enginekit.channels import Channel
from evalution_enginekit.fair_queue import Accounts, current_caller
from evalution_enginekit.mock import MOCK_CAPABILITIES, MockSession

R = TypeVar("R")


def asked(number: int, length: int = 8) -> GenerationRequest:
    return GenerationRequest(f"prompt {number}", max_new_tokens=length, ignore_eos=True)


@pytest.fixture
def session() -> Iterator[MockSession]:
    with MockSession("a", 512, 8) as opened:
        yield opened


@pytest.fixture
def front(session: MockSession) -> Iterator[AsyncSession]:
    opened = AsyncSession(session)
    yield opened
    opened.close()


def run(work: Coroutine[Any, Any, R]) -> R:
    async def in_time() -> R:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(in_time())


async def outputs_of(
    front: AsyncSession, requests: Iterable[GenerationRequest]
) -> list[GenerationOutput]:
    return list(await asyncio.gather(*map(front.generate, requests)))


def test_tasks_get_what_a_list_call_gives(session: MockSession, front: AsyncSession) -> None:
    requests = [asked(number, 3 + number % 5) for number in range(40)]
    assert run(outputs_of(front, requests)) == session.generate(requests)


def test_tasks_of_several_event_loops_share_the_stream(
    session: MockSession, front: AsyncSession
) -> None:
    groups = [[asked(number + 10 * group) for number in range(10)] for group in range(3)]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda group: run(outputs_of(front, group)), groups))
    assert found == [session.generate(group) for group in groups]


def test_a_refused_request_fails_alone(front: AsyncSession) -> None:
    async def both() -> tuple[Any, ...]:
        wrong = front.generate(GenerationRequest())
        return tuple(await asyncio.gather(wrong, front.generate(asked(1)), return_exceptions=True))

    refused, output = run(both())
    assert isinstance(refused, InvalidRequestError)
    assert isinstance(output, GenerationOutput)


class GatedSession(MockSession):
    """Takes a step for every permit."""

    def __init__(self) -> None:
        super().__init__("a", 512, 8)
        self.permits = Semaphore(0)

    def _step(self, sequences: list[Any]) -> list[Any]:
        self.permits.acquire()
        return super()._step(sequences)


@pytest.fixture
def gated() -> Iterator[GatedSession]:
    session = GatedSession()
    yield session
    session.permits.release(10_000)
    session.close()


def test_text_comes_as_it_grows_and_then_the_output(gated: GatedSession) -> None:
    front = AsyncSession(gated)

    async def events() -> list[TextDelta | GenerationOutput]:
        async with aclosing(front.stream(asked(1, 20))) as found:
            # Deltas that nobody has read yet are joined, so the first is read before the next step.
            gated.permits.release()
            first = await anext(found)
            gated.permits.release(10_000)
            return [first, *[event async for event in found]]

    *deltas, output = run(events())
    front.close()
    assert front.streams_text
    assert len(deltas) > 1
    check_deltas(deltas, output)


def test_session_that_can_not_stream_gives_its_text_in_one_piece() -> None:
    with PlainSession("a", 512, 8) as session:
        front = AsyncSession(session)

        async def events() -> list[TextDelta | GenerationOutput]:
            return [event async for event in front.stream(asked(1, 20))]

        *deltas, output = run(events())
        front.close()
    assert not front.streams_text
    assert len(deltas) == 1
    check_deltas(deltas, output)


def test_texts_in_one_piece_come_before_their_outputs_and_none_for_a_refused_request() -> None:
    with PlainSession("a", 512, 8) as session:
        front = AsyncSession(session)

        async def events() -> dict[int, list[Any]]:
            found: dict[int, list[Any]] = {0: [], 1: [], 2: []}
            requests = [asked(0, 9), GenerationRequest(), asked(2, 20)]
            async with aclosing(front.events(requests, deltas=True)) as given:
                async for index, event in given:
                    found[index].append(event)
            return found

        found = run(events())
        front.close()
    for index in (0, 2):
        *deltas, output = found[index]
        assert len(deltas) == 1
        check_deltas(deltas, output)
    assert [type(event) for event in found[1]] == [RequestFailure]


def check_deltas(deltas: list[Any], output: Any) -> None:
    assert isinstance(output, GenerationOutput)
    assert "".join(delta.text for delta in deltas) == output.text
    assert [i for delta in deltas for i in delta.token_ids] == output.token_ids


def test_a_task_that_is_cancelled_takes_its_request_out_of_the_session(gated: GatedSession) -> None:
    front = AsyncSession(gated)

    async def work() -> int:
        long = front.stream(asked(1, 400))
        gated.permits.release()
        await anext(long)
        waiting = asyncio.ensure_future(anext(long))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gated.permits.release(4)  # one for the step that may be under way with the long one
        await front.generate(asked(2, 3))
        return gated.requests_in_flight

    assert run(work()) == 0
    gated.permits.release(10_000)
    front.close()


def test_closing_ends_tasks_that_wait_and_refuses_later_ones(gated: GatedSession) -> None:
    front = AsyncSession(gated)

    async def work() -> None:
        running = front.stream(asked(1, 400))
        gated.permits.release()
        await anext(running)
        gated.permits.release(10_000)
        front.close()
        with pytest.raises(SessionClosedError, match="closed meanwhile"):
            async for _ in running:
                pass
        with pytest.raises(SessionClosedError, match="make a new one"):
            await front.generate(asked(2))

    run(work())
    front.close()
    assert len(gated.generate([asked(3)])) == 1, "the session is the caller's and goes on"


def test_every_task_gets_an_error_of_a_closed_session(
    session: MockSession, front: AsyncSession
) -> None:
    session.close()

    async def work() -> list[Any]:
        tasks = [front.generate(asked(number)) for number in range(3)]
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    assert [type(error) for error in run(work())] == [SessionClosedError] * 3


class FailingOnceSession(MockSession):
    """Its first step fails."""

    has_failed = False

    def _step(self, sequences: list[Any]) -> list[Any]:
        if not self.has_failed:
            self.has_failed = True
            raise OSError("the device is gone")
        return super()._step(sequences)


def test_after_a_failure_of_the_runtime_later_requests_get_a_new_stream() -> None:
    with FailingOnceSession("a", 512, 8) as session:
        front = AsyncSession(session)

        async def work() -> GenerationOutput:
            with pytest.raises(EngineRuntimeError, match="the device is gone"):
                await front.generate(asked(1))
            return await front.generate(asked(2))

        assert run(work()) == session.generate([asked(2)])[0]
        front.close()


class PlainSession(MockSession):
    """Neither streams text nor batches continuously."""

    @property
    def info(self) -> SessionInfo:
        left = MOCK_CAPABILITIES - {Capability.CONTINUOUS_BATCHING, Capability.STREAM}
        return replace(super().info, capabilities=left)


class WholeInputSession(PlainSession):
    """Starts when its input has ended, as an engine without continuous batching may."""

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        for key, request in list(requests):
            yield key, self.generate([request])[0]


def test_a_session_without_refill_gets_rounds_that_end() -> None:
    with WholeInputSession("a", 512, 8) as session:
        front = AsyncSession(session)
        requests = [asked(number) for number in range(5)]

        async def twice() -> list[GenerationOutput]:
            return await outputs_of(front, requests) + await outputs_of(front, requests)

        assert run(twice()) == session.generate(requests) * 2
        front.close()


class SilentSession(MockSession):
    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        next(iter(requests))
        yield from ()


def test_a_stream_that_ends_without_an_answer_is_an_error() -> None:
    with SilentSession("a", 512, 8) as session:
        front = AsyncSession(session)
        with pytest.raises(EngineRuntimeError, match="ended too early"):
            run(front.generate(asked(1)))
        front.close()


class DeafSession(MockSession):
    """Its stream ends without a look at the input."""

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        yield from ()


def test_a_stream_that_never_asks_for_a_request_is_an_error() -> None:
    with DeafSession("a", 512, 8) as session:
        front = AsyncSession(session)
        with pytest.raises(EngineRuntimeError, match="ended too early"):
            run(front.generate(asked(1)))
        front.close()


class Hand(RequestStream[int, Any]):
    """A stream that has its first request in hand until it is told to go on."""

    def __init__(self, session: MockSession, requests: Any):
        self._session = session
        self._requests = iter(requests)
        self.has_taken, self.goes_on = threading.Event(), threading.Event()
        self.cancelled: list[Any] = []

    def __next__(self) -> Any:
        if not self.has_taken.is_set():
            next(self._requests)
            self.has_taken.set()
            assert self.goes_on.wait(60)
        key, request = next(self._requests)
        return key, self._session.generate([request])[0]

    def cancel(self, key: Any) -> None:
        self.cancelled.append(key)

    def close(self) -> None: ...


class HandSession(MockSession):
    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        self.hand = Hand(self, requests)
        return self.hand


def test_a_request_given_up_on_its_way_to_the_stream_is_cancelled_once_it_is_there() -> None:
    with HandSession("a", 512, 8) as session:
        front = AsyncSession(session)

        async def work() -> GenerationOutput:
            leaving = asyncio.ensure_future(front.generate(asked(1)))
            while not hasattr(session, "hand"):
                await asyncio.sleep(0)
            assert await asyncio.to_thread(session.hand.has_taken.wait, 60)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            assert session.hand.cancelled == [0], "not under way yet: without effect"
            session.hand.goes_on.set()
            return await front.generate(asked(2))

        assert run(work()) == session.generate([asked(2)])[0]
        assert session.hand.cancelled == [0, 0]
        front.close()


def test_steady_requests_do_not_delay_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_session, "_GATHERING_S", 100.0)

    class Popular(PlainSession):
        """Starts when its input has ended; for every request that it takes comes another."""

        comes: Callable[[], object] = staticmethod(lambda: None)

        def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
            taken = []
            for pair in requests:
                taken.append(pair)
                self.comes()
            for key, request in taken:
                yield key, self.generate([request])[0]

    with Popular("a", 512, 8) as session:
        front = AsyncSession(session)

        async def work() -> GenerationOutput:
            loop = asyncio.get_running_loop()
            others: list[asyncio.Future[GenerationOutput]] = []

            def one_more() -> None:
                others.append(asyncio.ensure_future(front.generate(asked(2, 1))))

            session.comes = lambda: loop.call_soon_threadsafe(one_more)
            output = await front.generate(asked(1))
            session.comes = lambda: None
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            return output

        assert run(work()) == session.generate([asked(1)])[0]
        front.close()


def test_closing_on_the_stream_thread_does_not_wait() -> None:
    """As a garbage collection there does, which finalizes whoever owned the session."""

    class Closing(MockSession):
        front: AsyncSession
        is_over = threading.Event()

        def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
            key, request = next(iter(requests))
            self.front.close()
            self.is_over.set()
            yield key, self.generate([request])[0]

    with Closing("a", 512, 8) as session:
        session.front = AsyncSession(session)
        with pytest.raises(SessionClosedError, match="closed meanwhile"):
            run(session.front.generate(asked(1)))
        assert session.is_over.wait(60), "it raised"


@given(st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_cancelled_task_frees_its_slot_and_the_others_get_answers(chance: Random) -> None:
    requests = [asked(number, chance.choice([1, 2, 20, 50])) for number in range(40)]
    leaving = {number: chance.randrange(40) for number in chance.sample(range(40), 20)}

    with MockSession("a", 512, 4) as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "_SLOT_WAIT_S", 0.001)  # many give up their slots
        front = AsyncSession(session)

        async def work() -> list[Any]:
            tasks = [asyncio.ensure_future(front.generate(request)) for request in requests]
            for turn in range(40):
                await asyncio.sleep(0)
                for number, when in leaving.items():
                    if when == turn:
                        tasks[number].cancel()
            return list(await asyncio.gather(*tasks, return_exceptions=True))

        found = run(work())
        expected = session.generate(requests)
        front.close()
        for number, output in enumerate(found):
            if number in leaving and isinstance(output, asyncio.CancelledError):
                continue
            assert output == expected[number]
        assert session.requests_in_flight == 0


# scores, callers with several requests, turns


def test_scores_are_those_of_the_list_calls(session: MockSession, front: AsyncSession) -> None:
    pairs = [LoglikelihoodRequest(f"context {number}", " text") for number in range(150)]
    texts = [RollingLoglikelihoodRequest(f"a text {number}") for number in range(9)]

    async def work() -> Any:
        scores = asyncio.gather(*map(front.score, pairs))
        return await scores, await front.answer(texts)

    scores, make_rolling_outputs = run(work())
    assert list(scores) == session.loglikelihood(pairs)
    assert make_rolling_outputs == session.loglikelihood_rolling(texts)


def test_malformed_requests_fail_alone(front: AsyncSession) -> None:
    content: Any = ["hi"]
    wrong: Any = "5"
    malformed = [
        GenerationRequest(messages=[{"role": "user", "content": content}]),
        replace(asked(1), max_new_tokens=wrong),
    ]
    first, *refused = run(front.answer([asked(1), *malformed]))
    assert isinstance(first, GenerationOutput)
    assert all(isinstance(found.error, InvalidRequestError) for found in refused)


def test_one_caller_gets_its_failures_as_values_and_in_order(front: AsyncSession) -> None:
    first, refused, last = run(front.answer([asked(1), GenerationRequest(), asked(2)]))
    assert isinstance(refused, RequestFailure)
    assert isinstance(refused.error, InvalidRequestError)
    assert isinstance(first, GenerationOutput)
    assert isinstance(last, GenerationOutput)
    with pytest.raises(InvalidRequestError):
        run(front.score(LoglikelihoodRequest("a", "")))


def test_caller_without_requests_gets_nothing_and_no_request_is_refused(
    front: AsyncSession,
) -> None:
    assert run(front.answer(list[GenerationRequest]())) == []
    with pytest.raises(InvalidRequestError, match="expected a request, got 'text'"):
        run(front.answer(["text"]))  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_caller_with_many_requests_holds_up_none_with_few() -> None:
    class Recording(GatedSession):
        """Notes the prompts in the order in which the stream takes them."""

        taken: list[Any]

        def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
            def noted() -> Iterator[Any]:
                for key, request in requests:
                    self.taken.append(request.prompt)
                    yield key, request

            return super().generate_continuous(noted(), batch_size=batch_size)

    with Recording() as session:
        session.taken = []
        front = AsyncSession(session, batch_size=1)

        async def work() -> None:
            many = asyncio.ensure_future(front.answer([asked(1, 1)] * 20))
            while not session.taken:
                await asyncio.sleep(0)
            few = asyncio.ensure_future(front.answer([asked(2, 1)] * 2))
            await asyncio.sleep(0)
            session.permits.release(10_000)
            await asyncio.gather(many, few)

        run(work())
        assert session.taken.index("prompt 2") < 10
        front.close()


def test_failure_of_the_runtime_costs_only_the_callers_that_had_requests_in_it() -> None:
    class OneFails(MockSession):
        """Its first step with two prompts in it fails, and names one of them."""

        has_failed = False

        def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
            if self.has_failed:
                yield from super().generate_continuous(requests, batch_size=batch_size)
                return
            source = iter(requests)
            key, _ = next(source)
            next(source)
            self.has_failed = True
            raise EngineRuntimeError("the device is gone", in_flight=[key])

    with OneFails("a", 512, 8) as session:
        front = AsyncSession(session)

        async def work() -> Any:
            both = front.generate(asked(1)), front.generate(asked(2))
            return await asyncio.gather(*both, return_exceptions=True)

        hit, spared = run(work())
        assert isinstance(hit, EngineRuntimeError)
        assert spared == session.generate([asked(2)])[0]
        front.close()


def test_time_that_a_request_waited_is_reported(session: MockSession) -> None:
    waited: list[tuple[str, float]] = []
    front = AsyncSession(session, on_start=lambda kind, s: waited.append((kind.label, s)))

    async def work() -> None:
        await front.generate(asked(1))
        await front.score(LoglikelihoodRequest("a", "b"))

    run(work())
    front.close()
    assert [label for label, _ in waited] == ["generation", "loglikelihood"]
    assert all(0 <= seconds < 60 for _, seconds in waited)


def test_long_prompt_takes_a_stream_of_its_own(session: MockSession) -> None:
    front = AsyncSession(session)
    long = GenerationRequest("a" * 40_000, max_new_tokens=2)

    async def work() -> Any:
        return await asyncio.gather(front.generate(long), front.generate(asked(1)))

    assert run(work()) == session.generate([long, asked(1)])
    assert len(front._channels) == 2
    front.close()


def test_call_of_many_requests_leaves_a_slot_for_a_call_of_one() -> None:
    """Of eight slots; nothing makes the engine's steps, so nobody's slot is freed."""

    class Held(GatedSession):
        most = 0
        has_both = threading.Event()

        def _step(self, sequences: list[Any]) -> list[Any]:
            self.most = max(self.most, len(sequences))
            if len(sequences) == 8:
                self.has_both.set()
            return super()._step(sequences)

    session = Held()
    front = AsyncSession(session)

    async def work() -> int:
        many = asyncio.ensure_future(front.answer([asked(n, 400) for n in range(20)]))
        while session.requests_in_flight < 7:
            session.permits.release()
            await asyncio.sleep(0.001)
        alone = session.requests_in_flight
        one = asyncio.ensure_future(front.generate(asked(1, 400)))
        while not session.has_both.is_set():
            session.permits.release()
            await asyncio.sleep(0.001)
        session.permits.release(100_000)
        await asyncio.gather(many, one)
        return alone

    assert run(work()) == 7
    assert session.most == 8
    front.close()
    session.close()


def test_caller_that_has_had_less_is_served_before_the_others(gated: GatedSession) -> None:
    front = AsyncSession(gated, batch_size=1)
    order: list[str] = []

    async def call(name: str, number: int) -> None:
        current_caller.set(("host", name))
        await front.generate(asked(number, 50))
        order.append(name)

    async def work() -> None:
        first = asyncio.ensure_future(call("heavy", 0))
        while not gated.requests_in_flight:
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(call("heavy", number)) for number in range(1, 9)]
        await asyncio.sleep(0)
        light = asyncio.ensure_future(call("light", 10))
        await asyncio.sleep(0)
        gated.permits.release(10_000)
        await asyncio.gather(first, *others, light)

    run(work())
    front.close()
    # What the stream has read ahead goes before it.
    assert order.index("light") <= 3, order


def used(front: AsyncSession) -> dict[Any, float]:
    """The tokens that each caller is charged with."""
    members = front._accounts._root.members  # pyright: ignore[reportPrivateUsage]
    return {key: member.used for key, member in members.items()}


def test_refused_request_costs_its_caller_nothing(gated: GatedSession) -> None:
    front = AsyncSession(gated)

    async def work() -> None:
        other = asyncio.ensure_future(front.generate(asked(0)))  # accounts end with the last call
        while not gated.requests_in_flight:
            await asyncio.sleep(0)
        current_caller.set(("caller",))
        with pytest.raises(InvalidRequestError):
            await front.generate(GenerationRequest("word " * 600, truncation="error"))
        assert used(front).get("caller", 0) == 0
        gated.permits.release(10_000)
        await other

    run(work())
    front.close()


def test_given_up_request_costs_what_it_was_given(
    gated: GatedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    clock = SimpleNamespace(perf_counter=lambda: seconds, monotonic=time.monotonic)
    monkeypatch.setattr(channels, "time", clock)
    front = AsyncSession(gated, batch_size=1)

    async def call(name: str, request: GenerationRequest) -> GenerationOutput:
        current_caller.set((name,))
        return await front.generate(request)

    async def give_up(task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def work() -> None:
        nonlocal seconds
        first = asyncio.ensure_future(call("first", asked(0, 100)))
        while not gated.requests_in_flight:
            await asyncio.sleep(0)
        seconds = 2.0  # 50 tokens a second
        gated.permits.release(1000)
        await first
        while gated.permits.acquire(blocking=False):
            pass
        runs = asyncio.ensure_future(call("runs", asked(1, 400)))
        while not gated.requests_in_flight:
            await asyncio.sleep(0)
        waits = asyncio.ensure_future(call("waits", asked(2, 400)))
        while used(front).get("waits", 0) < 800:
            await asyncio.sleep(0)
        seconds += 3.0
        await give_up(waits)
        prompt = 1 + len("prompt 1") / 4
        assert used(front)["runs"] == prompt + 2 * 400
        assert used(front).get("waits", 0) == 0, "it had no slot"
        last = asyncio.ensure_future(call("last", asked(3, 4)))
        await asyncio.sleep(0)
        await give_up(runs)
        assert used(front)["runs"] == prompt + 2 * 3 * 50
        gated.permits.release(10_000)
        await last

    run(work())
    front.close()


class SlowSession(MockSession):
    """Each step takes a moment, until `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__("a", 512, 2)
        self.goes_on = threading.Event()

    def _step(self, sequences: list[Any]) -> list[Any]:
        self.goes_on.wait(0.002)
        return super()._step(sequences)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_long_request_gives_its_slot_to_a_short_one_unless_its_text_has_come(
    monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    monkeypatch.setattr(calls, "_SLOT_WAIT_S", 0.0)
    long, short = [asked(number, 400) for number in range(3)], asked(3, 3)

    with SlowSession() as session:
        front = AsyncSession(session)

        async def call(request: GenerationRequest) -> list[Any]:
            if not is_streamed:
                return [await front.generate(request)]
            events: list[Any] = []
            async for event in front.stream(request):
                events.append(event)
                begun.add(request.prompt)
            return events

        begun = set[str | None]()

        async def work() -> tuple[int, list[list[Any]]]:
            tasks = [asyncio.ensure_future(call(request)) for request in long]
            while (len(begun) if is_streamed else session.requests_in_flight) < 2:
                await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(call(short)))
            if is_streamed:
                await asyncio.sleep(0.05)  # as the other case shows, it would have the slot by now
            else:
                await tasks[-1]
            left = sum(not task.done() for task in tasks)
            session.goes_on.set()
            return left, list(await asyncio.gather(*tasks))

        left, found = run(work())
        assert left == (4 if is_streamed else 3)
        for (*deltas, output), expected in zip(
            found, session.generate([*long, short]), strict=True
        ):
            assert output == expected
            assert not is_streamed or "".join(delta.text for delta in deltas) == output.text
        front.close()


async def step_until(gated: GatedSession, is_over: Callable[[], bool]) -> None:
    while not is_over():
        gated.permits.release()
        await asyncio.sleep(0.001)
        gated.permits.acquire(blocking=False)


def test_slot_of_a_long_request_is_kept_for_the_next_short_one(
    gated: GatedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the ninth of them would wait: each of the eight that run begins again once at most."""
    monkeypatch.setattr(calls, "_SLOT_WAIT_S", 0.0)
    monkeypatch.setattr(channels, "_KEPT_S", 60.0)
    front = AsyncSession(gated)
    long, short = [asked(number, 450) for number in range(10)], asked(10, 3)

    async def work() -> tuple[int, list[Any], list[Any]]:
        tasks = [asyncio.ensure_future(front.generate(request)) for request in long]
        await step_until(gated, lambda: gated.requests_in_flight >= 8)
        found: list[Any] = []
        for _ in range(12):
            one = asyncio.ensure_future(front.generate(short))
            await step_until(gated, one.done)
            found.append(await one)
        left = sum(not task.done() for task in tasks)
        gated.permits.release(10_000)
        return left, found, list(await asyncio.gather(*tasks))

    left, *found = run(work())
    front.close()
    assert left == 10
    assert found == [gated.generate([short]) * 12, gated.generate(long)]


def test_channel_needs_room_while_requests_differ_or_a_slot_is_kept() -> None:
    """Else the event loop would wake each 20 ms beside a steady flow of like requests."""
    outbox: Any = SimpleNamespace(send=lambda *_: None)
    channel = Channel(
        lambda requests: TakingStream(requests, SimpleQueue()), lambda _: None, Accounts(),
        lambda *_: 0.0, patience=None, slots=1,
    )  # fmt: skip
    first, like, short, last = (
        Call([asked(0)], outbox, costs=[c]) for c in (80.0, 11.0, 10.0, 80.0)
    )
    assert not channel.join(first)
    assert not channel.join(like)
    assert channel.join(short), "it costs an eighth of what runs"
    while channel.callers:
        time.sleep(0)
    assert channel.make_room()
    channel.leave(short)
    assert not channel.make_room(), "none of the two others may take the other's slot"
    channel._kept_until = math.inf  # pyright: ignore[reportPrivateUsage]
    assert channel.join(last), "somebody has to find that the kept slot is free"
    channel.close()


def test_long_requests_have_all_slots_but_the_one_that_is_kept() -> None:
    accounts = Accounts()
    outbox: Any = SimpleNamespace(send=lambda *_: None)

    def make(cost: float, running: dict[int, Call] | None = None) -> Call:
        call = Call([asked(0)], outbox, costs=[cost])
        call.account = accounts.open(call.caller)
        if running is not None:
            number = len(running)
            call.in_flight[number] = call.to_go.popleft()
            running[number] = call
        return call

    channel = Channel(
        lambda _: pytest.fail("no call waits"), lambda _: None, accounts, lambda *_: 0.0,
        patience=None, slots=8,
    )  # fmt: skip
    channel._short, channel._kept_until = 80.0, math.inf  # pyright: ignore[reportPrivateUsage]
    running = channel._readers[0].running  # pyright: ignore[reportPrivateUsage]
    long, short = make(400.0), make(10.0)
    for _ in range(6):
        make(400.0, running)
    make(10.0, running)
    channel.callers = [long]
    assert channel.find_next() is long, "a short one has the kept slot"
    make(400.0, running)
    assert channel.find_next() is None
    channel.callers = [long, short]
    assert channel.find_next() is short
    channel._kept_until = 0.0  # pyright: ignore[reportPrivateUsage]
    channel.callers = [long]
    assert channel.find_next() is long
    channel.callers.clear()
    channel.close()


class TakingStream(RequestStream[int, Any]):
    """A stream that takes every request that it is given, and answers none."""

    def __init__(self, requests: Iterable[tuple[int, Any]], taken: SimpleQueue[int]):
        self._requests = iter(requests)
        self._taken = taken

    def __next__(self) -> Any:
        while True:
            self._taken.put(next(self._requests)[0])

    def cancel(self, key: Any) -> None: ...

    def close(self) -> None: ...


def test_long_request_that_waits_goes_on_when_another_is_given_up() -> None:
    taken: SimpleQueue[int] = SimpleQueue()
    outbox: Any = SimpleNamespace(send=lambda *_: None)
    channel = Channel(
        lambda requests: TakingStream(requests, taken), lambda _: None, Accounts(),
        lambda *_: 0.0, patience=None, slots=8,
    )  # fmt: skip
    channel._short, channel._kept_until = 80.0, math.inf  # pyright: ignore[reportPrivateUsage]
    long = [Call([asked(number)], outbox, costs=[400.0]) for number in range(8)]
    for call in long:
        channel.join(call)
    assert [taken.get(timeout=60) for _ in range(7)] == [*range(7)]
    changed: Any = channel.changed
    while not changed._waiters:
        time.sleep(0)
    assert channel.find_next() is None, "the eighth slot is kept"
    channel.leave(long[0])
    assert taken.get(timeout=60) == 7
    channel.close()
