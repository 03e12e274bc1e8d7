"""Continuous calls: bounded at both ends, alive while the caller is busy, gone when closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evalution_core import (
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    SessionClosedError,
)

WAIT_S = 20
Echoes = Callable[..., Any]


def ask(prompt: str) -> GenerationRequest:
    return GenerationRequest(prompt, max_new_tokens=40)


def endless(pulled: list[int]) -> Iterator[tuple[int, GenerationRequest]]:
    while True:
        pulled.append(len(pulled))
        yield len(pulled) - 1, ask("abc")


def settle(session: Any) -> None:
    """Let the runtime thread take so many turns that all it may do is done."""
    for _ in range(200):
        session.gc()


@pytest.mark.parametrize(("without", "ahead"), [((), 2), ((Capability.CONTINUOUS_BATCHING,), 2)])
def test_input_and_unread_results_are_bounded(echo: Echoes, without: Any, ahead: int) -> None:
    session = echo(batch_size=2, without=without)
    pulled: list[int] = []
    results = session.generate_continuous(endless(pulled))
    for read in range(1, 6):
        next(results)
        settle(session)
        assert len(session.admitted) <= read + 2 + 2, "unread results count against a batch cap"
        assert len(pulled) <= read + 2 + 2 + ahead + 1
    results.close()
    assert session.requests_in_flight == 0


def test_nothing_is_pulled_before_the_first_result_is_wanted(echo: Echoes) -> None:
    pulled: list[int] = []
    results = echo().generate_continuous(endless(pulled))
    assert pulled == []
    results.close()


def test_a_producer_may_wait_for_an_earlier_result(echo: Echoes) -> None:
    seen = threading.Event()

    def requests() -> Iterator[tuple[str, GenerationRequest]]:
        yield "first", ask("a")
        assert seen.wait(WAIT_S), "the first result never came"
        yield "second", ask("b")

    order: list[str] = []
    for key, _ in echo().generate_continuous(requests()):
        order.append(key)
        seen.set()
    assert order == ["first", "second"]


def test_work_goes_on_while_the_caller_is_busy(echo: Echoes) -> None:
    session = echo(batch_size=1)
    results = session.generate_continuous([(0, ask("a")), (1, ask("b"))])
    next(results)
    settle(session)
    assert session.requests_in_flight == 0, "the second was finished unread"
    assert [key for key, _ in results] == [1]


def test_closing_early_aborts_what_is_in_flight(echo: Echoes) -> None:
    session = echo(batch_size=2)
    results = session.generate_continuous(endless([]))
    next(results)
    results.close()
    assert session.requests_in_flight == 0
    assert session.generate([ask("still here")])[0].text == "still here"
    last = [prompt.token_ids[1:] for prompt in session.admitted][-1]
    assert bytes(last).decode() == "still here", "nothing of the closed stream was started again"


def test_an_aborted_prompt_is_dropped_by_the_engine(
    echo: Echoes, gate: threading.Event, aside: ThreadPoolExecutor
) -> None:
    session = echo(batch_size=2)
    stepping = threading.Event()

    def hold() -> None:
        if len(session.steps) == 6:
            stepping.set()
            gate.wait(WAIT_S)

    session.before_step = hold
    results = session.generate_continuous([("a", ask("a")), ("b", ask("b" * 30))])
    next(results)
    assert stepping.wait(WAIT_S)
    closing = aside.submit(results.close)
    assert session.requests_in_flight == 1, "not let go before the runtime has"
    gate.set()
    closing.result(WAIT_S)
    assert session.requests_in_flight == 0
    assert session.dropped == [session.admitted[1].key]


def test_an_open_unread_stream_blocks_no_other_call(
    echo: Echoes, aside: ThreadPoolExecutor
) -> None:
    session = echo(batch_size=2)
    results = session.generate_continuous(endless([]))
    next(results)
    generated = aside.submit(session.generate, [ask("xyz")])
    scored = aside.submit(session.loglikelihood, [LoglikelihoodRequest("a", "b")])
    assert generated.result(WAIT_S)[0].text == "xyz"
    assert scored.result(WAIT_S)[0].token_count == 1
    aside.submit(session.gc).result(WAIT_S)
    assert next(results)[1].text == "abc"
    results.close()


def test_an_exception_of_the_input_arrives_after_the_results(echo: Echoes) -> None:
    seen = threading.Event()
    error = KeyError("row 2 has no question")

    def requests() -> Iterator[tuple[str, GenerationRequest]]:
        yield "a", ask("a")
        assert seen.wait(WAIT_S)
        raise error

    results = echo().generate_continuous(requests())
    assert next(results)[0] == "a"
    seen.set()
    with pytest.raises(KeyError) as raised:
        next(results)
    assert raised.value is error


def test_input_that_is_not_iterable_is_refused(echo: Echoes) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        next(echo().generate_continuous(None))


def test_an_empty_input_ends_at_once(echo: Echoes) -> None:
    assert list(echo().generate_continuous([])) == []
    assert list(echo().loglikelihood_continuous(iter(()))) == []


def test_closing_the_session_ends_an_open_stream(echo: Echoes, aside: ThreadPoolExecutor) -> None:
    session = echo(max_model_len=10**9)
    stepping = threading.Event()
    session.before_step = stepping.set
    request = GenerationRequest("a", max_new_tokens=10**8, ignore_eos=True)
    reading = aside.submit(list, session.generate_continuous([(0, request)]))
    assert stepping.wait(WAIT_S)
    aside.submit(session.close).result(WAIT_S)
    with pytest.raises(SessionClosedError, match="the Echo session was closed meanwhile"):
        reading.result(WAIT_S)
    assert session.requests_in_flight == 0
    assert session.released == 1


def test_closing_the_session_ends_a_stream_whose_producer_gave_nothing_yet(
    echo: Echoes, gate: threading.Event, aside: ThreadPoolExecutor
) -> None:
    session = echo()
    asked = threading.Event()

    def requests() -> Iterator[tuple[int, GenerationRequest]]:
        asked.set()
        gate.wait(WAIT_S)
        yield 0, ask("a")

    reading = aside.submit(list, session.generate_continuous(requests()))
    assert asked.wait(WAIT_S)
    aside.submit(session.close).result(WAIT_S)
    with pytest.raises(SessionClosedError, match="closed"):
        reading.result(WAIT_S)


def test_a_stream_of_a_closed_session_is_refused(echo: Echoes) -> None:
    session = echo()
    early = session.generate_continuous([(0, ask("a"))])
    session.close()
    with pytest.raises(SessionClosedError, match="is closed; build a new session"):
        next(early)
    with pytest.raises(SessionClosedError, match="closed"):
        session.generate_continuous([])
