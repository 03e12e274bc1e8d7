"""Figures of a suite from those of its positions, with intervals clustered by document."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalution.comparison.significance import CONFIDENCE, two_sided_quantile
from evalution.fidelity.divergence import Figures
from evalution.fidelity.result import Bin, Divergence, Estimate

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.integer[Any]]

_HISTOGRAM: Final = (0.0, *(10.0 ** (half / 2) for half in range(-16, 4)), math.inf)
_ENTROPIES: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, math.inf)


def summarize(figures: Figures, documents: Integers, *, is_lower_bound: bool = False) -> Divergence:
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
    )


def estimate_contrast(candidate: Figures, control: Figures, documents: Integers) -> Estimate:
    """Estimate the mean of the candidate's `kl` less the control's at the same positions."""
    with np.errstate(invalid="ignore"):
        return estimate_mean(candidate["kl"] - control["kl"], documents)


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

    The variance is that of the linearised jackknife, which leaves out one document at a time: the
    residuals of a ratio (Cochran, Sampling Techniques, 1977, §6.4) divided by what is left of the
    length (Bell and McCaffrey, Survey Methodology 28, 2002: CR3). Few long documents, or few that
    carry the variance, leave fewer degrees of freedom than there are documents: t has the smaller
    of the effective number of clusters, (Σn)²/Σn² (Carter, Schnepel and Steigerwald, Review of
    Economics and Statistics 99, 2017), and the equivalent 2D/(κ - 1) of the residuals' kurtosis κ
    (Potthoff, Woodbury and Manton, JASA 87, 1992), less 1. Decision 0021 has its coverage.
    """
    is_finite = np.isfinite(values)
    if not is_finite.any():
        return Estimate(math.inf, None, None)
    numbers, inverse = np.unique(documents[is_finite], return_inverse=True)
    sums = np.bincount(inverse, weights=values[is_finite])
    lengths = np.bincount(inverse).astype(np.float64)
    total, count = lengths.sum(), len(numbers)
    mean = float(sums.sum() / total)
    if count < 2:
        return Estimate(mean, None, None)
    changes = (sums - mean * lengths) / (total - lengths)
    changes -= changes.mean()
    squares = float(np.square(changes).sum())
    error = math.sqrt((count - 1) / count * squares)
    if error <= 1e-12 * abs(mean):
        error = 0.0
    effective = total**2 / float(np.square(lengths).sum())
    if error:
        kurtosis = count * float((changes**4).sum()) / squares**2
        effective = min(effective, 2 * count / max(kurtosis - 1, 2))
    quantile = two_sided_quantile(1 - CONFIDENCE, max(effective - 1, 1.0))
    low, high = bounds(mean, error, quantile, float(total))
    return Estimate(mean, low, high)


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
    trials = mean * (1 - mean) / error**2 if error else positions
    square = quantile**2
    middle = (mean + square / (2 * trials)) / (1 + square / trials)
    spread = quantile * math.sqrt(mean * (1 - mean) / trials + square / (4 * trials**2))
    margin = spread / (1 + square / trials)
    return max(middle - margin, 0.0), min(middle + margin, 1.0)


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
