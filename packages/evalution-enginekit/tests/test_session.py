"""What a token session adds around generation and scoring."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evalution_core import (
    Capability,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    SessionInfo,
    UnsupportedRequestError,
)
from evalution_enginekit import TokenSpan

WAIT_S = 20
Echoes = Callable[..., Any]


def test_session_has_info_tokenizer_and_a_count_of_its_requests(echo: Echoes) -> None:
    session = echo(batch_size=3, max_model_len=99)
    assert session.info == SessionInfo(session.capabilities, 99, 3)
    assert Capability.GENERATE in session.capabilities
    assert session.tokenizer.encode("a") == [97]
    assert session.requests_in_flight == 0
    assert session.identity() is None


def test_description_has_facts_of_the_kit_and_of_the_engine(echo: Echoes) -> None:
    session = echo(without=[Capability.CONTINUOUS_BATCHING])
    session._describe = lambda: {"device": "cpu", "kernel": "toy"}
    assert session.describe_execution() == {
        "backend": "Echo",
        "device": "cpu",
        "dtype": "float32",
        "batching": "fixed batches",
        "attention": None,
        "max_model_len": 128,
        "tokenizer": "bytes",
        "notices": [],
        "eos_ids": [257],
        "fallback": None,
        "self_check": "not run",
        "kernel": "toy",
    }
    session.loglikelihood([LoglikelihoodRequest("a", "b")])
    assert session.describe_execution()["self_check"] == "passed"


def test_the_self_check_runs_once_and_before_the_first_score(echo: Echoes) -> None:
    session = echo()
    session.generate([GenerationRequest("a", max_new_tokens=4)])
    assert session.chunks == []
    session.loglikelihood([LoglikelihoodRequest("a", "b")])
    checked = len(session.chunks)
    session.loglikelihood([LoglikelihoodRequest("a", "b")])
    session.check()
    assert len(session.chunks) == checked + 1


def test_caches_are_released_on_the_runtime_thread(echo: Echoes) -> None:
    session = echo()
    threads: list[threading.Thread] = []
    session._release_caches = lambda: threads.append(threading.current_thread())
    session.gc()
    assert [thread.name for thread in threads] == ["the Echo session runtime"]


def test_scoring_and_generating_happen_on_the_same_thread(
    echo: Echoes, aside: ThreadPoolExecutor
) -> None:
    session = echo()
    threads: set[str] = set()
    good = session.score

    def score(span: TokenSpan) -> Any:
        threads.add(threading.current_thread().name)
        return good(span)

    session.score = score
    session.before_step = lambda: threads.add(threading.current_thread().name)
    calls: Sequence[Any] = [
        aside.submit(session.loglikelihood, [LoglikelihoodRequest("a", "b")]),
        aside.submit(session.generate, [GenerationRequest("abc", max_new_tokens=8)]),
    ]
    for call in calls:
        call.result(WAIT_S)
    assert threads == {"the Echo session runtime"}


def test_release_runs_once_however_often_it_is_closed(echo: Echoes) -> None:
    session = echo()
    with session:
        session.gc()
    session.close()
    assert session.released == 1


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("generate", GenerationRequest("a")),
        ("loglikelihood", LoglikelihoodRequest("a", "b")),
        ("loglikelihood_rolling", RollingLoglikelihoodRequest("a")),
    ],
)
def test_invalid_batch_size_is_refused(echo: Echoes, call: str, request_: Any) -> None:
    with pytest.raises(InvalidRequestError, match="batch_size must be an int >= 1, got 0"):
        getattr(echo(), call)([request_], batch_size=0)


def test_what_the_engine_lacks_is_refused_before_the_runtime_starts(echo: Echoes) -> None:
    session = echo(without=[Capability.ROLLING, Capability.LOGLIKELIHOOD])
    with pytest.raises(UnsupportedRequestError, match="engine Echo can't do loglikelihood_rolling"):
        session.loglikelihood_rolling([RollingLoglikelihoodRequest("a")])
    with pytest.raises(UnsupportedRequestError, match="engine Echo can't do loglikelihood:"):
        session.loglikelihood([LoglikelihoodRequest("a", "b")])
    assert session.chunks == []


def test_calls_of_several_threads_get_their_own_answers(
    echo: Echoes, aside: ThreadPoolExecutor
) -> None:
    session = echo(batch_size=3, scoring_window=2)
    start = threading.Barrier(4, timeout=WAIT_S)

    def generate(letter: str) -> bool:
        start.wait()
        texts = [letter * count for count in range(1, 9)]
        requests = [GenerationRequest(text, max_new_tokens=12) for text in texts]
        told = dict(session.generate_continuous(zip(texts, requests, strict=True)))
        listed = session.generate(requests)
        return [told[text].text for text in texts] == texts == [one.text for one in listed]

    def score(letter: str) -> bool:
        start.wait()
        texts = [letter * count for count in range(1, 9)]
        requests = [LoglikelihoodRequest("q", text) for text in texts]
        told = dict(session.loglikelihood_continuous(zip(texts, requests, strict=True)))
        listed = session.loglikelihood(requests)
        return [told[text] for text in texts] == listed and [
            bytes(output.token_ids or ()).decode() for output in listed
        ] == texts

    calls = [aside.submit(call, letter) for call in (generate, score) for letter in "ab"]
    assert all(call.result(2 * WAIT_S) for call in calls)
    assert session.requests_in_flight == 0


def test_ended_calls_leave_nothing_behind(echo: Echoes) -> None:
    session = echo()
    for _ in range(5):
        session.generate([GenerationRequest("a", max_new_tokens=4)])
        session.loglikelihood([LoglikelihoodRequest("a", "b")])
    session.gc()
    session.gc()
    assert session._generation._streams == []
    assert session._scoring._streams == []


def test_empty_calls_give_empty_lists(echo: Echoes) -> None:
    session = echo()
    assert session.generate([]) == []
    assert session.loglikelihood([]) == []
    assert session.loglikelihood_rolling([]) == []
