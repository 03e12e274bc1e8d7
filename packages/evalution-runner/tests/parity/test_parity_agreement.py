from __future__ import annotations

import math
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution.parity.agreement import (
    Failed,
    Generated,
    Key,
    Record,
    Scored,
    compare_answers,
    make_record,
)
from evalution.parity.result import (
    LEAST_DECADE,
    ParityResult,
    SuiteParity,
    Tolerance,
    absolute_difference,
    summarize_differences,
)
from evalution_core import (
    GenerationOutput,
    InvalidRequestError,
    LoglikelihoodOutput,
    RequestFailure,
    RollingLoglikelihoodOutput,
)
from evalution_core.kinds import RequestKind

values = st.floats(-30, 0) | st.just(-math.inf)


def scored(*logprobs: float, **fields: Any) -> Scored:
    known: dict[str, Any] = {
        "logprob": sum(logprobs),
        "token_count": len(logprobs),
        "token_logprobs": array("d", logprobs),
        "token_ids": array("q", range(10, 10 + len(logprobs))),
        **fields,
    }
    return Scored(**known)


def generated(
    text: str, *, gaps: Sequence[float] | None = None, rival: str = "x", **fields: Any
) -> Generated:
    """A completion of one token a character; at its steps with a gap, `rival` came next."""
    known: dict[str, Any] = {
        "token_ids": array("q", map(ord, text)),
        "token_logprobs": array("d", [-1.0] * len(text)),
        **fields,
    }
    rivals = None if gaps is None else array("q", [ord(rival)] * len(gaps))
    return Generated(text, gaps=None if gaps is None else array("d", gaps), rivals=rivals, **known)


def agreed(
    left: Mapping[Key, Record],
    right: Mapping[Key, Record],
    kind: RequestKind = RequestKind.LOGLIKELIHOOD,
) -> SuiteParity:
    return compare_answers("s", kind, left, right, by_ids=len(left))


def complaints(found: SuiteParity, **tolerance: Any) -> list[str]:
    return ParityResult({}, {}, Tolerance(**tolerance), None, [], [found]).complaints


def test_equal_answers_agree() -> None:
    records: dict[Key, Record] = {
        (row, choice): scored(-1.0 * choice, -2.0, is_greedy=choice == 0)
        for row in range(3)
        for choice in range(4)
    }
    found = agreed(records, dict(records))
    assert (found.requests, found.compared, found.choices, found.greedy) == (12, 12, 3, 12)
    assert (found.flips, found.near_flips, found.greedy_apart, found.sum_per_token) == (
        0,
        0,
        0,
        0.0,
    )
    assert found.tokens is not None
    assert (found.tokens.count, found.tokens.max) == (24, 0.0)
    assert found.worst_tokens == []
    assert complaints(found) == []


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(values, values), min_size=1, max_size=4), max_size=30))
def test_differences_are_those_of_the_tokens(rows: list[list[tuple[float, float]]]) -> None:
    left = {(n, 0): scored(*(a for a, _ in row)) for n, row in enumerate(rows)}
    right = {(n, 0): scored(*(b for _, b in row)) for n, row in enumerate(rows)}
    shuffled = list(right.items())
    random.Random(0).shuffle(shuffled)
    found = agreed(left, dict(shuffled), RequestKind.ROLLING)
    sizes = [(absolute_difference(*pair), pair) for row in rows for pair in row]
    if found.tokens is None:
        assert not sizes
        return
    finite = [size for size, _ in sizes if math.isfinite(size)]
    assert found.tokens.count == len(sizes)
    assert found.tokens.infinite == len(sizes) - len(finite)
    assert found.tokens.max == max(finite, default=0.0)
    assert found.tokens.mean == pytest.approx(math.fsum(finite) / max(len(finite), 1))
    assert sum(found.tokens.decades) == len(finite)
    worst = sorted((size for size, _ in sizes if size), reverse=True)[:20]
    listed = [
        absolute_difference(*(-math.inf if v is None else v for v in (token.left, token.right)))
        for token in found.worst_tokens
    ]
    assert listed == worst
    for token in found.worst_tokens:
        assert token.token_id == 10 + token.position
        left = -math.inf if token.left is None else token.left
        assert left == rows[token.row][token.position][0]


def test_spread_has_ranks_and_decades() -> None:
    found = summarize_differences([n / 100 for n in range(1, 101)])
    assert (found.p50, found.p99, found.max) == (0.5, 0.99, 1.0)
    assert found.mean == pytest.approx(0.505)
    odd = summarize_differences([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (odd.p50, odd.p99) == (3.0, 5.0)
    sizes = [0.0, 0.0, 3e-30, 1e-17, 5e-5, 0.1, 1.0, 40.0, math.inf]
    found = summarize_differences(sizes)
    counts = dict(zip([None, *range(LEAST_DECADE, 1)], found.decades, strict=True))
    assert {decade: n for decade, n in counts.items() if n} == {None: 2, -17: 2, -5: 1, -1: 1, 0: 2}
    assert (found.count, found.infinite, found.max) == (9, 1, 40.0)
    empty = summarize_differences([])
    assert (empty.count, empty.max, empty.p99) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("left", "right", "near"),
    [
        ((-1.0, -1.0005), (-1.0, -0.9999), True),
        ((-1.0, -1.5), (-1.5, -1.0), False),
        ((-1.0, -1.0005), (-1.5, -1.0), False),
    ],
)
def test_flip_between_near_ties_is_kept_apart(
    left: tuple[float, float], right: tuple[float, float], near: bool
) -> None:
    found = agreed(
        {(7, n): scored(value) for n, value in enumerate(left)},
        {(7, n): scored(value) for n, value in enumerate(right)},
    )
    assert (found.flips, found.near_flips) == (int(not near), int(near))
    (flip,) = found.flip_list
    assert (flip.row, flip.left, flip.right, flip.is_near_tie) == (7, 0, 1, near)
    assert flip.gap == pytest.approx(max(left[0] - left[1], right[1] - right[0]))
    told = "decisions that differ, near ties of choices and texts aside: 1, over 0"
    assert (told in complaints(found, logprob=1.0)) != near
    assert complaints(found, logprob=1.0, decisions=1) == []


def test_flip_to_a_third_choice_is_no_near_tie_of_the_first_two() -> None:
    left = {(0, n): scored(value) for n, value in enumerate([-1.0, -1.0005, -1.09])}
    right = {(0, n): scored(value) for n, value in enumerate([-1.05, -1.05, -1.04])}
    found = agreed(left, right)
    assert (found.flips, found.near_flips) == (1, 0)
    assert found.flip_list[0].gap == pytest.approx(0.09)
    assert complaints(found, logprob=0.1) == [
        "decisions that differ, near ties of choices and texts aside: 1, over 0"
    ]


def test_question_that_failed_on_one_side_is_no_flip() -> None:
    left = {(0, n): scored(-1.0 - n) for n in range(2)}
    right: dict[Key, Record] = {(0, 0): Failed("no"), (0, 1): scored(-2.0)}
    found = agreed(left, right)
    assert (found.choices, found.flips, found.compared) == (0, 0, 1)
    assert found.uncompared.right_failed == 1
    assert found.uncompared.first_failure == "row 0, request 0, right: no"
    assert "s: requests that failed on one side alone: 1" in complaints(found)


def test_request_refused_by_both_is_no_difference() -> None:
    left: dict[Key, Record] = {(0, 0): Failed("long"), (1, 0): scored(-1.0)}
    found = agreed(left, dict(left))
    assert found.uncompared.both_failed == 1
    assert complaints(found) == []
    assert complaints(agreed({(0, 0): Failed("a")}, {(0, 0): Failed("b")})) == [
        "s: nothing could be compared"
    ]
    most: dict[Key, Record] = {**left, (2, 0): Failed("long")}
    assert complaints(agreed(most, dict(most))) == ["s: requests that failed on both sides: 2 of 3"]


def test_cuts_and_counts_that_differ_are_reported() -> None:
    left: dict[Key, Record] = {(0, 0): scored(-1.0, truncated=0), (1, 0): scored(-1.0)}
    right: dict[Key, Record] = {(0, 0): scored(-2.0, truncated=3), (1, 0): scored(-1.0, -1.0)}
    found = agreed(left, right)
    assert (found.uncompared.cut_apart, found.uncompared.counted_apart) == (1, 1)
    assert complaints(found) == [
        "s: nothing could be compared",
        "s: requests cut at different places: 1",
        "s: requests with another number of tokens on each side: 1",
    ]


def test_sums_are_held_to_the_tolerance_of_their_tokens() -> None:
    left = {(0, 0): scored(-1.0, -1.0), (1, 0): scored(-1.0, -1.0, token_logprobs=None)}
    right: dict[Key, Record] = {
        (0, 0): scored(-1.0, -1.0, logprob=-2.0003),
        (1, 0): scored(-1.0, -1.0, token_logprobs=None, logprob=-2.00015),
    }
    found = agreed(left, right)
    assert found.sum_per_token == pytest.approx(1.5e-4)
    assert found.tokens is not None
    assert found.tokens.max == 0.0
    assert complaints(found) == ["s: a sum differs by 0.00015 per token, over 0.0001"]
    assert complaints(found, logprob=2e-4) == []


def test_one_side_without_token_values_is_compared_by_sums() -> None:
    left = {(0, 0): scored(-1.0, -2.0)}
    right = {(0, 0): scored(-1.0, -2.0, token_logprobs=None, is_greedy=True)}
    found = agreed(left, right)
    assert found.tokens is None
    assert found.sums is not None
    assert (found.sums.count, found.sums.max, found.greedy) == (1, 0.0, 0)


def test_greedy_marks_that_differ_are_decisions() -> None:
    left = {(n, 0): scored(-1.0, is_greedy=True) for n in range(3)}
    right = {(n, 0): scored(-1.0, is_greedy=n != 1) for n in range(3)}
    found = agreed(left, right)
    assert (found.greedy, found.greedy_apart, found.greedy_rows) == (3, 1, [1])
    assert complaints(found) == [
        "decisions that differ, near ties of choices and texts aside: 1, over 0"
    ]


def test_impossible_token_on_one_side_is_reported() -> None:
    found = agreed({(0, 0): scored(-math.inf)}, {(0, 0): scored(-1.0)})
    assert "s: values of minus infinity on one side alone: 1" in complaints(found, logprob=100.0)
    (worst,) = found.worst_tokens
    assert (worst.left, worst.right) == (None, -1.0)
    assert found.points == []
    same = agreed({(0, 0): scored(-math.inf)}, {(0, 0): scored(-math.inf)})
    assert complaints(same) == []


@pytest.mark.parametrize(
    ("left_gaps", "right_gaps", "gap", "near"),
    [
        ([1.0, 1.0, 5e-4, 1.0], None, 5e-4, True),
        ([1.0, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0], 0.5, False),
        ([1.0, 1.0, 1e-5, 1.0], [1.0, 1.0, 9.0, 1.0], 9.0, False),
        (None, [1.0, 1.0, 2e-4], 2e-4, True),
        ([1.0, 1.0, math.nan], [1.0, 1.0, 2e-4], 2e-4, True),
        ([1.0, 1.0], [1.0, 1.0, 0.25], 0.25, False),
        (None, None, None, False),
    ],
)
def test_divergence_at_a_near_tie_is_marked(
    left_gaps: list[float] | None, right_gaps: list[float] | None, gap: float | None, near: bool
) -> None:
    left = {(3, 0): generated("abcd", gaps=left_gaps)}
    right = {(3, 0): generated("abxy", gaps=right_gaps, rival="c")}
    found = agreed(left, right, RequestKind.GENERATION)
    (parting,) = found.divergence_list
    assert (parting.token, parting.character, parting.gap) == (2, 2, gap)
    assert (parting.left, parting.right, parting.is_near_tie) == ("cd", "xy", near)
    assert (found.texts, found.divergences, found.near_divergences) == (1, int(not near), int(near))
    assert found.tokens is not None
    assert found.tokens.count == 2
    assert (complaints(found) == []) == near


@pytest.mark.parametrize(
    ("left", "right", "gap", "near"),
    [
        ((1e-5, "z"), None, None, False),
        ((1e-5, "z"), (1e-4, "z"), None, False),
        ((1e-5, "z"), (1e-4, "c"), 1e-4, True),
        ((0.5, "z"), (1e-4, "c"), 0.5, False),
    ],
)
def test_text_that_goes_on_with_a_third_token_is_no_near_tie_of_the_first_two(
    left: tuple[float, str], right: tuple[float, str] | None, gap: float | None, near: bool
) -> None:
    sides = [
        generated(text, gaps=[side[0]] * 4, rival=side[1]) if side else generated(text)
        for text, side in (("abcd", left), ("abxy", right))
    ]
    found = agreed({(3, 0): sides[0]}, {(3, 0): sides[1]}, RequestKind.GENERATION)
    (parting,) = found.divergence_list
    assert (parting.gap, parting.is_near_tie) == (gap, near)


def test_text_that_ends_earlier_parts_there() -> None:
    left = {(0, 0): generated("abc")}
    right = {(0, 0): generated("ab", gaps=[1.0, 1.0, 1e-5], rival="c")}
    (parting,) = agreed(left, right, RequestKind.GENERATION).divergence_list
    assert (parting.token, parting.character, parting.gap) == (2, 2, 1e-5)


def test_texts_without_ids_are_compared_as_texts() -> None:
    left = {(0, 0): generated("abc", token_ids=None)}
    right = {(0, 0): generated("abd")}
    found = agreed(left, right, RequestKind.GENERATION)
    (parting,) = found.divergence_list
    assert (parting.token, parting.character, parting.gap) == (None, 2, None)
    assert (found.tokens, found.divergences) == (None, 1)


def test_values_of_generated_tokens_count_up_to_where_texts_part() -> None:
    left = {(0, 0): generated("abc", token_logprobs=array("d", [-1.0, -2.0, -3.0]))}
    right = {(0, 0): generated("abd", token_logprobs=array("d", [-1.0, -2.5, -9.0]))}
    found = agreed(left, right, RequestKind.GENERATION)
    assert found.tokens is not None
    assert (found.tokens.count, found.tokens.max) == (2, 0.5)
    assert found.worst_tokens[0].token_id == ord("b")


def test_points_are_evenly_taken_and_few() -> None:
    left = {(n, 0): scored(-n / 10, -n / 20) for n in range(3000)}
    found = agreed(left, dict(left), RequestKind.ROLLING)
    assert len(found.points) == 2000
    assert found.points[:3] == [(0.0, 0.0), (-0.05, -0.05), (-0.3, -0.3)]


def test_answers_become_records() -> None:
    found = make_record(
        LoglikelihoodOutput(-3.0, True, 2, token_logprobs=[-1.0, -2.0], truncated_tokens=4)
    )
    assert found == Scored(-3.0, 2, array("d", [-1.0, -2.0]), None, True, 4)
    found = make_record(RollingLoglikelihoodOutput(-3.0, 2, token_ids=[5, 6]))
    assert found == Scored(-3.0, 2, None, array("q", [5, 6]))
    top = [{1: -0.5, 2: -2.0, 3: -1.0}, {3: -0.5, 1: -0.5}, {1: -0.25}]
    found = make_record(GenerationOutput("", "ab", token_ids=[1, 1, 1], top_logprobs=top))
    assert isinstance(found, Generated)
    assert found.gaps is not None
    assert list(found.gaps[:2]) == [0.5, 0.0]
    assert math.isnan(found.gaps[2])
    assert found.rivals == array("q", [3, 3, -1])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (LoglikelihoodOutput(math.nan, True, 1), "the engine gave NaN as a log-probability"),
        (
            LoglikelihoodOutput(-1.0, True, 2, token_logprobs=[-1.0]),
            "1 log-probabilities came for 2 tokens",
        ),
        (RequestFailure(InvalidRequestError("too long")), "InvalidRequestError: too long"),
    ],
)
def test_what_can_not_be_compared_is_a_failure(answer: Any, reason: str) -> None:
    assert make_record(answer) == Failed(reason)


def test_completion_with_nan_is_no_answer() -> None:
    answer = GenerationOutput("p", "ab", token_ids=[1, 2], token_logprobs=[-1.0, math.nan])
    assert make_record(answer) == Failed("a token's log-probability is NaN")
