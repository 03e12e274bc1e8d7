"""One request taken out of an open stream: it goes alone, wherever it is."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    RequestStream,
    TextDelta,
)
from evalution_enginekit.request_loop import Emit, RequestJob, RequestLoop
from evalution_enginekit.streams import PulledStream, ResultStream, StreamLimits

WAIT_S = 20
Stream: TypeAlias = ResultStream[str, str, str]
Echoes = Callable[..., Any]


class Owner:
    """A thread that serves nobody, and counts how often it is woken."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_current = False
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def post(self, function: Callable[[], None]) -> None:
        function()


def opened(running: int = 2, ahead: int = 1) -> Stream:
    return ResultStream(Owner(), StreamLimits(running, ahead))


def start(stream: Stream, number: int) -> None:
    with stream._changed:
        stream.admit(number)


def finish(stream: Stream, number: int, result: str) -> None:
    with stream._changed:
        stream.deliver(number, result)
        stream.release(number)


def test_cancelled_waiting_request_never_runs() -> None:
    stream = opened()
    stream.submit("a", "x")
    stream.submit("b", "y")
    stream.cancel("a")
    stream.finish_input()
    start(stream, 0)
    assert stream.running == {0: "b"}
    finish(stream, 0, "Y")
    assert list(stream.results()) == [("b", "Y")]


def test_result_of_a_cancelled_running_request_is_dropped() -> None:
    owner = Owner()
    stream: Stream = ResultStream(owner, StreamLimits(running=2, ahead=1))
    stream.submit("a", "x")
    stream.submit("b", "y")
    start(stream, 0)
    start(stream, 1)
    owner.wakes = 0
    stream.cancel("a")
    assert owner.wakes == 1, "the runtime has to hear of it"
    assert [stream.wants(number) for number in (0, 1)] == [False, True]
    with stream._changed:
        stream.deliver_part(0, TextDelta("part"))
    finish(stream, 0, "X")
    finish(stream, 1, "Y")
    stream.finish_input()
    assert list(stream.results()) == [("b", "Y")]


def test_the_number_of_a_cancelled_job_may_come_again() -> None:
    stream = opened()
    stream.submit("a", "x")
    start(stream, 0)
    stream.cancel("a")
    with stream._changed:
        stream.release(0)
    stream.submit("a", "x")
    start(stream, 0)
    assert stream.wants(0)


def test_cancelled_unread_result_is_dropped_and_makes_room() -> None:
    stream = opened(running=1, ahead=1)
    stream.submit("a", "x")
    start(stream, 0)
    with stream._changed:
        stream.deliver_part(0, TextDelta("p"))
    finish(stream, 0, "X")
    stream.submit("b", "y")
    assert stream.admissible() == 0
    stream.cancel("a")
    assert stream.admissible() == 1
    start(stream, 1)
    finish(stream, 1, "Y")
    stream.finish_input()
    assert list(stream.results()) == [("b", "Y")]


@pytest.mark.parametrize("is_bad", [False, True])
def test_request_cancelled_while_it_is_prepared_never_enters(is_bad: bool) -> None:
    streams: list[Stream] = []

    def opening() -> Stream:
        streams.append(opened())
        return streams[0]

    def prepare(request: str) -> str | RequestFailure:
        if request != "cancelled":
            return RequestFailure(InvalidRequestError(request))
        pulled.cancel("a")
        return RequestFailure(InvalidRequestError("bad")) if is_bad else "job"

    requests = [("a", "cancelled"), ("a", "the same key again")]
    pulled = PulledStream(requests, opening, prepare, "toy")
    ((key, failure),) = list(pulled)
    assert key == "a"
    assert isinstance(failure, RequestFailure)
    assert str(failure.error) == "the same key again"
    assert not streams[0].waiting


def test_cancelling_a_future_key_changes_nothing() -> None:
    is_read = threading.Event()

    def requests() -> Iterator[tuple[str | None, str]]:
        for key in ("a", None, "nobody's"):
            pulled.cancel(key)
        yield "a", "x"
        yield None, "y"
        assert is_read.wait(WAIT_S)
        pulled.cancel("a")  # that one is over
        yield "a", "again"

    def prepare(request: str) -> RequestFailure:
        return RequestFailure(InvalidRequestError(request))

    def opening() -> Any:
        return opened(running=9)

    pulled: PulledStream[Any, str, str, str] = PulledStream(requests(), opening, prepare, "toy")
    assert next(pulled)[0] == "a"
    is_read.set()
    found = [(key, str(failure.error)) for key, failure in pulled]  # type: ignore[union-attr]
    assert found == [(None, "y"), ("a", "again")]


def test_cancelling_a_finished_key_changes_nothing() -> None:
    stream = opened()
    stream.submit("a", "x")
    start(stream, 0)
    finish(stream, 0, "X")
    results = stream.results()
    assert next(results) == ("a", "X")
    stream.cancel("a")
    stream.submit("b", "y")
    stream.submit("a", "again")
    assert [key for key, _ in stream.waiting] == ["b", "a"]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "admit", "part", "end", "read", "cancel"]), st.booleans()
        )
    )
)
def test_counts_are_right_after_any_order_of_cancellations(moves: list[tuple[str, bool]]) -> None:
    stream = opened(running=2, ahead=2)
    results = stream.results()
    cancelled: set[str] = set()
    for count, (move, is_first) in enumerate(moves):
        numbers = sorted(stream.running)
        keys = sorted({*stream.running.values(), *(key for key, _ in stream.waiting)} - cancelled)
        if move == "submit" and stream._has_room():
            stream.submit(f"{count:04}", "x")
        elif move == "admit" and stream.admissible() > 0:
            start(stream, count)
        elif move == "part" and numbers:
            with stream._changed:
                stream.deliver_part(numbers[0 if is_first else -1], TextDelta("p"))
        elif move == "end" and numbers:
            finish(stream, numbers[0 if is_first else -1], "x")
        elif move == "read" and stream._results:
            key, _ = next(results)
            assert key not in cancelled
        elif move == "cancel" and keys:
            key = keys[0 if is_first else -1]
            stream.cancel(key)
            cancelled.add(key)
        assert stream._unread == sum(result.part_of is None for result in stream._results)
        assert set(stream._parts) == {r.part_of for r in stream._results} - {None}
        assert not cancelled & {result.key for result in stream._results}
        assert stream._cancelled <= set(stream.running)


def test_dropped_pulled_stream_ends() -> None:
    stream = opened()
    pulled = PulledStream([("a", "x")], lambda: stream, lambda job: job, "toy")
    stream.reject("first", RequestFailure(InvalidRequestError("bad")))
    next(pulled)
    del pulled
    gc.collect()
    assert stream.ended


def test_cancelling_before_the_first_result_is_asked_for_opens_nothing() -> None:
    def opening() -> Stream:
        raise AssertionError("opened")

    pulled = PulledStream([("a", "x")], opening, lambda job: job, "toy")
    pulled.cancel("a")
    pulled.close()
    assert list(pulled) == []


def ask(prompt: str, **options: Any) -> GenerationRequest:
    return GenerationRequest(prompt, max_new_tokens=100, **options)


@pytest.mark.parametrize("call", ["generate_continuous", "stream"])
@pytest.mark.parametrize("without", [(), (Capability.CONTINUOUS_BATCHING,)])
def test_a_session_drops_a_cancelled_request_and_goes_on(
    echo: Echoes, call: str, without: Any
) -> None:
    session = echo(batch_size=2, without=without)
    steps = 0
    is_running, go_on = threading.Event(), threading.Event()

    def before_step() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            is_running.set()
            assert go_on.wait(WAIT_S)

    session.before_step = before_step
    requests = [("long", ask("abc", ignore_eos=True)), ("short", ask("abcdef"))]
    results = getattr(session, call)(requests)
    assert isinstance(cast(object, results), RequestStream)
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(lambda: [key for key, _ in results])
        assert is_running.wait(WAIT_S)
        results.cancel("long")
        go_on.set()
        keys = reading.result(WAIT_S)
    assert keys[-1] == "short"
    if call == "generate_continuous":
        assert keys == ["short"]
    assert session.dropped == [session.admitted[0].key]
    assert max(len(step) for step in session.steps[3:]) == 1, "it ran on"
    assert session.requests_in_flight == 0


def test_crash_does_not_name_cancelled_requests(echo: Echoes) -> None:
    session = echo(batch_size=2)
    session.before_step = lambda: crash()

    def crash() -> None:
        results.cancel("left")
        raise OSError("gone")

    requests = [("left", ask("abc")), ("stayed", ask("abc"))]
    results = session.generate_continuous(requests)
    with pytest.raises(RuntimeError) as caught:
        list(results)
    assert "left" not in caught.value.in_flight  # type: ignore[attr-defined]


def test_cancelled_score_is_not_yielded(echo: Echoes) -> None:
    session = echo()
    session.check()
    scoring = session.score
    results: Any = None

    def cancelling(span: Any) -> Any:
        results.cancel(0)
        return scoring(span)

    session.score = cancelling
    pairs = [(number, LoglikelihoodRequest("a", str(number))) for number in range(3)]
    results = session.loglikelihood_continuous(pairs)
    assert sorted(key for key, _ in results) == [1, 2]


class Held:
    """Jobs that wait until they are told to end; it notes those that are cancelled."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.cancelled: list[str] = []
        self._gates: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}

    def job(self, name: str) -> RequestJob:
        async def serve(_: Emit) -> str:
            self._gates[name] = asyncio.get_running_loop(), asyncio.Event()
            self.began.release()
            try:
                await self._gates[name][1].wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return name.upper()

        return RequestJob(serve, {})

    def end(self, name: str) -> None:
        loop, gate = self._gates[name]
        loop.call_soon_threadsafe(gate.set)


@pytest.fixture
def loop() -> Iterator[RequestLoop]:
    loop = RequestLoop("the test session", 2)
    yield loop

    async def nothing() -> None:
        return None

    loop.close(nothing)


def test_a_request_loop_aborts_a_cancelled_request_and_refills_its_slot(loop: RequestLoop) -> None:
    held = Held()
    stream = loop.open(StreamLimits(running=2, ahead=1))
    for name in "abc":
        stream.submit(name, held.job(name))
    stream.finish_input()
    for _ in range(2):
        assert held.began.acquire(timeout=WAIT_S)
    stream.cancel("a")
    assert held.began.acquire(timeout=WAIT_S), "its slot is free for the third"
    held.end("c")
    held.end("b")
    assert {key for key, _ in stream.results()} == {"b", "c"}
    assert held.cancelled == ["a"]


def test_error_of_a_cancelled_request_is_dropped(loop: RequestLoop) -> None:
    began = threading.Event()

    async def serve(_: Emit) -> str:
        began.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise OSError("the connection broke while it was closed") from None

    stream = loop.open(StreamLimits(running=1, ahead=1))
    stream.submit("a", RequestJob(serve, {}))
    assert began.wait(WAIT_S)
    stream.cancel("a")
    stream.finish_input()
    assert list(stream.results()) == []


def make_deaf(echo_class: Any, **options: Any) -> Any:
    """Build a session that runs two prompts and never asks for the keys that were cancelled."""

    class Deaf(echo_class):
        def _generate_tokens(self, feed: Any) -> Iterator[Any]:
            running: dict[int, Any] = {}
            while len(running) < 2:  # the second prompt may come later than the first is done
                taken = feed.take(2 - len(running))
                running |= {prompt.key: self._echo(prompt) for prompt in taken}
                yield []
            while running:
                steps = [next(sequence) for sequence in running.values()]
                for event, ends in steps:
                    if ends:
                        del running[event.key]
                yield [event for event, _ in steps]

    return Deaf(**options)


LONG = GenerationRequest("a" * 60, max_new_tokens=60)
STOPPED = GenerationRequest("b" * 60, max_new_tokens=60, stop=["bb"])


def test_engine_that_generates_on_after_a_stop_fails(echo_class: Any) -> None:
    message = (
        r"generates on 32 steps after a stop string or cancellation; drop the keys that "
        r"feed\.cancelled\(\) names before each step"
    )
    with make_deaf(echo_class) as session, pytest.raises(EngineRuntimeError, match=message):
        session.generate([STOPPED, LONG])


def test_fixed_batch_may_run_on_while_one_of_its_prompts_is_wanted(echo_class: Any) -> None:
    with make_deaf(echo_class, without=[Capability.CONTINUOUS_BATCHING]) as session:
        stopped, long = session.generate([STOPPED, LONG])
    assert (stopped.text, long.text) == ("", "a" * 60)
