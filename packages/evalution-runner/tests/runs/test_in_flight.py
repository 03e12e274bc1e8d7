from __future__ import annotations

import math
from typing import Any

import pytest

from evalution.runs.in_flight import InFlightSamples
from evalution.suites import RequestKind, Sample
from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
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
def samples() -> InFlightSamples:
    found = InFlightSamples(RequestKind.LOGLIKELIHOOD)
    assert found.open(sample(5)) == [(5, 0), (5, 1)]
    return found


def test_sample_is_done_with_its_last_answer(samples: InFlightSamples) -> None:
    second, first = output(-2.0), output(-1.0)
    opened, position = samples.accept((5, 1), second)
    assert (opened.waiting, position) == ({0}, 1)
    done, position = samples.accept((5, 0), first)
    assert (done.waiting, position) == (set(), 0)
    assert (list(done.ordered_answers), done.error) == ([first, second], None)
    assert samples.give_up_all() == []


def test_what_was_never_answered_is_reported(samples: InFlightSamples) -> None:
    samples.accept((5, 0), output())
    (lost,) = samples.give_up_all()
    assert str(lost.error) == "the session ended without an answer to request 1"
    assert samples.give_up_all() == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_first_failed_request_is_reported_in_whatever_order_they_come(
    samples: InFlightSamples, order: tuple[int, int]
) -> None:
    answered = [
        samples.accept((5, position), RequestFailure(ContextLengthError(f"{position} is too long")))
        for position in order
    ]
    done, _ = answered[-1]
    assert str(done.error) == "0 is too long"


def test_answer_that_comes_twice_fails_its_open_sample(samples: InFlightSamples) -> None:
    samples.accept((5, 0), output(-9.0))
    samples.accept((5, 0), output(-1.0))
    done, _ = samples.accept((5, 1), output())
    assert str(done.error) == "the session answered request 0 of row 5 twice"


def test_answer_after_the_last_names_the_row(samples: InFlightSamples) -> None:
    samples.accept((5, 0), output())
    samples.accept((5, 1), output())
    with pytest.raises(EngineRuntimeError, match="request 1 of row 5 after that row"):
        samples.accept((5, 1), output())


@pytest.mark.parametrize("key", [(4, 0), (6, 0), (5, 2), (-1, 0), "x", 5, (5,), (5, 0, 0), None])
def test_answer_that_was_never_asked_is_no_rows(key: Any) -> None:
    samples = InFlightSamples(RequestKind.LOGLIKELIHOOD)
    samples.open(sample(5))
    message = "request 2 of row 5" if key == (5, 2) else "which was never asked"
    with pytest.raises(EngineRuntimeError, match=message):
        samples.accept(key, output())


def test_sample_asks_for_something(samples: InFlightSamples) -> None:
    with pytest.raises(ConfigurationError, match="the sample of row 7 has no requests"):
        samples.open(sample(7, requests=0))


def test_large_index_costs_no_memory(samples: InFlightSamples) -> None:
    assert samples.open(sample(10**15, requests=1)) == [(10**15, 0)]


@pytest.mark.parametrize(
    ("index", "shown"), [(5, "got 5 again"), (-1, "got -1"), ("a", "got 'a'"), (1.0, "got 1.0")]
)
def test_index_is_a_samples_own(samples: InFlightSamples, index: Any, shown: str) -> None:
    with pytest.raises(ConfigurationError, match=f"need an index of their own from 0, {shown}$"):
        samples.open(sample(index))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (output(math.nan), "the engine gave NaN as a log-probability"),
        (GenerationOutput("p", "t"), "not a LoglikelihoodOutput"),
        (None, "the session answered with None, not a LoglikelihoodOutput"),
    ],
)
def test_answer_that_is_none_fails_its_sample(answer: Any, message: str) -> None:
    samples = InFlightSamples(RequestKind.LOGLIKELIHOOD)
    samples.open(sample(0, requests=1))
    done, _ = samples.accept((0, 0), answer)
    assert message in str(done.error)
