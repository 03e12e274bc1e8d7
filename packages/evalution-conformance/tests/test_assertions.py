"""When answers count as the same, and when not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_conformance.assertions import (
    assert_same_logprobs,
    assert_tokens_agree,
    first_difference,
)
from evalution_conformance.subject import Subject
from evalution_core import GenerationOutput
from mutants import toy_subject
from mutants.toy import Toy

ids = st.lists(st.integers(0, 3), max_size=6)


@pytest.fixture
def subject() -> Subject:
    made = toy_subject(Toy())
    made.tolerance = 1e-4
    return made


def agree(subject: Subject, found: list[int], gaps: list[float]) -> None:
    output = GenerationOutput("", str(found), token_ids=found)
    assert_tokens_agree(subject, output, "[1, 2, 3]", [1, 2, 3], gaps, "the text differs")


def test_equal_texts_agree(subject: Subject) -> None:
    agree(subject, [1, 2, 3], [])


def test_texts_may_differ_from_an_undecided_step(subject: Subject) -> None:
    agree(subject, [1, 9, 9], [5.0, 5e-4, 5.0])
    agree(subject, [1, 2, 9], [5e-4, 5.0, 5.0])


def test_texts_may_not_differ_before_an_undecided_step(subject: Subject) -> None:
    with pytest.raises(AssertionError, match=r"the text differs: expected '\[1, 2, 3\]', got '\["):
        agree(subject, [1, 9, 9], [5.0, 5.0, 5e-4])
    with pytest.raises(AssertionError, match="the text differs"):
        agree(subject, [1, 9, 9], [])


def test_other_text_for_the_same_tokens_is_refused(subject: Subject) -> None:
    output = GenerationOutput("", "1, 2, 3", token_ids=[1, 2, 3])
    with pytest.raises(AssertionError, match="the text differs"):
        assert_tokens_agree(subject, output, "[1, 2, 3]", [1, 2, 3], [0.0] * 3, "the text differs")


def test_logprobs_are_compared_token_by_token(subject: Subject) -> None:
    assert_same_logprobs(subject, [-1.0, -2.0], [-1.00005, -2.0], "scores")
    with pytest.raises(
        AssertionError,
        match=r"scores: token 1 has -2, expected -2\.001; they differ by 0\.001 nats and the "
        r"tolerance is 0\.0001",
    ):
        assert_same_logprobs(subject, [-1.0, -2.0], [-1.0, -2.001], "scores")
    with pytest.raises(AssertionError, match="scores: expected 1 token log-probabilities, got 2"):
        assert_same_logprobs(subject, [-1.0, -2.0], [-1.0], "scores")
    with pytest.raises(AssertionError, match="scores: token_logprobs is missing"):
        assert_same_logprobs(subject, None, [-1.0], "scores")


def test_equal_infinities_are_the_same_and_nan_never_is(subject: Subject) -> None:
    assert_same_logprobs(subject, [], [], "scores")
    assert_same_logprobs(subject, [-1.0, -math.inf], [-1.0, -math.inf], "scores")
    for value in (math.nan, -math.inf):
        with pytest.raises(AssertionError, match="scores: token 1 has"):
            assert_same_logprobs(subject, [-1.0, value], [-1.0, -2.0], "scores")


@given(ids, ids)
def test_first_difference_ends_the_shared_prefix(left: list[int], right: list[int]) -> None:
    at = first_difference(left, right)
    if at is None:
        assert left == right
    else:
        assert left[:at] == right[:at]
        assert left[at : at + 1] != right[at : at + 1]
