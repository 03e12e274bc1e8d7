"""What the page shows of a parity check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalution.parity.result import ParityResult, TokenDifference
from evalution.report.figures import Figure
from evalution.report.parity_figures import parity_figures, token_difference
from evalution_core import scrub

_WORST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class WorstToken:
    """A token that differs much; `size` is |Δ|, None where one side calls it impossible."""

    suite: str
    found: TokenDifference
    size: float | None


@dataclass(frozen=True, slots=True)
class ParityView:
    """A parity check with its figures; `left` and `right` name the two sides."""

    result: ParityResult
    left: str
    right: str
    complaints: Sequence[str]
    notes: Sequence[str]
    worst: Sequence[WorstToken]
    figures: Sequence[Figure]


def parity_view(result: ParityResult, position: int) -> ParityView:
    """The view of the check that stands at `position` on the page."""
    worst = [
        WorstToken(suite.name, token, token_difference(token))
        for suite in result.suites
        for token in suite.worst_tokens
    ]
    worst.sort(key=lambda token: math.inf if token.size is None else token.size, reverse=True)
    left, right = _names(result)
    return ParityView(
        result=result,
        left=left,
        right=right,
        complaints=[scrub(text) for text in result.complaints],
        notes=[scrub(text) for text in result.notes],
        worst=worst[:_WORST_SHOWN],
        figures=parity_figures(result, f"parity-{position}"),
    )


def _names(result: ParityResult) -> tuple[str, str]:
    """The two engines, with their models where the engines have one name."""
    left, right = _side(result.left), _side(result.right)
    return left, right if left != right else f"{right} (checked)"


def _side(record: Mapping[str, Any]) -> str:
    engine: Mapping[str, Any] = record.get("engine") or {}
    model: Mapping[str, Any] = record.get("model") or {}
    options: Mapping[str, Any] = engine.get("options") or {}
    name = str(engine.get("name") or "a live session")
    apart = ", ".join(str(part) for part in (model.get("label"), options.get("dtype")) if part)
    return scrub(f"{name} ({apart})" if apart else name)
