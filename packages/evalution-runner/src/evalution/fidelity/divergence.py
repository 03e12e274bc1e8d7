"""Figures of each position from the distributions of two sides, whole or of the likeliest tokens.

A divergence is a sum of terms that are never negative, KL of `p ln(p/q) + q - p`: equal to
KL(p ‖ q) where both sum to 1, exactly 0 for equal rows, and second order in rounding (I. Csiszár,
Ann. Probab. 3, 1975). Such terms merge tokens without growing (the log-sum inequality), so the
divergence of the likeliest tokens and one bucket for the rest is a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from evalution_core import EngineRuntimeError

Logprobs: TypeAlias = NDArray[np.float32]
"""Natural-log probabilities of the whole vocabulary, of shape (positions, vocabulary)."""
Figures: TypeAlias = NDArray[np.void]
"""An array of `FIGURES`, one for each position."""

FIGURES: Final = np.dtype(
    [
        ("kl", "f8"),
        ("reverse_kl", "f8"),
        ("js", "f8"),
        ("reference_logprob", "f8"),
        ("logprob", "f8"),
        ("dp", "f8"),
        ("same_top", "?"),
        ("top5_overlap", "f8"),
        ("reference_entropy", "f8"),
        ("entropy", "f8"),
        ("covered", "f8"),
    ]
)
"""Divergences and entropies are in nats; `kl` is infinite where only the side excludes a token.

`reference_logprob` and `logprob` are of the token that stands in the text, `dp` is the side's
probability of it less the reference's. `top5_overlap` is the share of the five most likely tokens
(of as many as are known, where fewer are) that both have. `covered` is the reference's mass on the
tokens that were compared one by one. An entropy that isn't known is NaN.
"""
TOP: Final = 5
_TILE: Final = 1 << 18
"""Values that are worked on at once: with all temporaries they take 8 MB of cache."""
_LARGE_RATIO: Final = 1e17
"""Of probabilities, from which terms are computed in float64."""
_GROUPS: Final = 64
"""Groups of neighbours that a row is split into, to find its largest values."""
_UNSURE: Final = 1e-6
"""Of the mass outside the likeliest tokens: what rounding to float32 leaves of it."""
SLACK: Final = 1e-3
"""By which the sum of a row may differ from 1."""


@dataclass(frozen=True, slots=True)
class TopRows:
    """The most likely tokens of each position, best first, of a side that gives no whole rows.

    `token_ids` and `logprobs` have the shape (positions, k); where fewer are known, a row ends in
    ids of -1. `text_logprobs` are of the tokens that stand in the text, likely or not.
    """

    token_ids: NDArray[np.int32]
    logprobs: Logprobs
    text_logprobs: Logprobs

    def __len__(self) -> int:
        return len(self.token_ids)


def pack_top(tops: Sequence[Mapping[int, float]], text_logprobs: Sequence[float]) -> TopRows:
    """Return an engine's `top_logprobs` of one request as rows."""
    width = max((len(top) for top in tops), default=0)
    token_ids = np.full((len(tops), width), -1, np.int32)
    logprobs = np.full((len(tops), width), -np.inf, np.float32)
    for row, top in enumerate(tops):
        token_ids[row, : len(top)] = list(top)
        logprobs[row, : len(top)] = list(top.values())
    return TopRows(token_ids, logprobs, np.asarray(text_logprobs, np.float32))


def select_top(rows: Logprobs, count: int, token_ids: NDArray[np.integer[Any]]) -> TopRows:
    """Return the `count` most likely tokens of whole rows; of equals, the smallest id."""
    top = _find_top(rows, min(count, rows.shape[1]))
    text = rows[np.arange(len(rows)), token_ids]
    return TopRows(top.astype(np.int32), np.take_along_axis(rows, top, 1), text)


def compare_rows(
    reference: Logprobs, rows: Logprobs, token_ids: NDArray[np.integer[Any]]
) -> Figures:
    """Compare whole rows of both sides at the same positions; `token_ids` stand in the text.

    Raises:
        EngineRuntimeError: a row is no distribution: it doesn't sum to 1.
    """
    sums = np.zeros((7, len(rows)))
    width = min(_TILE, rows.shape[1])
    height = _TILE // width
    buffers = np.empty((5, height, width), np.float32)
    for at in range(0, len(rows), height):
        part = slice(at, at + height)
        for column in range(0, rows.shape[1], width):
            tile = (part, slice(column, column + width))
            sums[:, part] += _sum_tile(reference[tile], rows[tile], buffers)
    np.maximum(sums[:3], 0.0, out=sums[:3])
    _require_distributions(sums[5], "reference")
    _require_distributions(sums[6], "other side")
    figures = _make_figures(
        reference[np.arange(len(rows)), token_ids], rows[np.arange(len(rows)), token_ids]
    )
    names = ("kl", "reverse_kl", "js", "reference_entropy", "entropy")
    for name, values in zip(names, sums, strict=False):
        figures[name] = values
    figures["covered"] = 1.0
    count = min(TOP, rows.shape[1])
    _fill_tops(figures, _find_top(reference, count), _find_top(rows, count))
    return figures


def compare_top(
    reference: TopRows | Logprobs, rows: TopRows | Logprobs, token_ids: NDArray[np.integer[Any]]
) -> Figures:
    """Compare sides of which at least one gives only its most likely tokens: lower bounds.

    What is compared is the distributions over the tokens that are known on both sides, the text's
    among them, and one bucket for the rest. Its mass is the remainder of 1, which rounding leaves
    uncertain: both remainders are taken as near to each other as that allows.

    Raises:
        EngineRuntimeError: as `compare_rows`, of a side with whole rows.
    """
    logprobs, others = _align_tokens(reference, rows, token_ids)
    known, known_others = (np.exp(side).sum(1) for side in (logprobs, others))
    rest, rest_others = _shrink_gap(1.0 - known, 1.0 - known_others)
    with np.errstate(divide="ignore"):
        terms = _compute_terms(
            np.column_stack((logprobs, np.log(rest))),
            np.column_stack((others, np.log(rest_others))),
        )
    figures = _make_figures(
        _read_text_logprobs(reference, token_ids), _read_text_logprobs(rows, token_ids)
    )
    for name, values in zip(("kl", "reverse_kl", "js"), terms, strict=True):
        figures[name] = values.sum(1)
    figures["covered"] = np.minimum(known, 1.0)
    figures["reference_entropy"] = _measure_entropy(reference, "reference")
    figures["entropy"] = _measure_entropy(rows, "other side")
    _fill_tops(figures, _read_top(reference), _read_top(rows))
    return figures


def _sum_tile(
    logprobs: Logprobs, others: Logprobs, buffers: NDArray[np.float32]
) -> NDArray[np.float64] | tuple[NDArray[np.floating[Any]], ...]:
    """Return KL, reverse KL, JS, both entropies and both masses of a tile's rows.

    With δ = ln q - ln p and E = expm1(δ) = q/p - 1 the terms are p (E - δ), p ((1 + E) δ - E), and
    for JS half of p ((1 + E) δ - (2 + E) log1p(E/2)). `buffers` are five tiles to work in.
    """
    p, delta, ratio, term, growth = buffers[:, : logprobs.shape[0], : logprobs.shape[1]]
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(others, logprobs, out=delta)
        np.expm1(delta, out=ratio)
        np.exp(logprobs, out=p)
        kl = _add_products(p, np.subtract(ratio, delta, out=term))
    # Infinities, and what float32 would lose of a token's small p, are rare.
    if not (ratio.max() < _LARGE_RATIO and np.isfinite(kl).all()):
        return _sum_terms(logprobs.astype(np.float64), others.astype(np.float64))
    mass = p @ np.ones(logprobs.shape[1], np.float32)
    other_mass = mass + _add_products(p, ratio)
    entropy = -_add_products(p, logprobs)
    other_entropy = -_add_products(np.exp(others, out=term), others)
    growth = np.add(np.multiply(ratio, delta, out=growth), delta, out=growth)
    reverse_kl = _add_products(p, np.subtract(growth, ratio, out=term))
    np.log1p(np.multiply(ratio, np.float32(0.5), out=term), out=term)
    term *= np.add(ratio, np.float32(2), out=ratio)
    js = _add_products(p, np.subtract(growth, term, out=term)) / 2
    return kl, reverse_kl, js, entropy, other_entropy, mass, other_mass


def _add_products(left: Logprobs, right: Logprobs) -> NDArray[np.float32]:
    return np.matmul(left[:, None, :], right[:, :, None])[:, 0, 0]


def _sum_terms(logprobs: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what `_sum_tile` does, with tokens that a side or both exclude."""
    terms = _compute_terms(logprobs, others)
    p, q = np.exp(logprobs), np.exp(others)
    entropies = [-_multiply(p, logprobs).sum(1), -_multiply(q, others).sum(1)]
    return np.stack([*(term.sum(1) for term in terms), *entropies, p.sum(1), q.sum(1)])


@np.errstate(invalid="ignore")
def _compute_terms(
    logprobs: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Return the terms of KL, reverse KL and JS; a token that both sides exclude has none.

    Where p and q are close, as in `_sum_tile`; else by their difference, which can't overflow.
    """
    p, q = np.exp(logprobs), np.exp(others)
    delta = logprobs - others
    delta[np.isnan(delta)] = 0.0
    is_close = np.abs(delta) < 1
    near = np.where(is_close, delta, 0.0)
    ratio = np.expm1(-near)
    middle = np.maximum(logprobs, others) + np.log1p(np.exp(-np.abs(delta))) - np.log(2)
    pairs = (
        (near + ratio, _multiply(p, delta) + q - p),
        (-near * ratio - near - ratio, -_multiply(q, delta) + p - q),
        (
            -((2 + ratio) * np.log1p(ratio / 2) + (1 + ratio) * near) / 2,
            (_multiply(p, logprobs - middle) + _multiply(q, others - middle)) / 2,
        ),
    )
    return tuple(np.maximum(np.where(is_close, p * close, far), 0.0) for close, far in pairs)


def _multiply(
    probabilities: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the products, 0 where the probability is."""
    return probabilities * np.where(probabilities > 0, values, 0.0)


def _require_distributions(masses: NDArray[np.float64], side: str) -> None:
    if not (wrong := np.flatnonzero(~(np.abs(masses - 1.0) < SLACK))).size:
        return
    raise EngineRuntimeError(
        f"the probabilities of the {side} sum to {masses[wrong[0]]:.6g} in row {wrong[0]} of "
        f"{len(masses)}, not to 1: its engine gives something other than log-probabilities of the "
        "whole vocabulary"
    )


def _make_figures(reference: Logprobs, logprobs: Logprobs) -> Figures:
    figures = np.zeros(len(reference), FIGURES)
    figures["reference_logprob"] = reference
    figures["logprob"] = logprobs
    figures["dp"] = np.exp(figures["logprob"]) - np.exp(figures["reference_logprob"])
    return figures


def _find_top(rows: Logprobs, count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` most likely of each row, best first; of equals, the smallest.

    As many groups of neighbours have a maximum of at least `least`: nothing below it counts, so
    only these groups are searched, and the few values behind the last group.
    """
    width = max(1, rows.shape[1] // max(_GROUPS, count))
    groups = sliding_window_view(rows, width, axis=1)[:, ::width]
    end = groups.shape[1] * width
    maxima = groups.max(2)
    least = np.partition(maxima, -count, axis=1)[:, -count]
    at, group = np.nonzero(maxima >= least[:, None])
    found, place = np.divmod(np.flatnonzero(groups[at, group] >= least[at, None]), width)
    behind, further = np.nonzero(rows[:, end:] >= least[:, None])
    row = np.concatenate((at[found], behind))
    ids = np.concatenate((group[found] * width + place, end + further))
    order = np.lexsort((ids, -rows[row, ids], row))
    first = np.searchsorted(row[order], np.arange(len(rows)))
    return ids[order][first[:, None] + np.arange(count)]


def _fill_tops(
    figures: Figures, reference: NDArray[np.integer[Any]], top: NDArray[np.integer[Any]]
) -> None:
    count = min(reference.shape[1], top.shape[1])
    left, right = reference[:, :count], top[:, :count]
    figures["same_top"] = left[:, 0] == right[:, 0]
    shared = ((left[:, :, None] == right[:, None, :]) & (left[:, :, None] >= 0)).sum((1, 2))
    figures["top5_overlap"] = shared / np.maximum(
        np.minimum((left >= 0).sum(1), (right >= 0).sum(1)), 1
    )


def _align_tokens(
    reference: TopRows | Logprobs, rows: TopRows | Logprobs, token_ids: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both sides' log-probabilities of the tokens that both know; -inf on both fills up."""
    if isinstance(reference, TopRows):
        ids, logprobs = _list_known(reference, token_ids)
        if isinstance(rows, TopRows):
            return _intersect(ids, logprobs, *_list_known(rows, token_ids))
        return logprobs, _read_logprobs(rows, ids)
    if isinstance(rows, TopRows):
        ids, others = _list_known(rows, token_ids)
        return _read_logprobs(reference, ids), others
    raise TypeError("two sides with whole rows are for compare_rows")


def _list_known(
    top: TopRows, token_ids: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ids of the known tokens, each once, and their log-probabilities; -1 fills up."""
    ids = np.column_stack((top.token_ids, token_ids)).astype(np.int64)
    logprobs = np.column_stack((top.logprobs, top.text_logprobs)).astype(np.float64)
    ids[(top.token_ids == np.asarray(token_ids)[:, None]).any(1), -1] = -1
    logprobs[ids < 0] = -np.inf
    return ids, logprobs


def _read_logprobs(rows: Logprobs, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    values = np.take_along_axis(rows, np.maximum(ids, 0), 1).astype(np.float64)
    values[ids < 0] = -np.inf
    return values


def _intersect(
    ids: NDArray[np.int64],
    logprobs: NDArray[np.float64],
    other_ids: NDArray[np.int64],
    others: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log-probabilities of the ids of both: sorted together, they are neighbours."""
    together = np.column_stack((ids, other_ids))
    order = np.argsort(together, axis=1, kind="stable")
    together = np.take_along_axis(together, order, 1)
    values = np.take_along_axis(np.column_stack((logprobs, others)), order, 1)
    is_shared = (together[:, 1:] == together[:, :-1]) & (together[:, 1:] >= 0)
    first, second = (np.where(is_shared, side, -np.inf) for side in (values[:, :-1], values[:, 1:]))
    return first, second


def _shrink_gap(
    left: NDArray[np.float64], right: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Move the masses towards each other by what is uncertain of each; neither is negative.

    One that is negative, as an engine's rounding may leave it, shows that more is uncertain.
    """
    unsure = np.maximum(_UNSURE, -2 * np.minimum(left, right))
    step = np.clip((right - left) / 2, -unsure, unsure)
    return np.maximum(left + step, 0.0), np.maximum(right - step, 0.0)


def _read_text_logprobs(rows: TopRows | Logprobs, token_ids: NDArray[np.integer[Any]]) -> Logprobs:
    return (
        rows.text_logprobs if isinstance(rows, TopRows) else rows[np.arange(len(rows)), token_ids]
    )


def _measure_entropy(rows: TopRows | Logprobs, side: str) -> NDArray[np.float64] | float:
    """Return the entropy of whole rows in nats; of the likeliest tokens alone it isn't known."""
    if isinstance(rows, TopRows):
        return np.nan
    found, masses = np.empty((2, len(rows)))
    height = max(1, _TILE // rows.shape[1])
    for at in range(0, len(rows), height):
        block = rows[at : at + height].astype(np.float64)
        p = np.exp(block)
        found[at : at + height] = -_multiply(p, block).sum(1)
        masses[at : at + height] = p.sum(1)
    _require_distributions(masses, side)
    return found


def _read_top(rows: TopRows | Logprobs) -> NDArray[np.integer[Any]]:
    if isinstance(rows, TopRows):
        return rows.token_ids[:, :TOP]
    return _find_top(rows, min(TOP, rows.shape[1]))
