"""Padded batches within a budget, and what is learnt from running out of memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import BatchLimits, batches, run_halving

LENGTHS = st.lists(st.integers(0, 40), max_size=30)


class FullMemory(RuntimeError):
    """What a runtime raises when a batch doesn't fit."""


@settings(deadline=None, max_examples=200)
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


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 30), max_size=24), st.integers(30, 200))
def test_halving_gives_all_results_in_order_and_never_repeats_a_size_that_failed(
    lengths: list[int], memory: int
) -> None:
    tried: list[list[int]] = []

    def run(rows: Sequence[int]) -> list[int]:
        tried.append(list(rows))
        if len(rows) * max(rows) > memory:
            raise FullMemory
        return [-row for row in rows]

    limits = BatchLimits()
    options = {"length": lambda row: row, "limits": limits, "out_of_memory": FullMemory}
    results = run_halving(lengths, run, **options)  # pyright: ignore[reportArgumentType]
    assert results == [-row for row in lengths]
    failures = sum(len(rows) * max(rows) > memory for rows in tried)
    tried.clear()
    assert run_halving(lengths, run, **options) == results  # pyright: ignore[reportArgumentType]
    assert sum(len(rows) * max(rows) > memory for rows in tried) <= failures


def test_a_size_that_failed_is_not_tried_again_for_rows_as_long() -> None:
    sizes: list[int] = []

    def run(rows: Sequence[int]) -> list[int]:
        sizes.append(len(rows))
        if len(rows) > 2:
            raise FullMemory
        return list(rows)

    limits = BatchLimits()
    for _ in range(2):
        run_halving(
            [16] * 6, run, length=lambda row: row, limits=limits, out_of_memory=(FullMemory,)
        )
    assert sizes == [6, 3, 2, 1, 2, 1, 2, 2, 2]
    assert limits.limit(16) == 2
    assert limits.limit(200) == 2, "longer rows need no less memory"
    assert limits.limit(3) is None, "shorter rows may still fit"


def test_a_row_that_does_not_fit_alone_raises_the_runtimes_own_error() -> None:
    def run(_: Sequence[int]) -> list[int]:
        raise FullMemory("8 GiB short")

    with pytest.raises(FullMemory, match="8 GiB short"):
        run_halving([1, 2], run, length=len_of, limits=BatchLimits(), out_of_memory=FullMemory)


def test_other_errors_are_not_taken_for_full_memory() -> None:
    calls: list[int] = []

    def run(rows: Sequence[int]) -> list[int]:
        calls.append(len(rows))
        raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        run_halving([1, 2], run, length=len_of, limits=BatchLimits(), out_of_memory=FullMemory)
    assert calls == [2]


def len_of(row: int) -> int:
    return row
