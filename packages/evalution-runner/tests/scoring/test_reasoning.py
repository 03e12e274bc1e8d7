"""Which part of a text is the answer where a model thinks first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.filters import Reasoning, ReasoningSplit, split_reasoning, text_before_stop
from evalution_enginekit.generation import StopMatcher

END = "</t>"
letters = st.text("ab \n</t>", max_size=12)
thoughts = letters.filter(lambda text: END not in text and END not in text + END[:-1])
stop_lists = st.lists(st.text("ab \n", min_size=1, max_size=3), max_size=3)


@pytest.mark.parametrize(
    ("text", "is_cut_off", "answer", "thought"),
    [
        ("hm</t> 4", False, "4", Reasoning.ENDED),
        ("hm</t>\n\n4\n\nQuestion: 5", False, "4", Reasoning.ENDED),
        ("hm\n\nor so</t>4", False, "4", Reasoning.ENDED),
        ("hm</t>4 ", True, "4 ", Reasoning.ENDED),
        ("hm</t>a</t>b", False, "a</t>b", Reasoning.ENDED),
        ("</t>4", False, "4", Reasoning.ENDED),
        ("hm</t>", True, "", Reasoning.ENDED),
        (" 4", False, " 4", Reasoning.ABSENT),
        (" 4\n\nQuestion: 5", False, " 4", Reasoning.ABSENT),
        ("", False, "", Reasoning.ABSENT),
        ("hm\n\n4", True, "", Reasoning.UNFINISHED),
        ("hm</t", True, "", Reasoning.UNFINISHED),
    ],
)
def test_what_the_answer_is(text: str, is_cut_off: bool, answer: str, thought: Reasoning) -> None:
    found = split_reasoning(text, END, ["Question:", "\n\n"], is_cut_off=is_cut_off)
    assert found == ReasoningSplit(answer, thought)


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize(
    ("text", "answer", "thought"),
    [
        ("\n 4\n\nQuestion: 5", "4", Reasoning.CLOSED),
        ("", "", Reasoning.CLOSED),
        ("<t>hm</t> 4", "4", Reasoning.ENDED),
    ],
)
def test_behind_a_prompt_that_ended_the_thought_there_is_none(
    text: str, answer: str, thought: Reasoning, is_cut_off: bool
) -> None:
    stops = ["Question:", "\n\n"]
    found = split_reasoning(text, END, stops, is_cut_off=is_cut_off, is_closed=True)
    assert found == ReasoningSplit(answer, thought)


@given(thoughts, letters, stop_lists, st.booleans())
def test_no_thought_changes_an_answer(
    thought: str, rest: str, stops: list[str], is_cut_off: bool
) -> None:
    found = split_reasoning(f"{thought}{END}{rest}", END, stops, is_cut_off=is_cut_off)
    assert found == split_reasoning(f"{END}{rest}", END, stops, is_cut_off=is_cut_off)
    assert found == ReasoningSplit(text_before_stop(rest.lstrip(), stops), Reasoning.ENDED)


@given(st.text("ab \n", max_size=12), stop_lists)
def test_without_a_thought_stops_end_a_text_where_an_engine_ends_it(
    text: str, stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    for piece in text:
        matcher.push(piece)
    found = split_reasoning(text, END, stops, is_cut_off=False)
    assert found == ReasoningSplit(text[: matcher.cut], Reasoning.ABSENT)


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("4\n\nQuestion: 5", ["Question:", "\n\n"], "4"),
        ("4 Question: 5", ["Question:", "est"], "4 Qu"),
        ("4 end", ["d", "end"], "4 "),
        ("4", [], "4"),
    ],
)
def test_the_stop_that_is_complete_first_counts(text: str, stops: list[str], kept: str) -> None:
    assert text_before_stop(text, stops) == kept


@given(st.text("ab \n", max_size=12), stop_lists)
def test_an_answer_holds_no_stop_and_is_its_own_answer(text: str, stops: list[str]) -> None:
    answer = text_before_stop(text, stops)
    assert text.startswith(answer)
    assert not any(stop in answer for stop in stops)
    assert text_before_stop(answer, stops) == answer
    assert split_reasoning(answer, END, stops, is_cut_off=False).answer == answer


@given(st.text("ab \n", max_size=12), stop_lists)
def test_a_text_that_was_cut_off_in_its_thought_has_no_answer(text: str, stops: list[str]) -> None:
    assert split_reasoning(text, END, stops, is_cut_off=True) == ReasoningSplit(
        "", Reasoning.UNFINISHED
    )
