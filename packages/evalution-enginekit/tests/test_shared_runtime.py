"""Several callers on one runtime: fairness, foreign failures, and the end of a session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    TextDelta,
)
from evalution_enginekit import PromptQueue, TokenEvent

Echoes = Callable[..., Any]
WAIT_S = 20


def ask(text: str, **fields: Any) -> GenerationRequest:
    return GenerationRequest(text, **{"max_new_tokens": 8, **fields})


def test_an_endless_stream_leaves_room_for_other_calls(echo: Echoes) -> None:
    session = echo(batch_size=2)
    endless = session.generate_continuous(
        (number, ask("abcdefgh"[: 5 + number % 3])) for number in count()
    )
    next(endless)
    answers: list[Any] = []
    other = threading.Thread(target=lambda: answers.extend(session.generate([ask("xyz")])))
    other.start()
    for _ in endless:
        if not other.is_alive():
            break
    other.join(WAIT_S)
    endless.close()
    assert [answer.text for answer in answers] == ["xyz"]


def test_a_lone_surrogate_is_refused_and_its_neighbours_are_served(echo: Echoes) -> None:
    requests = [(0, ask("ab")), (1, ask("\ud800")), (2, ask("cd"))]
    results = dict(echo().generate_continuous(requests))
    assert isinstance(results[1], RequestFailure)
    assert isinstance(results[1].error, InvalidRequestError)
    assert "prompt is not valid Unicode text" in str(results[1].error)
    assert [results[key].text for key in (0, 2)] == ["ab", "cd"]


@pytest.mark.parametrize(
    "request_",
    [
        ask("a", stop=["\ud800"]),
        GenerationRequest(messages=[{"role": "user", "content": "\ud800"}], max_new_tokens=1),
    ],
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(
    echo: Echoes, request_: GenerationRequest
) -> None:
    with pytest.raises(InvalidRequestError, match="is not valid Unicode text"):
        echo().generate([request_])


@pytest.mark.parametrize("error", [MemoryError("full"), asyncio.CancelledError()])
def test_runtime_that_fails_at_once_fails_that_call_alone(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    session = echo()
    healthy = session._generation._generate

    def fails(feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        raise error

    monkeypatch.setattr(session._generation, "_generate", fails)
    with pytest.raises(EngineRuntimeError, match=f"generation failed: {type(error).__name__}"):
        session.generate([ask("ab")])
    monkeypatch.setattr(session._generation, "_generate", healthy)
    assert session.generate([ask("ab")])[0].text == "ab"


def test_malformed_scores_fail_that_call_alone(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = echo()
    session.check()
    monkeypatch.setattr(
        session._scoring, "_score_tokens", lambda spans: iter([[None] * len(spans)])
    )
    with pytest.raises(EngineRuntimeError, match="scoring failed: TypeError"):
        session.loglikelihood([LoglikelihoodRequest("a", "b")])
    assert session.generate([ask("ab")])[0].text == "ab"


def test_an_input_that_fails_loses_nothing_it_had_given(echo: Echoes) -> None:
    def rows() -> Iterator[tuple[int, GenerationRequest]]:
        yield from ((number, ask("ab")) for number in range(4))
        raise OSError("row 4 can't be read")

    results: list[tuple[int, Any]] = []
    with pytest.raises(OSError, match="row 4 can't be read"):
        results.extend(echo().generate_continuous(rows()))
    assert sorted(key for key, _ in results) == [0, 1, 2, 3]
    assert all(isinstance(result, GenerationOutput) for _, result in results)


def test_release_runs_on_the_runtime_thread_and_every_close_waits_for_it(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = echo()
    session.generate([ask("ab")])
    runtime = session._thread._thread
    entered, leave = threading.Event(), threading.Event()
    where: list[threading.Thread] = []

    def release() -> None:
        where.append(threading.current_thread())
        entered.set()
        assert leave.wait(WAIT_S)

    monkeypatch.setattr(session, "_release", release)
    closers = [threading.Thread(target=session.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    assert entered.wait(WAIT_S)
    assert all(closer.is_alive() for closer in closers)
    leave.set()
    for closer in closers:
        closer.join(WAIT_S)
    assert not any(closer.is_alive() for closer in closers)
    assert where == [runtime]


def test_unread_deltas_are_joined_and_block_no_other_call(echo: Echoes) -> None:
    session = echo(batch_size=2)
    stream = session._open_generation(None)
    done = threading.Event()
    make_job = session._completion_maker(deltas=True)
    stream.submit("a", make_job(ask("abcdefgh")))
    stream.submit("b", make_job(ask("xyz")))
    stream.finish_input()
    threading.Thread(target=lambda: (session.generate([ask("k")]), done.set())).start()
    assert done.wait(WAIT_S)
    with stream._changed:
        assert stream._changed.wait_for(lambda: not (stream.waiting or stream.running), WAIT_S)
    events = list(stream.results())
    stream.close()
    assert len(events) == 2 * 2, "of each text one piece and the output"
    texts = {"a": "", "b": ""}
    for key, event in events:
        texts[key] += event.text if isinstance(event, TextDelta) else ""
    assert texts == {"a": "abcdefgh", "b": "xyz"}


def test_waiting_engine_is_notified_of_new_prompts(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = echo()
    told = threading.Event()

    def waiting(feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        changed = threading.Event()
        feed.on_change(changed.set)
        running: list[Any] = []
        while len(running) < 2:
            changed.clear()
            running += feed.take(2 - len(running))
            if len(running) < 2:
                assert changed.wait(WAIT_S), "a second prompt came, and nobody said so"
        told.set()
        yield [TokenEvent(prompt.key, [257]) for prompt in running]

    monkeypatch.setattr(session._generation, "_generate", waiting)
    first = threading.Thread(target=lambda: session.generate([ask("a")]))
    first.start()
    session.generate([ask("b")])
    first.join(WAIT_S)
    assert told.is_set()
