"""Student's t distribution, from the regularised incomplete beta function."""

from __future__ import annotations

import math

_SMALLEST = 1e-300
_STEPS = 100_000
"""Far beyond what is needed: the fraction takes some √(freedom) steps."""


def two_sided_p(t: float, freedom: int) -> float:
    """P(|T| ≥ |t|) with n degrees of freedom: `I(n/(n+t²); n/2, 1/2)`.

    NIST Digital Library of Mathematical Functions, §8.17; the distribution by Abramowitz and
    Stegun, 26.7.1. The relative error is below 1e-9 up to a million degrees.
    """
    square = t * t
    if math.isinf(square):
        return 0.0
    # The complement is given beside it: near 1 it has lost the digits that count.
    return _incomplete_beta(freedom / (freedom + square), square / (freedom + square), freedom)


def two_sided_quantile(p: float, freedom: int) -> float:
    """The t that |T| reaches with probability `p`, between 1e-9 and 1; by bisection."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > p:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided_p(middle, freedom) > p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(x: float, complement: float, freedom: int) -> float:
    """`I(x; freedom/2, 1/2)`, where `complement` is `1 - x`."""
    a, b = freedom / 2, 0.5
    if x <= 0.0:
        return 0.0
    if complement <= 0.0:
        return 1.0
    log_head = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    head = math.exp(log_head + a * math.log(x) + b * math.log(complement))
    if x < (a + 1) / (a + b + 2):
        return head * _fraction(x, a, b) / a
    return 1.0 - head * _fraction(complement, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of DLMF 8.17.22, evaluated by the modified Lentz method (§3.10)."""
    value, above, below = 1.0, math.inf, 1.0
    for step in range(1, _STEPS):
        half = step // 2
        if step % 2:
            numerator = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            numerator = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        above = (1.0 + numerator / above) or _SMALLEST
        below = 1.0 / ((1.0 + numerator * below) or _SMALLEST)
        value *= above * below
        if abs(above * below - 1.0) < 1e-15:
            break
    return value
