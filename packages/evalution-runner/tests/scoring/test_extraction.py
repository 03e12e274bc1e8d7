"""Answers that are found by their question: choices, phrases, the order of words, numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.extraction import ChoiceFinder, NumberFinder, PhraseFinder, WordOrder

CHOICES = ["Guilty", "Guilty of Romance", "x² + 1", "no, never"]
NOTHING = "[invalid]"


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("(B), and not (A)", "(B)", "(A)"),
        ("It is (D) Guilty", "(D)", "(D)"),
        ("I say guilty OF romance!", "(B)", "(B)"),
        ("guilty? No; never: no, never", "(A)", "(D)"),
        ("Answer: C", "(C)", "(C)"),
        ("Answer: E", NOTHING, NOTHING),
        ("", NOTHING, NOTHING),
    ],
)
def test_a_choice_is_found_by_its_letter_or_its_text(text: str, first: str, last: str) -> None:
    assert ChoiceFinder(CHOICES).apply(text) == first
    assert ChoiceFinder(CHOICES, last=True).apply(text) == last


@given(st.text(), st.lists(st.text(), max_size=4), st.booleans())
def test_any_text_gives_a_letter_a_text_or_nothing(
    text: str, choices: list[str], last: bool
) -> None:
    assert ChoiceFinder(choices, last=last).apply(text)


def test_a_phrase_stands_for_its_value() -> None:
    patterns = {r"\b(no|not plausible)\b": "no", r"\b(yes|plausible)\b": "yes"}
    text = "Not plausible at first. Yes, PLAUSIBLE"
    assert PhraseFinder(patterns).apply(text) == "no"
    assert PhraseFinder(patterns, last=True).apply(text) == "yes"
    assert PhraseFinder(patterns).apply("perhaps") == NOTHING


def test_words_stand_in_the_order_of_their_last_places() -> None:
    finder = WordOrder(["oven", "costume", "a.b"])
    assert finder.apply("oven costume. No: costume, axb, ovens, oven") == "costume oven"
    assert finder.apply("nothing") == ""


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("It is 7, or -8.", "7", "-8"),
        ("Twenty one of them", "21", "21"),
        ("Twenty-one", "-", "-"),
        ("two hundred and five, not nine", "205", "9"),
        ("three million, two thousand and one", "3002001", "3002001"),
        ("none of it", "1", "1"),
        ("", NOTHING, NOTHING),
    ],
)
def test_a_number_is_found_in_digits_or_words(text: str, first: str, last: str) -> None:
    # As in lm-eval, a hyphen alone is taken, and a word may be part of another.
    assert NumberFinder().apply(text) == first
    assert NumberFinder(last=True).apply(text) == last
