from __future__ import annotations

import math
from typing import Any

import pytest

from evalution.runs.in_flight import Ledger, UnexpectedAnswerError
from evalution.suites import RequestKind, Sample
from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    GenerationOutput,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
)


def sample(index: int, requests: int = 2) -> Sample:
    return Sample(index, "p", "t", [LoglikelihoodRequest("a", "b")] * requests)


def output(logprob: float = -1.0) -> LoglikelihoodOutput:
    return LoglikelihoodOutput(logprob, True, 1)


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger(RequestKind.LOGLIKELIHOOD)
    assert found.open(sample(5)) == [(5, 0), (5, 1)]
    return found


def test_a_sample_is_done_with_its_last_answer(ledger: Ledger) -> None:
    second, first = output(-2.0), output(-1.0)
    opened, position = ledger.accept((5, 1), second)
    assert (opened.waiting, position) == ({0}, 1)
    done, position = ledger.accept((5, 0), first)
    assert (done.waiting, position) == (set(), 0)
    assert (list(done.in_order), done.error) == ([first, second], None)
    assert ledger.unanswered() == []


def test_what_was_never_answered_is_told(ledger: Ledger) -> None:
    ledger.accept((5, 0), output())
    (lost,) = ledger.unanswered()
    assert str(lost.error) == "the session ended without an answer to request 1"
    assert ledger.unanswered() == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_failed_request_is_told_in_whatever_order_they_come(
    ledger: Ledger, order: tuple[int, int]
) -> None:
    answered = [
        ledger.accept((5, position), RequestFailure(ContextLengthError(f"{position} is too long")))
        for position in order
    ]
    done, _ = answered[-1]
    assert str(done.error) == "0 is too long"


def test_an_answer_that_comes_twice_fails_its_open_sample(ledger: Ledger) -> None:
    ledger.accept((5, 0), output(-9.0))
    ledger.accept((5, 0), output(-1.0))
    done, _ = ledger.accept((5, 1), output())
    assert str(done.error) == "the session answered request 0 of row 5 twice"


def test_an_answer_after_the_last_names_the_row(ledger: Ledger) -> None:
    ledger.accept((5, 0), output())
    ledger.accept((5, 1), output())
    with pytest.raises(UnexpectedAnswerError, match="request 1 of row 5 after that row") as caught:
        ledger.accept((5, 1), output())
    assert caught.value.index == 5


@pytest.mark.parametrize("key", [(4, 0), (6, 0), (5, 2), (-1, 0), "x", 5, (5,), (5, 0, 0), None])
def test_an_answer_nobody_asked_for_is_no_rows(key: Any) -> None:
    ledger = Ledger(RequestKind.LOGLIKELIHOOD)
    ledger.open(sample(5))
    if key == (5, 2):
        with pytest.raises(UnexpectedAnswerError, match="request 2 of row 5"):
            ledger.accept(key, output())
        return
    with pytest.raises(UnexpectedAnswerError, match="which nobody had asked") as caught:
        ledger.accept(key, output())
    assert caught.value.index is None


def test_a_sample_asks_for_something(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="the sample of row 7 has no requests"):
        ledger.open(sample(7, requests=0))


def test_a_large_index_costs_no_memory(ledger: Ledger) -> None:
    assert ledger.open(sample(10**15, requests=1)) == [(10**15, 0)]


@pytest.mark.parametrize(
    ("index", "told"), [(5, "got 5 again"), (-1, "got -1"), ("a", "got 'a'"), (1.0, "got 1.0")]
)
def test_an_index_is_a_samples_own(ledger: Ledger, index: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"need an index of their own from 0, {told}$"):
        ledger.open(sample(index))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (output(math.nan), "the engine gave NaN as a log-probability"),
        (GenerationOutput("p", "t"), "not a LoglikelihoodOutput"),
        (None, "the session answered with None, not a LoglikelihoodOutput"),
    ],
)
def test_an_answer_that_is_none_fails_its_sample(answer: Any, message: str) -> None:
    ledger = Ledger(RequestKind.LOGLIKELIHOOD)
    ledger.open(sample(0, requests=1))
    done, _ = ledger.accept((0, 0), answer)
    assert message in str(done.error)
