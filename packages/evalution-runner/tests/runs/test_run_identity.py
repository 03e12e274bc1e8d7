from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.runs.run_identity import (
    find_differences,
    find_free_name,
    format_differences,
)

leaves = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
trees = st.recursive(leaves, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3))


@given(trees, trees)
def test_only_equal_values_have_no_differences(before: Any, now: Any) -> None:
    assert (find_differences(before, now) == []) == (before == now)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b was 1, now 2"]),
        ({"a": 1}, {}, ["a was 1, now it isn't there"]),
        ({}, {"a": "x"}, ["a is 'x', it wasn't there"]),
        ({"a": {"b": 1}}, {}, ["a was asked for, now it isn't there"]),
        ({"a": {"b": 1}}, {"a": [1]}, ["a was {'b': 1}, now [1]"]),
        ({"a": False}, {"a": 0}, ["a was False, now 0"]),
        ({"a": [1]}, {"a": [True]}, ["a was [1], now [True]"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": "x" * 99}, {"a": None}, [f"a was '{'x' * 58}…, now None"]),
    ],
)
def test_difference_names_what_changed_and_both_values(
    before: Any, now: Any, expected: list[str]
) -> None:
    assert find_differences(before, now) == expected


def test_long_list_is_cut() -> None:
    assert (
        format_differences([str(number) for number in range(10)])
        == "0; 1; 2; 3; 4; 5; 6; 7; and 2 more"
    )


def test_names_are_made_different() -> None:
    assert [
        find_free_name("a", []),
        find_free_name("a", ["a"]),
        find_free_name("a", ["a", "a-2"]),
    ] == [
        "a",
        "a-2",
        "a-3",
    ]
