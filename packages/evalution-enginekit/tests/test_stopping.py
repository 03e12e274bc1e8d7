"""Stop strings: the same cut however the text arrives, and nothing told that is taken back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit.generation import StopMatcher

LETTERS = st.sampled_from("abé")
TEXTS = st.text(LETTERS, max_size=24)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4)
CUTS = st.lists(st.integers(0, 24), max_size=8)


def first_complete(text: str, stops: list[str]) -> int | None:
    """Brute force: where the longest stop string begins that ends first."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end - max(map(len, ending))
    return None


def pieces(text: str, cuts: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[a:b] for a, b in pairwise(bounds)]


@settings(deadline=None, max_examples=100)
@given(TEXTS, STOPS, CUTS)
def test_any_chunking_finds_the_stop_that_is_complete_first(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    for piece in pieces(text, cuts):
        if matcher.push(piece):
            break
    assert matcher.cut == first_complete(text, stops)


@settings(deadline=None, max_examples=100)
@given(TEXTS, STOPS, CUTS)
def test_certain_text_only_grows_and_is_never_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    told = [0]
    for piece in pieces(text, cuts):
        matcher.push(piece)
        told.append(matcher.certain)
    assert told == sorted(told)
    found = first_complete(text, stops)
    assert told[-1] <= (len(text) if found is None else found)


@settings(deadline=None, max_examples=60)
@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_a_stop_string_could_need(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    if not matcher.push(text):
        held = text[matcher.certain :]
        assert held == max(
            (
                text[at:]
                for at in range(len(text) + 1)
                if not text[at:] or any(stop.startswith(text[at:]) for stop in stops)
            ),
            key=len,
        )


def test_the_stop_complete_first_wins_over_the_one_begun_first() -> None:
    matcher = StopMatcher(["abcdef", "c"])
    assert matcher.push("xabcdef")
    assert matcher.cut == 3


def test_text_after_the_stop_changes_nothing() -> None:
    matcher = StopMatcher(["b"])
    assert not matcher.push("a")
    assert matcher.push("b")
    assert matcher.push("b")
    assert (matcher.cut, matcher.certain) == (1, 1)
