"""Comparisons and the gate where rows belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from evalution.comparison import compare
from evalution.comparison.comparison import SuiteComparison
from evalution.comparison.gate import Check, decide
from evalution.comparison.policy import Policy
from evalution.comparison.significance import (
    PairedTest,
    clustered_t_test,
    coin_p,
    mcnemar,
    paired_t_test,
    sign_test,
)
from evalution.comparison.table import list_remarks
from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult

Values = Sequence[float]
Names = Sequence[str] | None


def make_run(values: Values, groups: Names = None, *, score: float | None = None) -> RunResult:
    samples = [
        SampleResult("s", row, metrics={"acc": value}, group=groups[row] if groups else None)
        for row, value in enumerate(values)
    ]
    metric = MetricResult(
        sum(values) / len(values) if score is None else score, None, True, len(values)
    )
    suite = SuiteResult(
        "s", "T", {}, {"acc": metric}, len(values), 0, None, len(values), 0.0, kept_samples=samples
    )
    return RunResult({}, {}, {}, {}, status="done", suites=[suite])


def compare_sides(
    left: RunResult, right: RunResult
) -> tuple[SuiteComparison, PairedTest, list[str]]:
    found = compare(left, right)
    test = found["s"].metrics[0].test
    assert test is not None
    return found["s"], test, [line for line in list_remarks(found) if "group" in line]


def name_groups(rows: int, size: int, word: str = "text") -> list[str]:
    return [f"{word} {row // size}" for row in range(rows)]


def draw_sides(groups: int, size: int, seed: int = 0) -> tuple[list[float], list[float]]:
    """Right and wrong rows whose groups change as a whole, a quarter of them."""
    chance = Random(seed)
    left: list[float] = []
    right: list[float] = []
    for _ in range(groups):
        own = [float(chance.random() < 0.6) for _ in range(size)]
        change = chance.choice([None, None, None, 0.0, 1.0])
        left += own
        right += own if change is None else [change] * size
    return left, right


def test_rows_of_groups_have_a_clustered_t_in_place_of_mcnemar() -> None:
    left, right = draw_sides(40, 5)
    groups = name_groups(200, 5)
    suite, test, remarks = compare_sides(make_run(left, groups), make_run(right, groups))
    alone = mcnemar(left, right, higher_is_better=True)
    assert (test.name, test.pairs, test.groups) == ("clustered t", 200, 40)
    assert (suite.grouped_by, suite.flipped_by, remarks) == ("both", "acc", [])
    assert (test.left_better, test.right_better) == (alone.left_better, alone.right_better)
    assert test.difference == pytest.approx(alone.difference)
    assert test.p_value is not None
    assert alone.p_value is not None
    assert test.p_value > alone.p_value
    assert test.interval is not None
    assert alone.interval is not None
    assert test.interval[1] - test.interval[0] > 1.5 * (alone.interval[1] - alone.interval[0])
    assert test.to_dict()["groups"] == 40


def test_without_groups_a_comparison_has_no_field_for_them() -> None:
    suite, test, remarks = compare_sides(make_run([1.0, 0.0]), make_run([1.0, 1.0]))
    assert (test.name, suite.grouped_by, remarks) == ("mcnemar", None, [])
    assert not {"groups", "freedom"} & test.to_dict().keys()
    assert "grouped_by" not in suite.to_dict()


def test_groups_of_one_row_give_students_test() -> None:
    chance = Random(1)
    left = [chance.random() for _ in range(30)]
    right = [chance.random() for _ in range(30)]
    one = paired_t_test(left, right, higher_is_better=True)
    other = clustered_t_test(left, right, range(30), higher_is_better=True)
    assert other.difference == one.difference
    # The same error; its degrees of freedom allow for the kurtosis as well.
    assert other.p_value == pytest.approx(one.p_value, rel=0.1)
    assert other.freedom is not None
    assert other.freedom <= 29


def test_difference_of_shares_is_at_most_one() -> None:
    before, after, groups = [1.0] * 5, [0.0, 0.0, 0.0, 0.0, 1.0], [0, 1, 2, 3, 4]
    found = clustered_t_test(before, after, groups, higher_is_better=True)
    assert found.interval is not None
    assert found.interval[0] == -1.0
    half = [value / 2 for value in before], [value / 2 for value in after]
    wider = clustered_t_test(*half, groups, higher_is_better=True)
    assert wider.interval is not None
    assert 2 * wider.interval[0] < -1.0


@pytest.mark.parametrize("side", ["left", "right"])
def test_groups_of_one_side_count_for_both(side: str) -> None:
    left, right = draw_sides(20, 5)
    groups = name_groups(100, 5)
    runs = (
        make_run(left, groups if side == "left" else None),
        make_run(right, groups if side == "right" else None),
    )
    suite, test, remarks = compare_sides(*runs)
    assert (suite.grouped_by, test.name, test.groups) == (side, "clustered t", 20)
    assert remarks == [f"s: only the {side} run has groups of rows; the tests use them for both"]


def test_groups_by_other_names_are_the_same() -> None:
    left, right = draw_sides(20, 5)
    runs = make_run(left, name_groups(100, 5)), make_run(right, name_groups(100, 5, "passage"))
    suite, test, remarks = compare_sides(*runs)
    assert (suite.grouped_by, test.groups, remarks) == ("both", 20, [])


def test_groups_that_contradict_each_other_are_not_used() -> None:
    left, right = draw_sides(20, 5)
    runs = make_run(left, name_groups(100, 5)), make_run(right, name_groups(100, 4))
    suite, test, remarks = compare_sides(*runs)
    assert (suite.grouped_by, test.name, test.groups) == ("neither", "mcnemar", None)
    assert remarks == [
        "s: the runs put the rows into different groups, so the tests use none: rows count as "
        "independent"
    ]


def test_score_that_is_no_mean_is_tested_by_the_majority_of_each_group() -> None:
    left, right = [0.0] * 12, [1.0, 1.0, 0.0, 0.0, 1.0, 0.0] * 2
    groups = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    found = sign_test(left, right, groups, higher_is_better=True)
    assert (found.name, found.right_better, found.groups) == ("clustered sign", 6, 4)
    assert found.p_value == coin_p(0, 4)
    tied = sign_test([0.0, 1.0], [1.0, 0.0], [0, 0], higher_is_better=True)
    assert tied.p_value == 1.0
    runs = (make_run(side, name_groups(12, 3), score=9.0) for side in (left, right))
    assert compare_sides(*runs)[1].name == "clustered sign"


def test_one_group_has_a_difference_without_an_interval() -> None:
    found = clustered_t_test([1.0, 0.0], [0.0, 0.0], [0, 0], higher_is_better=True)
    assert (found.p_value, found.difference, found.interval, found.groups) == (None, -0.5, None, 1)


def test_rows_that_are_all_the_same_have_the_interval_of_their_groups() -> None:
    same = [1.0] * 100
    found = clustered_t_test(same, same, [row // 10 for row in range(100)], higher_is_better=True)
    assert found.p_value == 1.0
    assert found.interval == mcnemar([1.0] * 10, [1.0] * 10, higher_is_better=True).interval
    half = clustered_t_test([0.5] * 100, [0.5] * 100, [*range(10)] * 10, higher_is_better=True)
    assert half.interval == found.interval


def test_groups_that_all_lose_as_much_are_as_many_coins() -> None:
    found = clustered_t_test([0.5] * 6, [0.25] * 6, [0, 0, 1, 1, 2, 2], higher_is_better=True)
    assert (found.p_value, found.interval) == (coin_p(3, 0), None)


def test_changes_that_cancel_within_groups_are_none() -> None:
    after = [0.6, 0.7, 0.2] * 20
    groups = [row // 3 for row in range(60)]
    found = clustered_t_test([0.5] * 60, after, groups, higher_is_better=True)
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert found.interval == mcnemar([1.0] * 20, [1.0] * 20, higher_is_better=True).interval


def test_interval_of_a_difference_is_within_what_scores_allow() -> None:
    found = clustered_t_test([1.0, 0.0], [0.0, 0.0], [0, 1], (0.0, 1.0), higher_is_better=True)
    assert found.cautious_interval is not None
    assert found.cautious_interval[0] == -1.0


@pytest.mark.parametrize(("size", "loss"), [(10, 0.08), (10, 0.12), (50, 0.05), (50, 0.2)])
@pytest.mark.parametrize("part", [1.0, 0.3])
def test_few_large_groups_may_lose_what_many_small_ones_havent(
    size: int, loss: float, part: float
) -> None:
    """A group loses its part or nothing: over every outcome, up to 50 % went unnoticed."""
    small, large, missed = 90, 10, 0.0
    groups = [*range(small), *(small + number // size for number in range(large * size))]
    left = [1.0] * len(groups)
    for few, many in product(range(small + 1), range(large + 1)):
        ways = math.comb(small, few) * math.comb(large, many)
        chance = ways * loss ** (few + many) * (1 - loss) ** (small + large - few - many)
        if chance > 1e-6:
            right = [1 - part * (each < few or 0 <= each - small < many) for each in groups]
            test = clustered_t_test(left, right, groups, (0.0, 1.0), higher_is_better=True)
            assert test.cautious_interval is not None
            missed += chance * (-test.cautious_interval[0] <= part * loss)
    assert missed <= 0.03


def judge(left: Values, right: Values, groups: Names, loss: float) -> Check:
    found = compare(make_run(left, groups), make_run(right, groups))
    (check,) = decide(Policy(loss=loss), found).checks
    return check


def test_gate_doesnt_ship_on_copies_of_few_rows() -> None:
    left, right = [1.0] * 900, [0.0] * 30 + [1.0] * 870
    assert judge(left, right, None, 0.1).verdict == "ship"
    check = judge(left, right, name_groups(900, 30), 0.1)
    assert check.verdict == "undecided"
    assert "groups would do" in check.reason


def test_gate_decides_nothing_by_groups_that_conflict() -> None:
    rows = [1.0] * 400
    left = make_run(rows, name_groups(400, 20))
    right = make_run(rows, [f"text {number % 20}" for number in range(400)])
    (check,) = decide(Policy(loss=0.05), compare(left, right)).checks
    assert check.verdict == "undecided"
    assert check.reason == "the sides put the rows into groups that conflict; run both alike"


def test_gate_ships_equal_groups_only_where_they_are_many() -> None:
    same = [1.0] * 400
    assert judge(same, same, name_groups(400, 40), 0.05).verdict == "undecided"
    assert judge(same, same, name_groups(400, 2), 0.05).verdict == "ship"


def test_gate_blocks_by_the_t_of_the_groups() -> None:
    left, right = [1.0] * 40, ([0.0] * 2 + [1.0] * 2) * 10
    check = judge(left, right, name_groups(40, 4), 0.02)
    assert check.verdict == "block"
