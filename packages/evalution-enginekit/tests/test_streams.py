"""The push stream by itself: what is admitted when, and who is woken."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import InvalidRequestError, RequestFailure
from evalution_enginekit.streams import PulledStream, ResultStream, StreamLimits

WAIT_S = 20
Stream: TypeAlias = ResultStream[str, str, str]


class Owner:
    """A thread that serves nobody, and counts how often it is woken."""

    def __init__(self, *, is_current: bool = False) -> None:
        self.lock = threading.RLock()
        self.is_current = is_current
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def post(self, function: Callable[[], None]) -> None:
        function()


def opened(running: int = 2, ahead: int = 1) -> Stream:
    return ResultStream(Owner(), StreamLimits(running, ahead))


def test_a_stream_dropped_on_its_own_thread_does_not_wait_for_it() -> None:
    stream: Stream = ResultStream(Owner(is_current=True), StreamLimits(running=1, ahead=0))
    stream.submit("a", "x")
    start(stream, 0)
    stream.close()
    assert stream.ended
    assert stream.running == {0: "a"}


def start(stream: Stream, number: int) -> tuple[str, str]:
    with stream._changed:
        return stream.admit(number)


def finish(stream: Stream, number: int, result: str) -> None:
    with stream._changed:
        stream.deliver(number, result)
        stream.release(number)


def run_one(stream: Stream, number: int) -> None:
    _, job = start(stream, number)
    finish(stream, number, job.upper())


def test_jobs_become_results_and_the_stream_ends() -> None:
    stream = opened()
    stream.submit("a", "x")
    stream.submit("b", "y")
    stream.finish_input()
    assert stream.admissible() == 2
    run_one(stream, 0)
    run_one(stream, 1)
    assert list(stream.results()) == [("a", "X"), ("b", "Y")]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.sampled_from(["submit", "admit", "end"])))
def test_limits_hold_whatever_the_order(running: int, ahead: int, moves: list[str]) -> None:
    stream = opened(running, ahead)
    numbers: list[int] = []
    for count, move in enumerate(moves):
        if move == "submit" and stream._has_room():
            stream.submit(str(count), "x")
        elif move == "admit" and stream.admissible() > 0:
            start(stream, count)
            numbers.append(count)
        elif move == "end" and numbers:
            finish(stream, numbers.pop(), "x")
        assert len(stream.running) <= running
        assert len(stream.running) + len(stream.waiting) <= running + ahead
        assert len(stream._results) < 2 * running + 1
        if len(stream._results) >= running:
            assert stream.admissible() == 0


def test_unread_results_stop_admission_and_reading_resumes_it() -> None:
    stream = opened(running=1, ahead=1)
    stream.submit("a", "x")
    stream.submit("b", "y")
    run_one(stream, 0)
    assert stream.admissible() == 0
    results = stream.results()
    assert next(results) == ("a", "X")
    assert stream.admissible() == 1


def test_reading_wakes_the_runtime_only_where_a_job_waits_for_it() -> None:
    owner = Owner()
    stream: Stream = ResultStream(owner, StreamLimits(running=1, ahead=1))
    stream.submit("a", "x")
    stream.submit("b", "y")
    run_one(stream, 0)
    owner.wakes = 0
    results = stream.results()
    next(results)
    assert owner.wakes == 1
    run_one(stream, 1)
    next(results)
    assert owner.wakes == 1


@pytest.mark.parametrize(
    ("jobs", "finished", "patience", "rest"),
    [
        (0, False, 5.0, math.inf),
        (0, True, 5.0, math.inf),
        (2, False, 5.0, 0.0),
        (1, True, 5.0, 0.0),
        (1, False, 0.0, 0.0),
    ],
)
def test_full_batch_or_closed_input_starts_a_batch(
    jobs: int, finished: bool, patience: float, rest: float
) -> None:
    stream = opened()
    for index in range(jobs):
        stream.submit(str(index), "x")
    if finished:
        stream.finish_input()
    assert stream.rest(patience) == rest


def test_a_batch_that_is_not_full_waits_for_more_input() -> None:
    stream = opened()
    stream.submit("a", "x")
    assert 0 < stream.rest(1000.0) <= 1000.0


def test_a_failed_stream_gives_what_is_ready_then_the_error() -> None:
    stream = opened()
    stream.submit("a", "x")
    stream.submit("b", "y")
    run_one(stream, 0)
    stream.fail(OSError("gone"))
    results = stream.results()
    assert next(results) == ("a", "X")
    with pytest.raises(OSError, match="gone"):
        next(results)
    assert not stream.waiting
    assert not stream.wait_for_room()


def test_first_failure_is_raised() -> None:
    stream = opened()
    stream.fail(OSError("first"))
    stream.fail(OSError("second"))
    with pytest.raises(OSError, match="first"):
        next(stream.results())


def test_after_an_abort_nothing_is_delivered_or_admitted() -> None:
    stream = opened()
    stream.submit("a", "x")
    start(stream, 0)
    stream.submit("b", "y")
    stream.abort()
    finish(stream, 0, "X")
    stream.submit("c", "z")
    assert stream.admissible() == 0
    assert list(stream.results()) == []
    assert not stream.wait_for_room()


def test_close_waits_until_the_runtime_has_released_jobs(aside: ThreadPoolExecutor) -> None:
    stream = opened()
    stream.submit("a", "x")
    start(stream, 7)
    closing = aside.submit(stream.close)
    assert list(stream.results()) == [], "the reader is let go at once"
    assert not closing.done()
    with stream._changed:
        stream.release(7)
    closing.result(WAIT_S)


def test_a_rejected_request_takes_no_slot() -> None:
    stream = opened(running=1)
    failure = RequestFailure(InvalidRequestError("bad"))
    stream.reject("a", failure)
    stream.finish_input()
    assert list(stream.results()) == [("a", failure)]


def test_a_producer_is_held_until_there_is_room(aside: ThreadPoolExecutor) -> None:
    stream = opened(running=1, ahead=0)
    assert stream.wait_for_room()
    stream.submit("a", "x")
    waiting = aside.submit(stream.wait_for_room)
    assert not waiting.done()
    run_one(stream, 0)
    assert next(stream.results()) == ("a", "X")
    assert waiting.result(WAIT_S)


def test_an_error_while_preparing_reaches_the_reader() -> None:
    def prepare(_: Any) -> str:
        raise ZeroDivisionError("in the kit")

    with pytest.raises(ZeroDivisionError, match="in the kit"):
        list(PulledStream([("a", 1)], opened, prepare, "toy"))
