from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.rows.local import Row
from evalution.suites.generation_suite import Generation
from evalution.suites.prompted_suite import SeededShots
from evalution.suites.row_suite import Split
from evalution_core import ConfigurationError


def rows(ids: list[int]) -> list[Row]:
    return [Row(index, f"row {index}", {"id": number}) for index, number in enumerate(ids)]


def ids(found: object) -> list[int]:
    return [row["id"] for row in found]  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]


POOL = rows(list(range(16)))


# The numbers below were drawn by lm_eval.api.samplers.ContextSampler of lm-eval 0.4.13.


def test_shots_of_another_file_are_those_of_lm_eval() -> None:
    shots = SeededShots(POOL, 3, 1234, shared=False)
    drawn = [ids(shots.before(row)) for row in POOL[:4]]
    assert drawn == [[14, 1, 0], [2, 14, 12], [1, 10, 11], [2, 1, 12]]


def test_shots_of_the_same_file_are_those_of_lm_eval() -> None:
    shots = SeededShots(POOL, 3, 1234, shared=True)
    drawn = [ids(shots.before(row)) for row in POOL[:6]]
    assert drawn == [[14, 1, 15], [10, 11, 15], [3, 12, 5], [0, 15, 12], [11, 10, 9], [14, 2, 1]]


def test_shots_among_equal_rows_are_those_of_lm_eval() -> None:
    pool = rows([0, 1, 2, 3, 0, 1, 2, 3])
    shots = SeededShots(pool, 3, 1234, shared=True)
    drawn = [ids(shots.before(row)) for row in pool[:6]]
    assert drawn == [[3, 2, 1], [0, 2, 3], [0, 3, 1], [1, 0, 1], [1, 3, 1], [0, 0, 3]]


def test_shots_of_another_file_with_a_spare_are_those_of_lm_eval() -> None:
    asked = [Row(index, "", {"id": value}) for index, value in enumerate([20, 2, 21, 1, 22, 3])]
    shots = SeededShots(POOL, 3, 1234, shared=False, draw_extra_shot=True)
    drawn = [ids(shots.before(row)) for row in asked]
    assert drawn == [[14, 1, 0], [1, 10, 11], [3, 12, 5], [0, 15, 12], [11, 10, 9], [14, 2, 1]]


def test_without_a_spare_only_the_shot_that_is_the_question_is_another() -> None:
    drawn_by_lm_eval = [[14, 1, 0], [2, 14, 12], [1, 10, 11], [2, 1, 12], [11, 3, 0], [0, 12, 15]]
    drawn_by_lm_eval += [[11, 10, 9], [15, 9, 7], [4, 1, 2], [3, 13, 0], [15, 14, 3], [2, 10, 8]]
    drawn_by_lm_eval += [[14, 1, 9], [2, 8, 9], [1, 4, 13], [2, 10, 4]]
    shots = SeededShots(POOL, 3, 1234, shared=True, draw_extra_shot=False)
    for row, theirs in zip(POOL, drawn_by_lm_eval, strict=True):
        ours = ids(shots.before(row))
        if row["id"] in theirs:
            assert row["id"] not in ours
        assert [n for n in ours if n in theirs] == [n for n in theirs if n != row["id"]]


def test_a_row_of_another_file_with_the_same_number_is_no_question() -> None:
    asked = Row(3, "", {"id": 99})
    shots = SeededShots(POOL[:4], 3, 0, shared=False, draw_extra_shot=True)
    assert len(ids(shots.before(asked))) == 3
    assert {3} <= {number for _ in range(9) for number in ids(shots.before(asked))}


def test_a_row_that_does_not_equal_itself_is_not_its_own_example() -> None:
    pool = [Row(i, "", {"id": i, "score": float("nan")}) for i in range(4)]
    again = [Row(i, "", {"id": i, "score": float("nan")}) for i in range(4)]
    shots = SeededShots(pool, 3, 1234, shared=True)
    for row in again:
        assert set(ids(shots.before(row))) == {0, 1, 2, 3} - {row.index}


@given(
    st.lists(st.integers(0, 5) | st.just(float("nan")), min_size=3, unique=True),
    st.integers(0, 2**32),
    st.booleans(),
    st.data(),
)
def test_no_row_is_ever_its_own_example(
    values: list[float], seed: int, draw_extra_shot: bool, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(values) - 1))
    pool = [Row(index, "", {"id": value}) for index, value in enumerate(values)]
    shots = SeededShots(pool, count, seed, shared=True, draw_extra_shot=draw_extra_shot)
    for row in pool:
        found = [shot.index for shot in shots.before(row)]
        assert len(found) == len(set(found)) == count
        assert row.index not in found


def fixed(count: int, pool: Any) -> Callable[[Row], Sequence[Row]]:
    suite = Generation(data=[], prompt="q", target="a", num_fewshot=count, fixed_shots=True)
    return suite.choose_shots(Split(pool))


def test_fixed_shots_are_the_first_rows() -> None:
    assert ids(fixed(2, POOL)(POOL[5])) == [0, 1]


def test_too_few_rows_say_how_many_are_needed() -> None:
    with pytest.raises(ConfigurationError) as caught:
        SeededShots(POOL[:3], 3, 1234, shared=True)
    assert str(caught.value) == (
        "3 of 4 few-shot rows found, one of them the question itself; lower num_fewshot, or name "
        "a fewshot_data with more rows"
    )
    with pytest.raises(ConfigurationError, match="3 of 5 few-shot rows found;"):
        fixed(5, POOL[:3])


def test_as_many_rows_of_ones_own_as_are_shown_are_enough() -> None:
    shots = SeededShots(POOL[:3], 3, 1234, shared=False, draw_extra_shot=True)
    assert sorted(ids(shots.before(POOL[5]))) == [0, 1, 2]


def test_rows_that_are_all_the_question_itself_can_show_nothing() -> None:
    same = rows([1, 1, 1])
    with pytest.raises(ConfigurationError, match=r"0 of [0-9]+ few-shot rows found"):
        SeededShots(same, 1, 1234, shared=True).before(same[0])
