"""Figures of positions against a naive computation, and bounds from the likeliest tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalution.fidelity.divergence import (
    TopRows,
    compare_rows,
    compare_top,
    pack_top,
    select_top,
)
from evalution_core import EngineRuntimeError

DIVERGENCES = ("kl", "reverse_kl", "js")


def normalize(logits: NDArray[np.float64]) -> NDArray[np.float32]:
    logits = logits - logits.max(1, keepdims=True)
    return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


def draw_sides(
    seed: int, positions: int, vocabulary: int, noise: float, peak: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(positions, vocabulary)) * 3 * peak
    others = logits + draw.normal(size=logits.shape) * noise
    return normalize(logits), normalize(others), draw.integers(vocabulary, size=positions)


def compute_naively(p: NDArray[np.float64], q: NDArray[np.float64]) -> dict[str, NDArray]:
    def divergence(p: NDArray, q: NDArray) -> NDArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0).sum(1)

    middle = (p + q) / 2
    js = (divergence(p, middle) + divergence(q, middle)) / 2
    return {"kl": divergence(p, q), "reverse_kl": divergence(q, p), "js": js}


@pytest.mark.parametrize("noise", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("vocabulary", [2, 300, 40_000])
def test_figures_are_those_of_a_naive_computation(vocabulary: int, noise: float) -> None:
    reference, rows, token_ids = draw_sides(1, 2, vocabulary, noise)
    figures = compare_rows(reference, rows, token_ids)
    p, q = np.exp(reference.astype(np.float64)), np.exp(rows.astype(np.float64))
    for name, values in compute_naively(p / p.sum(1)[:, None], q / q.sum(1)[:, None]).items():
        np.testing.assert_allclose(figures[name], values, rtol=1e-5, atol=1e-9)
    at = np.arange(2), token_ids
    np.testing.assert_allclose(figures["dp"], q[at] - p[at], atol=1e-12)
    np.testing.assert_allclose(figures["reference_entropy"], -(p * np.log(p)).sum(1), rtol=1e-5)
    np.testing.assert_allclose(figures["entropy"], -(q * np.log(q)).sum(1), rtol=1e-5)
    count = min(5, vocabulary)
    best, others = (np.argsort(-side, 1, kind="stable")[:, :count] for side in (reference, rows))
    shared = [len(set(left) & set(right)) / count for left, right in zip(best, others, strict=True)]
    assert figures["top5_overlap"].tolist() == shared
    assert (figures["same_top"] == (best[:, 0] == others[:, 0])).all()
    assert (figures["covered"] == 1).all()


def test_a_difference_of_float32_rounding_is_no_divergence() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(8, 32_000)) * 3
    reference = normalize(logits)
    rows = normalize(logits + draw.normal(size=logits.shape) * 1e-6)
    figures = compare_rows(reference, rows, np.zeros(8, int))
    for name in DIVERGENCES:
        assert (figures[name] < 1e-11).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([1, 3, 17, 200]))
@settings(max_examples=10, deadline=None)
def test_equal_rows_have_no_divergence(seed: int, positions: int, vocabulary: int) -> None:
    reference, _, token_ids = draw_sides(seed, positions, vocabulary, 0.0)
    top = select_top(reference, min(3, vocabulary), token_ids)
    for figures in (
        compare_rows(reference, reference.copy(), token_ids),
        *(compare_top(left, right, token_ids) for left in (top, reference) for right in (top,)),
        compare_top(top, reference, token_ids),
    ):
        for name in (*DIVERGENCES, "dp"):
            assert (figures[name] == 0).all()
        assert figures["same_top"].all()
        assert (figures["top5_overlap"] == 1).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 20.0]), st.integers(2, 60))
@settings(max_examples=10, deadline=None)
def test_exchanged_sides_exchange_the_directions(seed: int, noise: float, vocabulary: int) -> None:
    reference, rows, token_ids = draw_sides(seed, 4, vocabulary, noise)
    top, other = (
        select_top(side, 4 if vocabulary > 4 else 2, token_ids) for side in (reference, rows)
    )
    for there, back in (
        (compare_rows(reference, rows, token_ids), compare_rows(rows, reference, token_ids)),
        (compare_top(top, other, token_ids), compare_top(other, top, token_ids)),
        (compare_top(top, rows, token_ids), compare_top(rows, top, token_ids)),
    ):
        np.testing.assert_allclose(there["kl"], back["reverse_kl"], rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(there["js"], back["js"], rtol=1e-4, atol=1e-9)
        np.testing.assert_array_equal(there["dp"], -back["dp"])


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-4, 0.1, 3.0, 30.0]),
    st.sampled_from([0.1, 1.0, 10.0]),
)
@settings(max_examples=15, deadline=None)
def test_a_bound_of_top_tokens_grows_with_them_up_to_the_exact_value(
    seed: int, noise: float, peak: float
) -> None:
    reference, rows, token_ids = draw_sides(seed, 3, 40, noise, peak)
    exact = compare_rows(reference, rows, token_ids)
    before: dict[tuple[int, str], NDArray] = {}
    for count in (1, 2, 5, 39, 40):
        top, other = (select_top(side, count, token_ids) for side in (reference, rows))
        cases = [(top, rows), (reference, other), (top, other)]
        for case, (left, right) in enumerate(cases):
            bound = compare_top(left, right, token_ids)
            assert (bound["covered"] <= 1).all()
            for name in DIVERGENCES:
                assert (bound[name] <= exact[name] * (1 + 1e-5) + 1e-9).all()
                # What is left for the rest is known to 1e-6 alone, which rounding moves.
                assert (bound[name] >= before.get((case, name), 0.0) - 1e-9).all()
                before[case, name] = bound[name]
    for values, name in zip(before.values(), DIVERGENCES * 3, strict=True):
        np.testing.assert_allclose(values, exact[name], rtol=1e-4, atol=1e-6)


def test_tokens_that_a_side_excludes() -> None:
    with np.errstate(divide="ignore"):
        reference, rows = (
            np.log(np.array(side, np.float32))
            for side in (
                [[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [1, 0, 0, 0], [0.5, 0.5, 0, 0]],
                [[0.25, 0.25, 0.5, 0], [0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, 0, 0.5, 0.5]],
            )
        )
    figures = compare_rows(reference, rows, np.array([0, 0, 0, 0]))
    assert figures["kl"].tolist() == pytest.approx([np.log(2), np.inf, 0, np.inf])
    assert figures["reverse_kl"].tolist() == pytest.approx([np.inf, np.inf, 0, np.inf])
    expected = compute_naively(np.exp(reference), np.exp(rows))["js"]
    assert figures["js"].tolist() == pytest.approx(expected.tolist())
    assert figures["js"][3] == pytest.approx(np.log(2))
    assert figures["entropy"].tolist() == pytest.approx([1.5 * np.log(2), np.log(2), 0, np.log(2)])


def test_log_probabilities_beyond_float32() -> None:
    reference = np.array([[0, -500, -2000], [-300, 0, -1]], np.float32)
    reference[1] = normalize(reference[1:].astype(np.float64))
    rows = np.array([[-500, 0, -90], [0, -300, -200]], np.float32)
    figures = compare_rows(reference, rows, np.array([0, 1]))
    assert figures["kl"][0] == pytest.approx(500)
    assert figures["reverse_kl"][0] == pytest.approx(500)
    assert figures["js"].tolist() == pytest.approx([np.log(2)] * 2)
    p, q = np.exp(reference[1].astype(float)), np.exp(rows[1].astype(float))
    assert figures["kl"][1] == pytest.approx((p * (reference[1] - rows[1])).sum())
    assert figures["reverse_kl"][1] == pytest.approx((q * (rows[1] - reference[1])).sum(), rel=1e-6)


def test_of_equal_tokens_the_smallest_id_is_more_likely() -> None:
    flat = np.full((2, 700), -np.log(700), np.float32)
    top = select_top(flat, 6, np.array([0, 1]))
    assert top.token_ids.tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    rows = flat.copy()
    rows[:, [650, 699]] = -1.0
    assert select_top(rows, 3, np.array([0, 1])).token_ids.tolist() == [[650, 699, 0]] * 2


def test_the_token_of_the_text_is_compared_beside_the_most_likely() -> None:
    reference = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    rows = np.log(np.array([[0.4, 0.3, 0.1, 0.2]], np.float32))
    token_ids = np.array([3])
    sides = [pack_top([{0: float(side[0, 0])}], [float(side[0, 3])]) for side in (reference, rows)]
    figures = compare_top(sides[0], sides[1], token_ids)
    assert figures["covered"][0] == pytest.approx(0.55)
    p, q = np.array([[0.5, 0.05, 0.45]]), np.array([[0.4, 0.2, 0.4]])
    for name, values in compute_naively(p, q).items():
        assert figures[name][0] == pytest.approx(values[0], rel=1e-4)
    assert np.isnan(figures["entropy"][0])


def test_requests_with_fewer_known_tokens_fill_their_rows() -> None:
    top = pack_top([{4: -0.5, 2: -1.5}, {7: -0.1}], [-0.5, -3.0])
    assert top.token_ids.tolist() == [[4, 2], [7, -1]]
    full = normalize(np.random.default_rng(2).normal(size=(2, 9)))
    for side in (top, full):
        figures = compare_top(top, side, np.array([4, 3]))
        assert np.isfinite(figures["kl"]).all()
    assert len(top) == 2
    assert isinstance(top, TopRows)


@pytest.mark.parametrize("side", ["reference", "other side"])
@pytest.mark.parametrize("shift", [0.1, np.nan])
def test_rows_that_are_no_distribution_are_refused(side: str, shift: float) -> None:
    right = normalize(np.zeros((3, 8)))
    wrong = right.copy()
    wrong[1] += shift
    sides = (wrong, right) if side == "reference" else (right, wrong)
    with pytest.raises(
        EngineRuntimeError, match=f"probabilities of the {side} sum to .* in row 1 of 3, not to 1"
    ):
        compare_rows(*sides, np.array([0, 1, 2]))
    top = select_top(right, 2, np.array([0, 1, 2]))
    sides = (wrong, top) if side == "reference" else (top, wrong)
    with pytest.raises(EngineRuntimeError, match=f"probabilities of the {side} sum to"):
        compare_top(*sides, np.array([0, 1, 2]))
