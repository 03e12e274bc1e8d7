"""The self check against engines with one fault each, as runtimes have shown them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationOutput,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_enginekit import ByteTokenizer, TokenScore, TokenSpan, WrongScoresError
from evalution_enginekit.mock import Mock, MockSession, table
from evalution_enginekit.self_check import logits_alike, probe_ids, score_tolerance, self_check

TABLE = table("toy")


def score(span: TokenSpan) -> TokenScore:
    rows = [TABLE.row(span.token_ids[:at]) for at in range(span.start, len(span.token_ids))]
    chosen = span.token_ids[span.start :]
    return TokenScore(
        [row[i] for row, i in zip(rows, chosen, strict=True)],
        all(row[i] == max(row) for row, i in zip(rows, chosen, strict=True)),
    )


def complete(token_ids: Sequence[int], length: int) -> GenerationOutput:
    ids, logprobs = list(token_ids), []
    for _ in range(length):
        row = TABLE.row(ids)
        ids.append(max(range(len(row)), key=row.__getitem__))
        logprobs.append(max(row))
    return GenerationOutput("", "", token_ids=ids[-length:], token_logprobs=logprobs)


def check(faulty: Callable[[TokenSpan], TokenScore] = score, **options: Any) -> Any:
    arguments: dict[str, Any] = {"complete": complete, "max_model_len": 256, "dtype": "float64"}
    arguments.update(options)
    return self_check(
        ByteTokenizer(), score=lambda spans: [faulty(span) for span in spans], **arguments
    )


def shifted(span: TokenSpan) -> TokenScore:
    """The row after the right one: off by one."""
    ids = [*span.token_ids, 0]
    rows = [TABLE.row(ids[: at + 1]) for at in range(span.start, len(span.token_ids))]
    return TokenScore([row[i] for row, i in zip(rows, ids[span.start :], strict=False)])


def late(span: TokenSpan) -> TokenScore:
    """The log-probability of the next token in place of each one's own."""
    ids = [*span.token_ids, 101]
    return TokenScore(score(TokenSpan(ids, span.start + 1)).logprobs)


def zero(span: TokenSpan) -> TokenScore:
    return TokenScore([0.0] * (len(span.token_ids) - span.start))


def without_first(span: TokenSpan) -> TokenScore:
    return TokenScore(score(span).logprobs[1:])


def first_is_zero(span: TokenSpan) -> TokenScore:
    return TokenScore([0.0, *score(span).logprobs[1:]])


def doubled_bos(span: TokenSpan) -> TokenScore:
    """One token more before the sequence, and the log-probabilities read as if it weren't there."""
    return TokenScore(score(TokenSpan([256, *span.token_ids], span.start)).logprobs[:-1])


def positive(span: TokenSpan) -> TokenScore:
    return TokenScore([-value for value in score(span).logprobs])


def infinite(span: TokenSpan) -> TokenScore:
    return TokenScore([float("-inf"), *score(span).logprobs[1:]])


def wrong_flag(span: TokenSpan) -> TokenScore:
    return TokenScore(score(span).logprobs, False)


def test_self_check_passes_on_a_healthy_engine() -> None:
    result = check()
    assert (result.outcome, result.max_difference) == ("passed", 0.0)
    assert result.detail == "4 tokens scored as generated"


def test_without_a_next_token_path_the_parts_are_compared() -> None:
    result = check(complete=None)
    assert result.outcome == "passed"
    assert "no next-token path to compare" in result.detail


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (late, "scored in two parts differs by .* positions are shifted or tokens lost"),
        (shifted, "differs from the next-token path by "),
        (doubled_bos, "differs from the next-token path by .*; the values are shifted by "),
        (zero, r"all log-probabilities are 0\.0"),
        (without_first, r"\d+ tokens were to be scored and \d+ log-probabilities came"),
        (first_is_zero, "scored in two parts differs by .* positions are shifted or tokens lost"),
        (positive, "must be finite and not positive"),
        (infinite, "must be finite and not positive"),
        (wrong_flag, "greedily generated tokens are reported as not greedy"),
    ],
)
def test_a_fault_is_found_and_named(faulty: Any, message: str) -> None:
    result = check(faulty)
    assert result.outcome == "failed"
    assert re.search(message, result.detail), result.detail


@pytest.mark.parametrize(
    ("dtype", "outcome"),
    [("float64", "failed"), ("float32", "failed"), ("bfloat16", "passed"), ("q4_0", "passed")],
)
def test_the_tolerance_is_by_dtype(dtype: str, outcome: str) -> None:
    def rough(span: TokenSpan) -> TokenScore:
        noise = 0.05 * (span.start % 2)
        return TokenScore([value - noise for value in score(span).logprobs])

    assert check(rough, dtype=dtype).outcome == outcome


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"max_model_len": 5}, "max_model_len=5 is too short"),
        ({"max_model_len": 2}, "max_model_len=2 is too short"),
        (
            {"complete": lambda *_: GenerationOutput("", "")},
            "the next-token path gave no log-probabilities",
        ),
    ],
)
def test_incomparable_paths_are_not_checkable(options: dict[str, Any], detail: str) -> None:
    result = check(**options)
    assert (result.outcome, result.detail) == ("not checkable", detail)


class Shifted(MockSession):
    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        yield [shifted(span) for span in spans]


def test_a_session_that_fails_refuses_to_score_and_still_generates() -> None:
    with Shifted("toy", 512, 4) as session:
        request = LoglikelihoodRequest("a", "b")
        for call in (
            lambda: session.loglikelihood([request]),
            lambda: list(session.loglikelihood_continuous([(0, request)])),
            lambda: session.loglikelihood_rolling([RollingLoglikelihoodRequest("a")]),
        ):
            with pytest.raises(
                EngineRuntimeError, match="engine Mock failed its self check and refuses to score"
            ):
                call()
        assert session.describe_execution()["self_check"] == "failed"
        assert session.check() is session.check()


class Failing(MockSession):
    """Has an error in place of each score, or raises it."""

    def __init__(self, error: EngineRuntimeError, *, raises: bool):
        super().__init__("toy", 512, 4)
        self._error, self._raises = error, raises

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[Any]:
        if self._raises:
            raise self._error
        yield [self._error] * len(spans)


@pytest.mark.parametrize("raises", [False, True])
def test_scores_that_are_missing_are_a_failure(raises: bool) -> None:
    with Failing(WrongScoresError("planted: 2 rows came"), raises=raises) as session:
        result = session.check()
        assert result.outcome == "failed"
        assert "planted: 2 rows came" in result.detail
        with pytest.raises(EngineRuntimeError, match="refuses to score: planted: 2 rows came"):
            session.loglikelihood([LoglikelihoodRequest("a", "b")])


@pytest.mark.parametrize("raises", [False, True])
def test_error_of_the_runtime_is_raised_by_the_check(raises: bool) -> None:
    with Failing(EngineRuntimeError("planted: out of memory"), raises=raises) as session:
        with pytest.raises(EngineRuntimeError, match="planted: out of memory"):
            session.check()
        assert session.describe_execution()["self_check"] == "not run"


def test_the_mock_engine_passes_through_its_session() -> None:
    with Mock().build(Model("any")) as session:
        assert session.check().outcome == "passed"


def test_probe_ids_stay_in_the_vocabulary_and_differ() -> None:
    assert probe_ids(1 << 15)[:3] == [13, 7932, 15851]
    assert len(set(probe_ids(1000))) == 13
    assert max(probe_ids(7, 40)) < 7


@pytest.mark.parametrize(
    ("distance", "dtype", "alike"),
    [
        (0.9e-3, "float32", True),
        (1.1e-3, "float32", False),
        (1.1e-3, "float16", True),
        (0.09, "bfloat16", True),
        (0.09, None, True),
        (0.11, "int8", False),
        (float("nan"), "bfloat16", False),
        (float("inf"), "bfloat16", False),
    ],
)
def test_logits_are_alike_within_the_tolerance_of_their_precision(
    distance: float, dtype: str | None, alike: bool
) -> None:
    assert logits_alike([0.0, 2 * distance], [1.0, 2.0], dtype) is alike


def test_constant_rows_of_logits_are_compared_too() -> None:
    assert logits_alike([0.0], [0.0], "float32")
    assert not logits_alike([1e-3], [0.0], "float32")


def test_precision_without_a_tolerance_of_its_own_gets_the_loosest() -> None:
    assert score_tolerance("float32") == 1e-3
    assert score_tolerance("int4") == 0.3
