"""Figures of a suite from those of its positions, with intervals clustered by document."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalution.fidelity.divergence import Figures
from evalution.fidelity.result import Bin, Divergence, Estimate
from evalution.scoring.intervals import estimate_spread, find_trials, wilson_interval

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.integer[Any]]

_HISTOGRAM: Final = (0.0, *(10.0 ** (half / 2) for half in range(-16, 4)), math.inf)
_ENTROPIES: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, math.inf)


def summarize(
    figures: Figures, documents: Integers, *, is_lower_bound: bool = False, failed: int = 0
) -> Divergence:
    """Summarize at least one position; `documents` has the number of the document of each."""
    kl = figures["kl"]
    finite = kl[np.isfinite(kl)]
    ordered = np.sort(kl)
    log_ratio = figures["reference_logprob"] - figures["logprob"]
    return Divergence(
        positions=len(kl),
        kl=estimate_mean(kl, documents, bound_logarithm),
        median=_find_quantile(ordered, 0.5),
        p95=_find_quantile(ordered, 0.95),
        p99=_find_quantile(ordered, 0.99),
        p999=_find_quantile(ordered, 0.999),
        maximum=float(ordered[-1]),
        top_share=_measure_top_share(np.sort(finite)),
        reverse_kl=estimate_mean(figures["reverse_kl"], documents, bound_logarithm),
        js=estimate_mean(figures["js"], documents, bound_logarithm),
        rms_dp=math.sqrt(np.square(figures["dp"]).mean()),
        same_top=estimate_mean(figures["same_top"].astype(np.float64), documents, bound_share),
        top5_overlap=float(figures["top5_overlap"].mean()),
        log_ppl_ratio=estimate_mean(log_ratio, documents),
        entropy_reference=_find_mean(figures["reference_entropy"]),
        entropy=_find_mean(figures["entropy"]),
        is_lower_bound=is_lower_bound,
        covered=float(figures["covered"].mean()),
        infinite=len(kl) - len(finite),
        excluded=int(np.isposinf(log_ratio).sum()),
        failed=failed,
        reverse_infinite=int(np.isposinf(figures["reverse_kl"]).sum()),
    )


def estimate_contrast(candidate: Figures, control: Figures, documents: Integers) -> Estimate:
    """Estimate the mean of the candidate's `kl` less the control's at the same positions.

    It is infinite if the candidate alone excludes a token anywhere.
    """
    with np.errstate(invalid="ignore"):
        difference = candidate["kl"] - control["kl"]
    if np.isposinf(difference).any():
        return Estimate(math.inf, None, None)
    return estimate_mean(difference, documents)


def make_histogram(figures: Figures) -> list[Bin]:
    """Return the bins of `kl` by half decades from 1e-8 nats on, empty ones too."""
    return _fill_bins(figures["kl"], figures["kl"], _HISTOGRAM)


def bin_by_position(figures: Figures, positions: Integers) -> list[Bin]:
    """Return the bins of the position in the window, from 0, each twice as wide as the last."""
    edges = (0, *(2**power for power in range(int(positions.max(initial=0)).bit_length() + 1)))
    return [made for made in _fill_bins(figures["kl"], positions, edges) if made.positions]


def bin_by_entropy(figures: Figures) -> list[Bin]:
    """Return the bins of the reference's entropy in nats; none where it isn't known."""
    found = _fill_bins(figures["kl"], figures["reference_entropy"], _ENTROPIES)
    return [made for made in found if made.positions]


Bounds: TypeAlias = Callable[[float, float, float, float], tuple[float, float]]
"""Makes an interval of a mean, its standard error, the t quantile, and the positions."""


def bound_plainly(
    mean: float, error: float, quantile: float, _positions: float
) -> tuple[float, float]:
    return mean - quantile * error, mean + quantile * error


def estimate_mean(values: Floats, documents: Integers, bounds: Bounds = bound_plainly) -> Estimate:
    """Estimate the mean over positions, a ratio of sums over documents, of the finite values.

    Decision 0021 has the coverage of its interval, by `estimate_spread` over the documents.
    """
    is_finite = np.isfinite(values)
    if not is_finite.any():
        return Estimate(math.inf, None, None)
    _, inverse = np.unique(documents[is_finite], return_inverse=True)
    sums = np.bincount(inverse, weights=values[is_finite])
    lengths = np.bincount(inverse).astype(np.float64)
    mean = float(sums.sum() / lengths.sum())
    spread = estimate_spread(sums.tolist(), lengths.tolist(), mean)
    if spread.stderr is None:
        return Estimate(mean, None, None)
    low, high = bounds(mean, spread.stderr, spread.quantile, float(lengths.sum()))
    return Estimate(mean, low, high, spread.freedom)


def bound_logarithm(
    mean: float, error: float, quantile: float, _positions: float
) -> tuple[float, float]:
    """Return the interval of a positive, skewed mean: symmetric for its logarithm."""
    if mean <= 0:
        return mean, mean
    factor = math.exp(min(quantile * error / mean, 700.0))
    return mean / factor, mean * factor


def bound_share(
    mean: float, error: float, quantile: float, positions: float
) -> tuple[float, float]:
    """Return Wilson's interval with as many trials as have this error (Kott and Carr, 1997).

    Where documents don't differ at all, each position is a trial.
    """
    return wilson_interval(mean, find_trials(mean, error, positions), quantile)


def _find_quantile(ordered: Floats, share: float) -> float:
    """Return a quantile by linear interpolation, as llama-perplexity does; ∞ where it touches ∞."""
    at = share * (len(ordered) - 1)
    below = int(at)
    weight = at - below
    if weight == 0:
        return float(ordered[below])
    return float((1 - weight) * ordered[below] + weight * ordered[below + 1])


def _measure_top_share(ordered: Floats) -> float:
    """Return the part of the sum that the largest hundredth of the values carries."""
    total = float(ordered.sum())
    return float(ordered[-math.ceil(len(ordered) / 100) :].sum()) / total if total else 0.0


def _find_mean(values: Floats) -> float | None:
    mean = float(values.mean())
    return None if math.isnan(mean) else mean


def _fill_bins(kl: Floats, values: NDArray[Any], edges: tuple[float, ...]) -> list[Bin]:
    at = np.searchsorted(edges, values, side="right") - 1
    last = len(edges) - 2
    at = np.where(np.isnan(values), len(edges), np.clip(at, 0, last))
    numbers = np.bincount(at, minlength=last + 1)
    with np.errstate(invalid="ignore"):
        sums = np.bincount(at, weights=kl, minlength=last + 1)
    return [
        Bin(
            float(edges[bin_]),
            float(edges[bin_ + 1]),
            int(numbers[bin_]),
            float(sums[bin_] / numbers[bin_]) if numbers[bin_] else 0.0,
        )
        for bin_ in range(last + 1)
    ]
