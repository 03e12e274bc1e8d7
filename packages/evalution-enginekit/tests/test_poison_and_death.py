"""Poisoned requests side by side cost themselves alone; a dead runtime ends its streams soon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_enginekit import TokenScore, TokenSpan

WAIT_S = 20
POISON = ord("!")
Echoes = Callable[..., Any]
Keyed = list[tuple[tuple[int, int], LoglikelihoodRequest]]


def questions(poisoned: Sequence[int], *, choices: int, rows: int = 8) -> Keyed:
    """The pairs of multiple-choice questions, keyed by row and choice."""
    return [
        (
            (row, choice),
            LoglikelihoodRequest(f"{row}{'!' * (row in poisoned)}?", "abcdefghij"[choice]),
        )
        for row in range(rows)
        for choice in range(choices)
    ]


def poisoned_score(good: Callable[[TokenSpan], Any]) -> Callable[[TokenSpan], Any]:
    def score(span: TokenSpan) -> Any:
        if POISON in span.token_ids:
            raise FloatingPointError("not a number")
        return good(span)

    return score


def failed_rows(results: dict[tuple[int, int], Any]) -> set[int]:
    """The rows that failed; each must have failed with all its choices."""
    failed = {key for key, result in results.items() if isinstance(result, RequestFailure)}
    rows = {row for row, _ in failed}
    assert failed == {key for key in results if key[0] in rows}
    return rows


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize(
    ("poisoned", "choices"), [([5], 3), ([5], 4), ([5], 10), ([0], 4), ([2, 3, 4], 10)]
)
def test_poisoned_questions_fail_alone(
    echo: Echoes, poisoned: list[int], choices: int, batch_size: int | None
) -> None:
    session = echo()
    session.check()
    session.score = poisoned_score(session.score)
    pairs = questions(poisoned, choices=choices)
    results = dict(session.loglikelihood_continuous(pairs, batch_size=batch_size))
    assert results.keys() == dict(pairs).keys()
    assert failed_rows(results) == set(poisoned)
    failure = results[poisoned[0], choices - 1]
    assert failure.error.in_flight == ((poisoned[0], choices - 1),)
    assert isinstance(failure.error.__cause__, FloatingPointError)


def test_canary_is_the_last_span_that_scored(echo: Echoes) -> None:
    session = echo(scoring_window=1)
    session.check()
    session.score = poisoned_score(session.score)
    pairs = questions([1], choices=4, rows=2)
    results = dict(session.loglikelihood_continuous(pairs))
    assert failed_rows(results) == {1}
    scored = [bytes(span.token_ids[1:]) for (span,) in session.chunks[-9:]]
    good, bad = [f"0?{choice}" for choice in "abcd"], [f"1!?{choice}" for choice in "abcd"]
    assert scored == [text.encode() for text in [*good, *bad[:3], good[-1], bad[3]]]


def test_dead_runtime_is_called_a_bounded_number_of_times(echo: Echoes) -> None:
    session = echo()
    session.check()
    good, alive = session.score, 8

    def dying(span: TokenSpan) -> Any:
        nonlocal alive
        alive -= 1
        if alive < 0:
            raise OSError("worker died")
        return good(span)

    session.score = dying
    read: list[Any] = []
    before = len(session.chunks)
    stream = session.loglikelihood_continuous(questions([], choices=4, rows=500), batch_size=8)
    with pytest.raises(EngineRuntimeError, match="worker died") as raised:
        read.extend(stream)
    failed = [key for key, result in read if isinstance(result, RequestFailure)]
    assert (len(read), len(failed)) == (10, 2)
    assert len(session.chunks) - before <= 1 + 12
    assert raised.value.in_flight
    assert not set(raised.value.in_flight) & set(dict(read))


def test_runtime_that_never_scored_has_no_canary(echo: Echoes) -> None:
    session = echo(max_model_len=7)
    assert session.check().outcome == "not checkable"
    session.score = poisoned_score(session.score)
    with pytest.raises(EngineRuntimeError, match="not a number"):
        list(session.loglikelihood_continuous(questions([0], choices=3, rows=1)))


def test_error_in_place_of_the_canary_score_means_death(echo: Echoes) -> None:
    session = echo()
    session.check()
    canary = session._scoring._liveness.canary

    def failing(span: TokenSpan) -> Any:
        if span == canary:
            return EngineRuntimeError("no score")
        raise OSError("worker died")

    session.score = failing
    with pytest.raises(EngineRuntimeError, match="worker died"):
        list(session.loglikelihood_continuous(questions([], choices=4)))


def test_stream_closed_during_a_canary_is_released(
    echo: Echoes, gate: threading.Event, aside: ThreadPoolExecutor
) -> None:
    session = echo()
    session.check()
    canary, on_trial = session._scoring._liveness.canary, threading.Event()
    good = session.score

    def failing(span: TokenSpan) -> Any:
        if span != canary:
            raise OSError("worker died")
        on_trial.set()
        assert gate.wait(WAIT_S)
        return good(span)

    session.score = failing
    stream = session.loglikelihood_continuous(questions([], choices=4))
    next(stream)
    assert on_trial.wait(WAIT_S)
    (chunk,) = [chunk for chunk in session._scoring._chunks if chunk.fault is not None]
    closing = aside.submit(stream.close)
    with chunk.stream._changed:
        assert chunk.stream._changed.wait_for(lambda: chunk.stream.ended, WAIT_S)
    gate.set()
    closing.result(WAIT_S)
    assert not session._scoring._chunks
    session.score = good
    assert session.loglikelihood([LoglikelihoodRequest("q", "a")])[0].token_count == 1


def test_poisoned_prompts_in_a_row_fail_alone(echo: Echoes) -> None:
    session = echo(batch_size=2)

    def poison(prompt: Any) -> EngineRuntimeError | None:
        return EngineRuntimeError("bad") if POISON in prompt.token_ids else None

    session.poison = poison
    texts = ["a", *(f"{n}!" for n in range(10)), "b"]
    requests = [(text, GenerationRequest(text, max_new_tokens=2)) for text in texts]
    results = dict(session.generate_continuous(requests))
    good = [key for key, result in results.items() if isinstance(result, GenerationOutput)]
    assert (len(results), sorted(good)) == (12, ["a", "b"])


@pytest.mark.parametrize("form", ["Stepping", "Async", "Batches"])
def test_refused_requests_in_a_row_fail_alone(toys: Any, form: str) -> None:
    class Choosy(getattr(toys, form)):
        def score(self, request_id: str, group: Any) -> None:
            if POISON in group.fed:
                raise InvalidRequestError("not so loud")
            super().score(request_id, group)

    with toys.Served(Choosy()) as session:
        pairs = questions([2, 3, 4], choices=10)
        assert failed_rows(dict(session.loglikelihood_continuous(pairs))) == {2, 3, 4}
        texts = ["a", *(f"{n}!" for n in range(10)), "b"]
        requests = [(text, GenerationRequest(text, max_new_tokens=2)) for text in texts]
        results = dict(session.generate_continuous(requests))
        good = [key for key, result in results.items() if isinstance(result, GenerationOutput)]
        assert sorted(good) == ["a", "b"]


@pytest.mark.parametrize("form", ["Stepping", "Batches"])
def test_span_that_fails_a_whole_step_is_isolated(toys: Any, form: str) -> None:
    class Failing(getattr(toys, form)):
        """Its step fails while a poisoned group is in it, and says nothing of which."""

        def __init__(self) -> None:
            super().__init__()
            self.poisoned: set[str] = set()

        def score(self, request_id: str, group: Any) -> None:
            self.poisoned |= {request_id} if POISON in group.fed else set()
            super().score(request_id, group)

        def advance(self) -> list[Any]:
            if self.poisoned:
                raise FloatingPointError("not a number")
            return list(super().advance())

        def abort(self, request_ids: Sequence[str]) -> None:
            self.poisoned -= set(request_ids)
            super().abort(request_ids)

    with toys.Served(Failing()) as session:
        pairs = questions([2, 3], choices=10)
        results = dict(session.loglikelihood_continuous(pairs))
        assert failed_rows(results) == {2, 3}
        assert not session._loop.in_flight


@pytest.mark.parametrize("form", ["Stepping", "Async", "Batches"])
def test_a_dead_serving_runtime_ends_a_stream_of_scores(toys: Any, form: str) -> None:
    class Dying(getattr(toys, form)):
        calls = 0

        def advance(self) -> list[Any]:
            if not self.dead:
                return list(super().advance())
            self.calls += 1
            raise OSError("the core is gone")

    runtime = Dying()
    with toys.Served(runtime) as session:
        session.check()
        runtime.dead = True
        stream = session.loglikelihood_continuous(questions([], choices=4, rows=500))
        with pytest.raises(EngineRuntimeError, match="the core is gone") as raised:
            list(stream)
        assert raised.value.in_flight
        assert runtime.calls <= 16


class Noted:
    """Scores span by span, and notes when the engine's generators begin and end."""

    def __init__(self, answer: Callable[[TokenSpan], Any]):
        self.answer = answer
        self.log: list[str] = []

    def __call__(self, spans: Sequence[TokenSpan]) -> Iterator[list[Any]]:
        self.log.append(f"begin {len(spans)}")
        try:
            for span in spans:
                yield [self.answer(span)]
        finally:
            self.log.append(f"end {len(spans)}")


@pytest.fixture
def noted(echo: Echoes, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def build(answer: Callable[[TokenSpan], Any]) -> Any:
        session = echo()
        session.check()
        session.noted = Noted(answer)
        monkeypatch.setattr(session._scoring, "_score_tokens", session.noted)
        return session

    return build


def test_a_chunk_ends_at_the_engine_before_its_halves_begin(noted: Callable[..., Any]) -> None:
    held: list[Any] = []  # as the traceback of an error holds the generator
    session = noted(lambda span: "no score" if POISON in span.token_ids else TokenScore([-1.0]))
    score = session.noted

    def holding(spans: Sequence[TokenSpan]) -> Iterator[list[Any]]:
        held.append(score(spans))
        return held[-1]

    session._scoring._score_tokens = holding
    results = dict(session.loglikelihood_continuous(questions([0], choices=1, rows=3)))
    assert failed_rows(results) == {0}
    assert isinstance(results[1, 0], LoglikelihoodOutput)
    begun = ["begin 3", "end 3", "begin 2", "end 2", "begin 1", "end 1"]
    assert session.noted.log == [*begun, "begin 1", "end 1", "begin 1", "end 1"]


def test_error_while_an_engine_releases_is_logged(
    noted: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    session = noted(lambda _: TokenScore([-1.0]))

    def stubborn(spans: Sequence[TokenSpan]) -> Iterator[list[Any]]:
        try:
            yield [TokenScore([-1.0]) for _ in spans]
        finally:
            raise OSError("it holds on")

    session._scoring._score_tokens = stubborn
    results = dict(session.loglikelihood_continuous(questions([], choices=2, rows=1)))
    assert failed_rows(results) == set()
    assert "ending scoring failed: OSError: it holds on" in caplog.text


def test_generation_ends_at_the_engine_before_it_restarts(echo: Echoes) -> None:
    session = echo()
    log: list[str] = []
    held: list[Any] = []
    generate = session._generation._generate

    def bad(feed: Any) -> Iterator[Any]:
        log.append("begin")
        try:
            feed.take(1)
            yield ["no event"]
        finally:
            log.append("end")

    def holding(feed: Any) -> Iterator[Any]:
        held.append(bad(feed))
        return held[-1]

    session._generation._generate = holding
    with pytest.raises(EngineRuntimeError):
        session.generate([GenerationRequest("a", max_new_tokens=1)])
    assert log == ["begin", "end"]
    session._generation._generate = generate
    assert session.generate([GenerationRequest("a", max_new_tokens=1)])[0].text == "a"
