"""Padded batches within a budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import batches

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
