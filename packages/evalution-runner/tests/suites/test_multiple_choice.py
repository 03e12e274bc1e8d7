from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution import MultipleChoice
from evalution_core import Capability, ConfigurationError, LoglikelihoodOutput

ROWS = [
    {"question": "1 + 1?", "options": ["1", "two", "3"], "right": 1},
    {"question": "1 + 2?", "options": ["3", "two", "1"], "right": "3"},
    {"question": "2 + 2?", "options": ["1", "two", "4"], "right": 2},
]
OPTIONS: dict[str, Any] = {
    "data": ROWS,
    "prompt": "Q: {question}\nA:",
    "choices": "options",
    "target": "right",
}


def score(choices: list[str], outputs: list[tuple[float, int]], gold: int) -> Mapping[str, float]:
    row = {"q": "x", "choices": choices, "gold": gold}
    suite = MultipleChoice(data=[row], prompt="q", choices="choices", target="gold")
    sample = next(suite.samples())
    found = suite.score(sample, [LoglikelihoodOutput(sum_, None, n) for sum_, n in outputs])
    return {name: measure.value for name, measure in found.measures.items() if measure}


def test_a_choice_with_the_text_of_the_right_one_is_right() -> None:
    found = score(["a", "b", "a"], [(-1.0, 1), (-2.0, 1), (-1.0, 1)], 2)
    assert set(found.values()) == {1.0}


def test_each_choice_is_one_request_with_the_delimiter_before_it() -> None:
    sample = next(MultipleChoice(**OPTIONS).samples())
    pairs = [(request.context, request.continuation) for request in sample.requests]  # pyright: ignore[reportAttributeAccessIssue]
    assert pairs == [("Q: 1 + 1?\nA:", " 1"), ("Q: 1 + 1?\nA:", " two"), ("Q: 1 + 1?\nA:", " 3")]
    assert sample.target == "two"


def test_the_target_is_an_index_or_a_text() -> None:
    assert [sample.gold for sample in MultipleChoice(**OPTIONS).samples()] == [1, 0, 2]


def test_four_ways_to_compare_choices() -> None:
    choices = ["a", "ééééé", "bbbbbbbb", "c d e"]
    outputs = [(-2.0, 1), (-6.0, 5), (-7.0, 4), (-8.0, 16)]
    winners = {"acc": 0, "acc_norm": 2, "acc_bytes": 1, "acc_token": 3}
    for gold in range(4):
        expected = {metric: float(winner == gold) for metric, winner in winners.items()}
        assert score(choices, outputs, gold) == expected


@pytest.mark.parametrize(("name", "hint"), [("acc_nrom", "; did you mean 'acc_norm'?"), ("f1", "")])
def test_a_metric_that_a_suite_of_choices_cant_measure_is_named(name: str, hint: str) -> None:
    class Own(MultipleChoice):
        metric_names = ("acc", name)

    with pytest.raises(ConfigurationError) as caught:
        Own(**OPTIONS)
    possible = "(possible: acc, acc_norm, acc_bytes, acc_token)"
    assert str(caught.value) == f"suite Own: metric_names has {name!r}{hint} {possible}"


def test_characters_and_bytes_differ_outside_ascii() -> None:
    found = score(["ééé", "bbbb"], [(-3.0, 1), (-3.6, 1)], gold=0)
    assert (found["acc_norm"], found["acc_bytes"]) == (0.0, 1.0)


def test_the_first_of_equals_is_chosen() -> None:
    equal = [(-1.0, 1)] * 3
    assert set(score(["a", "b", "c"], equal, gold=0).values()) == {1.0}
    assert set(score(["a", "b", "c"], equal, gold=2).values()) == {0.0}


@given(
    st.lists(st.tuples(st.floats(-1e3, -1e-3), st.integers(1, 9)), min_size=2, max_size=5),
    st.data(),
)
def test_exactly_one_choice_is_right_by_each_metric(
    outputs: list[tuple[float, int]], data: st.DataObject
) -> None:
    text = st.text(min_size=1, max_size=5, alphabet=st.characters(exclude_categories=["Cs"]))
    count = len(outputs)
    choices = data.draw(st.lists(text, min_size=count, max_size=count, unique=True))
    scores = [score(choices, outputs, gold) for gold in range(len(outputs))]
    for metric in ("acc", "acc_norm", "acc_bytes", "acc_token"):
        assert sum(found[metric] for found in scores) == 1.0


def test_choices_may_be_templates() -> None:
    suite = MultipleChoice(
        data=[{"q": "x", "a": "one", "gold": 1}],
        prompt="q",
        choices=["no", "yes, {a}"],
        target="gold",
    )
    sample = next(suite.samples())
    assert (list(sample.choices), sample.gold) == (["no", "yes, one"], 1)


def test_choices_in_memory_may_be_a_tuple() -> None:
    suite = MultipleChoice(**{**OPTIONS, "data": [{**ROWS[0], "options": ("1", "two")}]})
    assert list(next(suite.samples()).choices) == ["1", "two"]


def test_one_choice_is_none() -> None:
    with pytest.raises(ConfigurationError, match="must hold at least two texts to choose from"):
        MultipleChoice(**{**OPTIONS, "choices": ["yes"]})


def test_solved_rows_stand_before_the_question() -> None:
    suite = MultipleChoice(**OPTIONS, num_fewshot=2, fixed_shots=True)
    (sample,) = suite.samples()
    assert sample.index == 2
    assert sample.prompt == "Q: 1 + 1?\nA: two\n\nQ: 1 + 2?\nA: 3\n\nQ: 2 + 2?\nA:"


def test_in_a_chat_each_solved_row_is_a_turn() -> None:
    suite = MultipleChoice(**OPTIONS, num_fewshot=1, fixed_shots=True, apply_chat_template=True)
    request: Any = next(suite.samples()).requests[0]
    assert [(message["role"], message["content"]) for message in request.messages] == [
        ("user", "Q: 1 + 1?\nA:"),
        ("assistant", "two"),
        ("user", "Q: 1 + 2?\nA:"),
    ]
    assert request.continuation == "3"
    assert suite.needs == {Capability.LOGLIKELIHOOD, Capability.CHAT}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"right": 3},
            "column 'right' holds 3, which is neither the text of a choice nor an index",
        ),
        ({"right": -1}, "column 'right' holds -1"),
        ({"right": True}, "column 'right' holds True, which is neither"),
        ({"right": "four"}, "holds 'four', which is neither"),
        (
            {"right": "C"},
            "index from 0 to 2; write its index (C is 2), or show the letters in the prompt and "
            "choose among them: choices: [A, B, C]",
        ),
        ({"right": ""}, "holds '', which is neither"),
        (
            {"options": "abc"},
            "column 'options' holds no list of choices, but 'abc'; in a table name one column for "
            'each choice: choices: ["{a}", "{b}"]',
        ),
        ({"options": []}, "column 'options' holds no list of choices, but []"),
        ({"options": ["1"], "right": 0}, "there must be at least two choices, got ['1']"),
        ({"options": ["a", ""]}, "a choice must be a text that isn't empty, got ''"),
        ({"options": ["a", 2]}, "a choice must be a text that isn't empty, got 2"),
    ],
)
def test_a_wrong_row_is_named(row: dict[str, Any], message: str) -> None:
    suite = MultipleChoice(**{**OPTIONS, "data": [ROWS[0], {**ROWS[0], **row}]})
    with pytest.raises(ConfigurationError) as caught:
        suite.check_samples()
    assert "suite 'rows': row 1 of data: " in str(caught.value)
    assert message in str(caught.value)


def test_a_letter_beyond_the_choices_gets_no_advice() -> None:
    suite = MultipleChoice(**{**OPTIONS, "data": [{**ROWS[0], "right": "D"}]})
    with pytest.raises(ConfigurationError, match=r"nor an index from 0 to 2\Z"):
        suite.check_samples()


def find_gold(row: dict[str, Any], choices: str | list[str]) -> int:
    suite = MultipleChoice(data=[row], prompt="q", choices=choices, target="gold")
    return next(suite.samples()).gold


def test_a_number_that_is_a_choice_and_the_index_of_another_is_refused_in_a_table() -> None:
    columns, texts = ["{a}", "{b}", "{c}"], {"q": "x", "a": "1", "b": "2", "c": "0"}
    with pytest.raises(ConfigurationError) as caught:
        find_gold({**texts, "gold": "1"}, columns)
    assert str(caught.value) == (
        "row 0 of data: column 'gold' holds '1', which is the text of choice 0 and the index of "
        "'2'; make a .jsonl file of the rows, with a list of the choices in a column: there 1 is "
        'an index and "1" a text'
    )
    cells = {"q": "x", "a": 1, "b": 2, "c": 0}  # as in a workbook
    for row in (cells, texts):
        with pytest.raises(ConfigurationError, match="holds 1, which is the text of choice 0 and"):
            find_gold({**row, "gold": 1}, columns)
    assert find_gold({**cells, "c": 7, "gold": 0}, columns) == 0
    listed = {"q": "x", "choices": ["1", "2", "0"]}
    assert find_gold({**listed, "gold": "1"}, "choices") == 0
    assert find_gold({**listed, "gold": 1}, "choices") == 1


def test_choices_that_are_names_of_columns_are_refused_unless_the_prompt_shows_them() -> None:
    row = {"q": "Snow? A. white", "A": "white", "B": "red", "gold": 0, "bare": "Snow?"}
    options: dict[str, Any] = {"data": [row], "choices": ["A", "B"], "target": "gold"}
    with pytest.raises(ConfigurationError) as caught:
        MultipleChoice(**options, prompt="bare").check_samples()
    assert str(caught.value) == (
        "suite 'rows': row 0 of data: choices are names of columns (A, B); for their texts write "
        'choices: ["{A}", "{B}"]; for the names themselves show the columns in the prompt, or '
        "rename them"
    )
    for prompt in ("q", "{bare} A. {A} B. {B}"):
        assert MultipleChoice(**options, prompt=prompt).check_samples() == 1
    other = {**options, "choices": ["A", "C"]}
    assert MultipleChoice(**other, prompt="bare").check_samples() == 1


def test_numbers_of_a_typed_table_are_texts_of_choices() -> None:
    row = {"q": "1+1?", "a": 2, "b": 3.5}
    assert find_gold({**row, "gold": 2}, ["{a}", "{b}"]) == 0
    assert find_gold({**row, "gold": 3.5}, ["{a}", "{b}"]) == 1
    for gold in (4, "9" * 5000):
        with pytest.raises(ConfigurationError, match="which is neither the text of a choice nor"):
            find_gold({**row, "gold": gold}, ["{a}", "{b}"])


@pytest.mark.parametrize(("gold", "index"), [("5", 1), ("2", 2), ("0", 0), ("9" * 5000, 3)])
def test_a_number_with_one_meaning_is_taken_as_that(gold: str, index: int) -> None:
    texts = {"q": "x", "a": "3", "b": "5", "c": "2", "d": "9" * 5000}
    assert find_gold({**texts, "gold": gold}, ["{a}", "{b}", "{c}", "{d}"]) == index
