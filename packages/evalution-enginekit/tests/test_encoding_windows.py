"""Rolling windows: each token scored once and in order, never more fed than the model takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import InvalidRequestError
from evalution_core.encoding import rolling_windows, strip_leading
from evalution_enginekit import ByteTokenizer

PREFIX = -1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 20))
def test_each_token_is_scored_once_with_what_fits_before_it(length: int, size: int) -> None:
    text = list(range(length))
    windows = rolling_windows(text, PREFIX, size)
    scored = [i for window in windows for i in window.token_ids[window.start :]]
    assert scored == text
    for window in windows:
        assert 1 <= len(window.fed) <= size
        first = window.token_ids[0]
        assert list(window.token_ids[1:]) == text[first + 1 : first + len(window.token_ids)]
    assert windows[0].token_ids[0] == PREFIX
    assert all(window.start == 1 for window in windows[:-1])
    assert all(len(window.fed) == size for window in windows[1:])


def test_no_tokens_give_no_windows() -> None:
    assert rolling_windows([], PREFIX, 4) == []


@pytest.mark.parametrize(
    ("text", "adds_bos", "expected"),
    [
        ("ab", True, [97, 98]),
        ("<bos>ab", True, [97, 98]),
        ("<bos><bos>ab", True, [256, 97, 98]),
        ("<bos>ab", False, [97, 98]),
        ("<eos>ab", True, [257, 97, 98]),
        ("ab<bos>", True, [97, 98, 256]),
    ],
)
def test_the_leading_token_is_never_scored(text: str, adds_bos: bool, expected: list[int]) -> None:
    tokenizer = ByteTokenizer(adds_bos=adds_bos)
    assert strip_leading(tokenizer, tokenizer.encode(text)) == expected


def test_a_text_of_only_the_leading_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least one token of text to score"):
        strip_leading(ByteTokenizer(), [256])
