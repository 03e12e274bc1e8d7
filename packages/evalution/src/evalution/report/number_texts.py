"""Numbers as a reader sees them."""

from __future__ import annotations

import math

_FROM_HERE_IN_DIGITS = 1000
_LEAST_CHANCE_SHOWN = 0.0001
_LEAST_DIFFERENCE_SHOWN = 0.00005
_MINUTE = 60
_HOUR = 3600
ABSENT = "–"


def score_text(value: float | None) -> str:
    """A score in four decimals, or in six digits from a thousand on; a dash for None."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return str(value).replace("inf", "∞").replace("-", "−")
    text = f"{value:.4f}" if abs(value) < _FROM_HERE_IN_DIGITS else f"{value:.6g}"
    return text.replace("-", "−")


def signed_text(value: float | None) -> str:
    """A difference as `score_text` shows it, with its sign; a tiny one is never shown as zero."""
    if value is None or not value:
        return score_text(value)
    if abs(value) < _LEAST_DIFFERENCE_SHOWN:
        return f"{value:+.0e}".replace("-", "−")
    return f"+{score_text(value)}" if value > 0 else score_text(value)


def chance_text(p_value: float | None) -> str:
    """A p-value in as many digits as mean something."""
    if p_value is None:
        return ABSENT
    return "< 0.0001" if p_value < _LEAST_CHANCE_SHOWN else f"{p_value:.4f}"


def duration_text(seconds: float | None) -> str:
    """A duration in the two largest units."""
    if seconds is None:
        return ABSENT
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {int(seconds % _MINUTE)} s"
    return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
