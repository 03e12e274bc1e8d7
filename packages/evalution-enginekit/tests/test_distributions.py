"""Rows of a toy runtime, in blocks of its own choice, and what comes of those that fail."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    EngineRuntimeError,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    UnsupportedRequestError,
)
from evalution_core.requests import DistributionRequest
from evalution_enginekit import (
    ByteTokenizer,
    PromptQueue,
    TokenEvent,
    TokenSession,
    TokenSpan,
    plan_scoring,
)
from evalution_enginekit.distributions import (
    RowBlock,
    Rows,
    find_top,
    log_softmax_rows,
    split_spans,
)
from evalution_enginekit.planning import TokenScore, WrongScoresError
from evalution_enginekit.scoring import complete_top_logprobs

POISON = 7
VOCABULARY = 264


def make_row(token_id: int, position: int) -> Rows:
    seeded = np.random.default_rng(token_id * 1000 + position)
    return log_softmax_rows(seeded.normal(size=(1, VOCABULARY)))


@dataclass
class Behaviour:
    block: int = 3
    extra: int = 0
    asked: list[int] = field(default_factory=list[int])
    ended: int = 0


class Rowing(TokenSession):
    """Gives rows that depend on the token before them, in blocks across the ends of spans."""

    def __init__(self, behaviour: Behaviour, *, full: bool = True):
        given_up = set() if full else {Capability.DISTRIBUTIONS}
        super().__init__(
            engine="Rowing",
            capabilities=frozenset(Capability)
            - {Capability.GENERATE, Capability.ATTACH}
            - given_up,
            tokenizer=ByteTokenizer(),
            max_model_len=32,
        )
        self._behaviour = behaviour

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        raise NotImplementedError

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        for span in spans:
            targets = enumerate(span.token_ids[span.start :], span.start)
            yield [TokenScore([_score(span.token_ids, at, token) for at, token in targets], False)]

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        self._behaviour.asked.append(len(spans))
        try:
            waiting: list[Rows] = []
            for span in spans:
                for at in range(span.start, len(span.token_ids)):
                    if span.token_ids[at] == POISON:
                        raise ValueError("poison")
                    waiting.append(make_row(span.token_ids[at - 1], at))
                    if len(waiting) == self._behaviour.block:
                        yield np.concatenate(waiting)
                        waiting.clear()
            waiting += [make_row(0, 0)] * self._behaviour.extra
            if waiting:
                yield np.concatenate(waiting)
        finally:
            self._behaviour.ended += 1


def _score(token_ids: Sequence[int], at: int, token_id: int) -> float:
    return float(make_row(token_ids[at - 1], at)[0, token_id])


def read(
    session: TokenSession, requests: Sequence[tuple[Hashable, DistributionRequest]]
) -> dict[Any, Any]:
    """The rows of each key, or its failure; blocks must follow each other."""
    found: dict[Any, Any] = {}
    for key, answer in session.distributions(requests):
        if isinstance(answer, RequestFailure):
            found[key] = answer
            continue
        rows = np.array(answer.rows)
        assert answer.first == len(found.get(key, ()))
        found[key] = np.concatenate([found[key], rows]) if key in found else rows
    return found


@given(
    st.lists(
        st.tuples(st.lists(st.integers(10, 200), min_size=2, max_size=33), st.integers(1, 32)),
        max_size=12,
    ),
    st.integers(1, 9),
)
def test_rows_come_by_request_whatever_the_blocks(
    drawn: list[tuple[list[int], int]], block: int
) -> None:
    requests = [
        (key, DistributionRequest(ids, min(start, len(ids) - 1)))
        for key, (ids, start) in enumerate(drawn)
    ]
    with Rowing(Behaviour(block)) as session:
        found = read(session, requests)
    for key, request in requests:
        ids, start = request.input_ids, request.start
        expected = np.concatenate([make_row(ids[at - 1], at) for at in range(start, len(ids))])
        np.testing.assert_array_equal(found[key], expected)


def test_bad_request_fails_alone_in_its_place() -> None:
    requests = [
        ("good", DistributionRequest([10, 11, 12])),
        ("no position", DistributionRequest([10, 11], start=2)),
        ("too long", DistributionRequest(list(range(10, 44)))),
        ("unknown", DistributionRequest([10, 9999])),
        ("last", DistributionRequest([20, 21])),
    ]
    with Rowing(Behaviour()) as session:
        found = read(session, requests)
    assert list(found) == [key for key, _ in requests]
    assert len(found["good"]) == 2
    assert len(found["last"]) == 1
    assert "leaves no position" in str(found["no position"].error)
    assert "never cut" in str(found["too long"].error)
    assert "outside the vocabulary" in str(found["unknown"].error)


@pytest.mark.parametrize("block", [1, 3, 50])
def test_runtime_error_costs_its_request_alone(block: int) -> None:
    requests = [
        (key, DistributionRequest([10 + key, 30, POISON if key == 2 else 31])) for key in range(5)
    ]
    with Rowing(Behaviour(block)) as session:
        found = read(session, requests)
    failed = {key for key, answer in found.items() if isinstance(answer, RequestFailure)}
    assert failed == {2}
    assert isinstance(found[2].error, EngineRuntimeError)
    assert "poison" in str(found[2].error)
    assert all(len(found[key]) == 2 for key in (0, 1, 3, 4))


def test_rows_beyond_the_request_end_the_call() -> None:
    with (
        Rowing(Behaviour(extra=1)) as session,
        pytest.raises(EngineRuntimeError, match="more distributions came"),
    ):
        read(session, [("a", DistributionRequest([10, 11]))])


def test_error_of_the_input_comes_after_the_rows_of_all_that_it_gave() -> None:
    def give() -> Iterator[tuple[str, DistributionRequest]]:
        yield "a", DistributionRequest([10, 11])
        raise OSError("no more rows")

    with Rowing(Behaviour()) as session:
        rows = session.distributions(give())
        assert next(rows)[0] == "a"
        with pytest.raises(OSError, match="no more rows"):
            next(rows)


def test_closing_early_ends_the_engines_work() -> None:
    behaviour = Behaviour(block=1)
    with Rowing(behaviour) as session:
        rows = session.distributions([("a", DistributionRequest([10, 11, 12, 13]))])
        next(rows)
        assert isinstance(rows, Generator)
        rows.close()
        session.gc()  # it comes after all that the session's thread has to do
        assert behaviour.ended == 1


def test_closed_session_raises() -> None:
    session = Rowing(Behaviour(block=1))
    rows = session.distributions([("a", DistributionRequest([10, 11, 12, 13]))])
    next(rows)
    session.close()
    with pytest.raises(SessionClosedError):
        next(rows)


def test_without_the_capability_it_is_refused() -> None:
    with (
        Rowing(Behaviour(), full=False) as session,
        pytest.raises(UnsupportedRequestError, match="can't give distributions"),
    ):
        session.distributions([])


def test_declared_rows_that_no_engine_writes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Rowing, "_compute_rows")
    with Rowing(Behaviour()) as session:
        found = read(session, [("a", DistributionRequest([10, 11]))])
    assert "Rowing declares distributions and doesn't write _compute_rows" in str(found["a"].error)


def test_top_tokens_come_with_scores_by_rows() -> None:
    with Rowing(Behaviour(block=2)) as session:
        (plain,) = session.loglikelihood([LoglikelihoodRequest("ab", "cde")])
        (found,) = session.loglikelihood([LoglikelihoodRequest("ab", "cde", top_logprobs=4)])
        (text,) = session.loglikelihood_rolling(
            [RollingLoglikelihoodRequest("ab" * 40, top_logprobs=2)]
        )
    assert found.token_logprobs == pytest.approx(plain.token_logprobs)
    assert plain.top_logprobs is None
    assert found.top_logprobs is not None
    assert [len(step) for step in found.top_logprobs] == [4] * 3
    assert text.top_logprobs is not None
    assert len(text.top_logprobs) == text.token_count == 80
    assert all(
        list(step.values()) == sorted(step.values(), reverse=True) for step in text.top_logprobs
    )


def test_score_does_not_depend_on_one_beside_it_that_wants_top_tokens() -> None:
    behaviour = Behaviour()
    pairs = [LoglikelihoodRequest("ab", text) for text in ("cde", "cdf", "cdg")]
    with Rowing(behaviour) as session:
        alone = session.loglikelihood(pairs)
        behaviour.asked.clear()
        pairs[1].top_logprobs = 2
        beside = session.loglikelihood(pairs)
    assert behaviour.asked == [1]
    assert (beside[0], beside[2]) == (alone[0], alone[2])


def test_missing_top_tokens_are_no_answer() -> None:
    with (
        Rowing(Behaviour(), full=False) as session,
        pytest.raises(EngineRuntimeError, match="most likely tokens of 2 positions"),
    ):
        session.loglikelihood([LoglikelihoodRequest("a", "bc", top_logprobs=1)])


def test_fewer_top_tokens_than_were_asked_for_are_no_answer() -> None:
    score = TokenScore([-1.0, -2.0], top_logprobs=[{2: -1.0, 5: -3.0}, {3: -2.0}])
    with pytest.raises(WrongScoresError, match=r"the 2 most likely .* and all those of 1 came"):
        complete_top_logprobs(TokenSpan([1, 2, 3], 1, top_logprobs=2), score)


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_count_of_top_tokens_is_positive(count: object) -> None:
    with Rowing(Behaviour()) as session, pytest.raises(ValueError, match="top_logprobs must be"):
        session.loglikelihood([LoglikelihoodRequest("a", "b", top_logprobs=count)])  # type: ignore[arg-type]


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30), st.integers(1, 40))
def test_top_tokens_are_the_first_of_a_stable_order(values: list[int], count: int) -> None:
    row = np.array(values, np.float32)
    order = sorted(range(len(values)), key=lambda at: (-values[at], at))[:count]
    assert find_top(row, count) == {at: float(values[at]) for at in order}
    assert list(find_top(row, count)) == order


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_log_softmax_of_extreme_logits_sums_to_one(dtype: type) -> None:
    logits = np.array([[6e4, 6e4, -6e4, 0], [0, 0, 0, 0], [-6e4, -5e4, -6e4, -6e4]], dtype)
    rows = log_softmax_rows(logits)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.exp(rows.astype(float)).sum(axis=-1), 1, rtol=1e-6)


@given(st.lists(st.tuples(st.integers(2, 40), st.integers(1, 39)), max_size=8), st.integers(1, 12))
def test_spans_in_groups_have_each_position_once_in_order(
    drawn: list[tuple[int, int]], rows: int
) -> None:
    spans = [
        TokenSpan([key, *range(1, length)], min(start, length - 1))
        for key, (length, start) in enumerate(drawn)
    ]
    groups = list(split_spans(spans, rows))
    assert [
        (part.token_ids[0], at)
        for group in groups
        for part in group
        for at in range(part.start, len(part.token_ids))
    ] == [
        (span.token_ids[0], at) for span in spans for at in range(span.start, len(span.token_ids))
    ]
    for group in groups:
        assert sum(len(span.token_ids) - span.start for span in group) <= rows
        if len(group[0].token_ids) < len(spans[group[0].token_ids[0]].token_ids):
            assert len(group[0].fed) % rows == 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=2, max_size=9), st.integers(1, 8))))
def test_block_has_the_rows_of_its_spans_whatever_the_order_of_the_plan(
    drawn: list[tuple[list[int], int]],
) -> None:
    spans = [TokenSpan(ids, min(start, len(ids) - 1)) for ids, start in drawn]
    block = RowBlock(spans, 2)
    for segment in reversed(plan_scoring(spans).segments):
        values = [hash(tuple(spans[t.span].fed[: t.position + 1])) % 16 for t in segment.targets]
        logits = np.array([[0, value] for value in reversed(values)], np.float32).reshape(-1, 2)
        block.fill(segment.targets, logits, range(len(values))[::-1])
    odds = block.rows[:, 1] - block.rows[:, 0]
    assert odds.tolist() == pytest.approx(
        [
            hash(tuple(span.fed[:at])) % 16
            for span in spans
            for at in range(span.start, len(span.token_ids))
        ],
        abs=1e-5,
    )
