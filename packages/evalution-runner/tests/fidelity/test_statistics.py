"""Figures of a suite: means, quantiles, bins, and intervals clustered by document."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution.fidelity.divergence import FIGURES, Figures
from evalution.fidelity.statistics import (
    bin_by_entropy,
    bin_by_position,
    bound_logarithm,
    estimate_contrast,
    estimate_mean,
    make_histogram,
    summarize,
)
from evalution.scoring.intervals import two_sided_quantile


def make_figures(kl: list[float], **fields: list[float] | list[bool]) -> Figures:
    figures = np.zeros(len(kl), FIGURES)
    figures["kl"] = kl
    figures["covered"] = 1.0
    for name, values in fields.items():
        figures[name] = values
    return figures


def draw_corpus(draw: np.random.Generator, documents: int) -> tuple[Figures, np.ndarray]:
    """Log-normal levels of documents and positions, and log-normal lengths; the mean is 1."""
    lengths = np.clip(np.exp(3.5 + 0.7 * draw.normal(size=documents)), 1, 900).astype(int)
    numbers = np.repeat(np.arange(documents), lengths)
    level = np.exp(0.5 * draw.normal(size=documents) - 0.125)[numbers]
    figures = np.zeros(len(numbers), FIGURES)
    figures["kl"] = level * np.exp(draw.normal(size=len(numbers)) - 0.5)
    return figures, numbers


def test_summary_of_a_few_positions() -> None:
    figures = make_figures(
        [0.0, 0.4, 0.2, 1.4],
        dp=[0.1, -0.1, 0.3, -0.3],
        reference_logprob=[-1.0, -1.0, -2.0, -2.0],
        logprob=[-1.5, -1.0, -2.5, -2.0],
        same_top=[True, True, True, False],
        top5_overlap=[1.0, 1.0, 0.6, 0.6],
        reference_entropy=[1.0, 2.0, 3.0, 4.0],
        entropy=[math.nan] * 4,
    )
    found = summarize(figures, np.array([0, 0, 1, 1]))
    assert found.positions == 4
    assert found.kl.value == pytest.approx(0.5)
    assert (found.median, found.maximum) == (pytest.approx(0.3), 1.4)
    assert found.p95 == pytest.approx(np.quantile(figures["kl"], 0.95))
    assert found.top_share == pytest.approx(0.7)
    assert found.rms_dp == pytest.approx(math.sqrt(0.05))
    assert found.same_top.value == 0.75
    assert found.top5_overlap == pytest.approx(0.8)
    assert found.log_ppl_ratio.value == pytest.approx(0.25)
    assert found.log_ppl_ratio.low == found.log_ppl_ratio.high == pytest.approx(0.25)
    assert (found.entropy_reference, found.entropy) == (2.5, None)
    assert (found.covered, found.infinite, found.is_lower_bound) == (1.0, 0, False)


def test_infinite_positions_are_counted_and_left_out_of_the_mean() -> None:
    figures = make_figures([0.1, math.inf, 0.3, 0.2], reverse_kl=[1.0, 1.0, 1.0, math.inf])
    found = summarize(figures, np.array([0, 0, 1, 2]))
    assert found.kl.value == pytest.approx(0.2)
    assert (found.infinite, found.maximum, found.p999) == (1, math.inf, math.inf)
    assert found.median == pytest.approx(0.25)
    assert found.top_share == pytest.approx(0.5)
    assert (found.reverse_kl.value, found.reverse_infinite) == (1.0, 1)
    assert estimate_contrast(figures, figures, np.array([0, 0, 1, 2])).value == 0.0
    elsewhere = make_figures([math.inf, 0.2, 0.3, 0.2])
    assert estimate_contrast(figures, elsewhere, np.array([0, 0, 1, 2])).value == math.inf
    assert summarize(make_figures([math.inf]), np.array([0])).kl.value == math.inf


def test_equal_sides_and_a_single_document() -> None:
    found = summarize(make_figures([0.0] * 4, same_top=[True] * 4), np.array([0, 1, 2, 2]))
    assert (found.kl.low, found.kl.high, found.top_share) == (0.0, 0.0, 0.0)
    # Wilson's interval of 4 of 4, with the t quantile of 1.67 degrees of freedom.
    assert found.same_top.high == 1.0
    assert found.same_top.low == pytest.approx(4 / (4 + two_sided_quantile(0.05, 5 / 3) ** 2))
    alone = summarize(make_figures([0.1, 0.2]), np.array([7, 7]))
    assert (alone.kl.low, alone.kl.high) == (None, None)


def test_documents_of_one_position_have_the_interval_of_student() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 6.0])
    found = estimate_mean(values, np.arange(5))
    assert found.low is not None
    assert found.high is not None
    # t(4) = 2.7764, from any table.
    error = values.std(ddof=1) / math.sqrt(5)
    assert found.high - 3.2 == pytest.approx(3.2 - found.low) == pytest.approx(2.7764 * error, 1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.permutations(range(12)))
@settings(max_examples=15, deadline=None)
def test_names_and_order_of_documents_change_no_interval(
    seed: int, documents: int, names: list[int]
) -> None:
    draw = np.random.default_rng(seed)
    figures, numbers = draw_corpus(draw, documents)
    order = draw.permutation(len(numbers))
    found = summarize(figures, numbers)
    other = summarize(figures[order], np.array(names)[numbers][order])
    for name in ("kl", "same_top"):
        here, there = getattr(found, name), getattr(other, name)
        assert (here.value, here.low, here.high) == pytest.approx(
            (there.value, there.low, there.high)
        )
    assert found.kl.low is not None
    assert found.kl.high is not None
    assert 0 <= found.kl.low <= found.kl.value <= found.kl.high


def test_intervals_of_few_unequal_skewed_documents_hold_the_truth() -> None:
    draw = np.random.default_rng(3)
    missed = 0
    for _ in range(300):
        figures, numbers = draw_corpus(draw, 12)
        found = estimate_mean(figures["kl"], numbers, bound_logarithm)
        assert found.low is not None
        assert found.high is not None
        missed += not found.low <= 1.0 <= found.high
    # 15 are expected; 2.5 standard deviations either way.
    assert 6 <= missed <= 24


def test_bins_hold_every_position_once() -> None:
    figures = make_figures(
        [0.0, 1e-9, 2e-8, 0.5, 200.0, math.inf],
        reference_entropy=[0.0, 0.05, 0.3, 2.5, 2.6, 11.0],
    )
    histogram = make_histogram(figures)
    assert [made.high for made in histogram[:-1]] == [made.low for made in histogram[1:]]
    assert [made.positions for made in histogram if made.positions] == [2, 1, 1, 2]
    assert (histogram[0].low, histogram[-1].high, histogram[-1].kl) == (0.0, math.inf, math.inf)
    assert [(made.low, made.high, made.positions) for made in bin_by_entropy(figures)] == [
        (0.0, 0.1, 2),
        (0.1, 0.5, 1),
        (2.0, 3.0, 2),
        (8.0, math.inf, 1),
    ]
    by_position = bin_by_position(figures, np.array([0, 1, 2, 3, 4, 9]))
    assert [(made.low, made.high, made.positions) for made in by_position] == [
        (0, 1, 1), (1, 2, 1), (2, 4, 2), (4, 8, 1), (8, 16, 1),
    ]  # fmt: skip
    assert by_position[2].kl == pytest.approx((2e-8 + 0.5) / 2)
    figures["reference_entropy"] = math.nan
    assert bin_by_entropy(figures) == []
