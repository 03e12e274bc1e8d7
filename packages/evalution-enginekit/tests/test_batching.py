"""Padded batches within a budget, and work that threads share."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import batches, batching

LENGTHS = st.lists(st.integers(0, 40), max_size=30)


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(1, 100), st.none() | st.integers(1, 5))
def test_each_row_is_in_one_batch_within_the_budget(
    lengths: list[int], budget: int, most: int | None
) -> None:
    made = list(batches(lengths, token_budget=budget, max_batch_size=most))
    assert sorted(index for batch in made for index in batch) == list(range(len(lengths)))
    for batch in made:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= budget or len(batch) == 1
        assert most is None or len(batch) <= most


@settings(deadline=None, max_examples=100)
@given(LENGTHS, st.integers(1, 100))
def test_longest_rows_come_first_and_equal_ones_keep_their_order(
    lengths: list[int], budget: int
) -> None:
    order = [index for batch in batches(lengths, token_budget=budget) for index in batch]
    assert order == sorted(order, key=lambda index: (-lengths[index], index))


@pytest.mark.parametrize("worth", [0.0, 1e9])
def test_threads_give_results_in_the_order_of_the_items(
    monkeypatch: pytest.MonkeyPatch, worth: float
) -> None:
    monkeypatch.setattr(batching, "_WORTH_S", worth)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    names: set[str] = set()

    def double(number: int) -> int:
        names.add(threading.current_thread().name)
        return 2 * number

    items = list(range(100))
    assert batching.map_in_threads(double, items) == [2 * number for number in items]
    assert (len(names) > 1) == (worth == 0.0)


def test_the_first_error_of_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_WORTH_S", 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with pytest.raises(ZeroDivisionError):
        batching.map_in_threads(lambda number: 1 // (number - 70), list(range(100)))
