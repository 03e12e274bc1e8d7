"""Which rows are taken, in what order, and that neither changes what a row is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution import Generation, MultipleChoice
from evalution.suites.row_suite import parse_order
from evalution_core import ConfigurationError

ROWS = [{"q": "x" * (7 * i % 5) + str(i), "a": str(i)} for i in range(12)]


def suite(**options: Any) -> Generation:
    return Generation(**{"data": ROWS, "prompt": "q", "target": "a", **options})


def indices(**options: Any) -> list[int]:
    return [sample.index for sample in suite(**options).samples()]


def prompts(**options: Any) -> dict[int, object]:
    return {sample.index: sample.prompt for sample in suite(**options).samples()}


def test_row_indices_are_taken_in_their_order_and_bounded_from_the_front() -> None:
    assert indices(row_indices=[7, 0, 3]) == [7, 0, 3]
    assert indices(row_indices=[7, 0, 3], max_rows=2) == [7, 0]
    assert [sample.index for sample in suite(row_indices=(5, 4)).samples(1)] == [5]


def test_what_was_selected_is_then_ordered() -> None:
    shuffled = indices(order="shuffle|3", max_rows=6)
    assert sorted(shuffled) == list(range(6))
    assert shuffled != list(range(6))
    assert shuffled == indices(order="shuffle|3", max_rows=6)
    assert shuffled != indices(order="shuffle|4", max_rows=6)
    assert indices(order="shuffle") == indices(order="shuffle|0")
    assert set(indices(order="length|asc", row_indices=[9, 2])) == {9, 2}


def test_length_is_that_of_the_longest_request_and_equals_keep_their_order() -> None:
    lengths = [len(row["q"]) for row in ROWS]
    expected = sorted(range(12), key=lambda i: lengths[i])
    assert indices(order="length|asc") == expected
    assert indices(order="length|desc") == sorted(range(12), key=lambda i: -lengths[i])


@pytest.mark.parametrize("chat", [False, True])
def test_length_counts_choices_and_messages(chat: bool) -> None:
    rows = [{"q": "aaa", "c": ["b", "c"], "r": 0}, {"q": "a", "c": ["b", "cccccc"], "r": 0}]
    choices = MultipleChoice(
        data=rows,
        prompt="q",
        choices="c",
        target="r",
        order="length|desc",
        apply_chat_template=chat,
    )
    assert [sample.index for sample in choices.samples()] == [1, 0]


@given(
    picked=st.lists(st.integers(0, 11), min_size=1, unique=True),
    order=st.sampled_from(["native", "shuffle|7", "length|asc", "length|desc"]),
    shots=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_no_selection_changes_what_a_row_is_asked(
    picked: list[int], order: str, shots: int, seed: int
) -> None:
    whole = prompts(num_fewshot=shots, fewshot_seed=seed)
    part = prompts(num_fewshot=shots, fewshot_seed=seed, row_indices=picked, order=order)
    assert part == {index: whole[index] for index in picked}


def test_rows_after_the_last_that_is_wanted_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": "a", "a": "b"}\n{"q": "c", "a": "d"}\nno json\n', encoding="utf-8")
    assert indices(data=str(path), row_indices=[1, 0]) == [1, 0]
    assert indices(data=str(path), max_rows=2) == [0, 1]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("native", "native"),
        (" Shuffle | 42 ", "shuffle|42"),
        ("SHUFFLE", "shuffle|0"),
        ("length | DESC", "length|desc"),
        ("length|asc", "length|asc"),
    ],
)
def test_an_order_is_spelt_freely_and_shown_in_one_way(text: str, order: str) -> None:
    assert parse_order(text) == order
    assert parse_order(order) == order
    assert suite(order=text).to_dict()["order"] == str(order)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("shufle", "shuffle"),
        ("length", "length|asc"),
        ("length|dsc", "length|desc"),
        ("nativ", "native"),
        ("shuffle|x", "shuffle"),
        ("shuffle|-1", "shuffle"),
    ],
)
def test_an_order_that_is_none_names_those_there_are(text: str, near: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        suite(order=text)
    told = str(caught.value)
    assert told.startswith(
        "option 'order' of suite Generation must be one of native, shuffle, shuffle|<seed>, "
        "length|asc, length|desc (did you mean "
    )
    assert near in told.rpartition("(did you mean")[2]
    assert told.endswith(f"got {text!r}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_rows": 0},
            "'max_rows' of suite Generation must be at least 1",
        ),
        ({"row_indices": []}, "option 'row_indices' of suite Generation must name at least one"),
        (
            {"row_indices": [2, -1]},
            "'row_indices.1' of suite Generation must be at least 0",
        ),
        ({"row_indices": [4, 2, 4]}, "must name each row once, but row 4 stands in it twice"),
        ({"row_indices": ["2"]}, "option 'row_indices.0' of suite Generation"),
        ({"row_indices": [True]}, "option 'row_indices.0' of suite Generation"),
        ({"row_indices": 3}, "option 'row_indices' of suite Generation"),
        ({"order": 3}, "option 'order' of suite Generation"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        suite(**options)
    assert message in str(caught.value)


def test_a_row_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError) as caught:
        suite(row_indices=[3, 12, 40]).check_samples()
    assert str(caught.value) == (
        "suite 'rows': row_indices names row 12, but data holds rows 0 to 11"
    )


def test_a_fixed_few_shot_row_cannot_be_evaluated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        suite(row_indices=[5, 1], num_fewshot=2, fixed_shots=True).check_samples()
    assert "row_indices names row 1, but the first 2 rows are the few-shot rows" in str(
        caught.value
    )
    assert indices(row_indices=[5, 2], num_fewshot=2, fixed_shots=True) == [5, 2]
