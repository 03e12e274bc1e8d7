"""Parity checks on the page: rows of the table, and figures by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalution.parity.result import LEAST_DECADE, ParityResult, SuiteParity, TokenDifference
from evalution.redaction import mask_text
from evalution.report.figures import Axis, Figure, Mark, Series
from evalution.results import read_precision

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


def make_parity_view(result: ParityResult, position: int) -> ParityView:
    """The view of the check that stands at `position` on the page."""
    worst = [
        WorstToken(suite.name, token, measure_difference(token))
        for suite in result.suites
        for token in suite.worst_tokens
    ]
    worst.sort(key=lambda token: math.inf if token.size is None else token.size, reverse=True)
    left, right = _name_engines(result)
    return ParityView(
        result=result,
        left=left,
        right=right,
        complaints=[mask_text(text) for text in result.complaints],
        notes=[mask_text(text) for text in result.notes],
        worst=worst[:_WORST_SHOWN],
        figures=make_parity_figures(result, f"parity-{position}"),
    )


def _name_engines(result: ParityResult) -> tuple[str, str]:
    """The two engines, with their models where the engines have one name."""
    left, right = _name_engine(result.left), _name_engine(result.right)
    return left, right if left != right else f"{right} (checked)"


def _name_engine(record: Mapping[str, Any]) -> str:
    engine: Mapping[str, Any] = record.get("engine") or {}
    model: Mapping[str, Any] = record.get("model") or {}
    name = str(engine.get("name") or "a live session")
    apart = ", ".join(str(part) for part in (model.get("label"), read_precision(engine)) if part)
    return mask_text(f"{name} ({apart})" if apart else name)


_HEIGHT = 320


def make_parity_figures(result: ParityResult, name: str) -> list[Figure]:
    """Return figures of the differences of tokens by size and by probability.

    None for engines that give no log-probabilities of single tokens. `name` is unique on the page.
    """
    suites = [suite for suite in result.suites if suite.tokens is not None]
    if not suites:
        return []
    return [
        _draw_distribution(suites, result.tolerance.logprob, name),
        _draw_tokens(suites, result.tolerance.logprob, name),
    ]


def _draw_distribution(suites: Sequence[SuiteParity], tolerance: float, name: str) -> Figure:
    histograms = [suite.tokens.decades for suite in suites if suite.tokens is not None]
    filled = [at for at in range(len(histograms[0])) if any(counts[at] for counts in histograms)]
    shown = range(min(filled, default=0), max(filled, default=0) + 1)
    shown = [0, *range(max(shown.start, 1), shown.stop)] if 0 in filled else list(shown)
    series = [
        Series(
            suite.name,
            position,
            "bars",
            [
                Mark(x, counts[at], f"{suite.name}, {_format_decade(at)}: {counts[at]:,} tokens")
                for x, at in enumerate(shown)
                if counts[at]
            ],
        )
        for position, (suite, counts) in enumerate(zip(suites, histograms, strict=True))
    ]
    total = sum(suite.tokens.count for suite in suites if suite.tokens is not None)
    return Figure(
        name=f"{name}-distribution",
        title="How many tokens differ by how much",
        note=f"{total:,} tokens; the tolerance is {tolerance:g}.",
        summary="Histogram of absolute differences of log-probabilities; the table has its ends.",
        height=_HEIGHT,
        x=Axis(
            "|Δ log-probability| from here on, in nats",
            ticks=[(x, _format_decade(at)) for x, at in enumerate(shown)],
        ),
        y=Axis("tokens", domain=(0.5, 10), is_log=True),
        series=series,
    )


def _draw_tokens(suites: Sequence[SuiteParity], tolerance: float, name: str) -> Figure:
    return Figure(
        name=f"{name}-tokens",
        title="Where they differ",
        note="Each dot is a token; those without a difference are left out. The dashed line is the "
        "tolerance.",
        summary="Scatter plot of absolute differences over log-probabilities; the table has the "
        "worst tokens.",
        height=_HEIGHT,
        x=Axis("log-probability on the left"),
        y=Axis("|Δ|, in nats", is_log=True),
        series=[_draw_points(suite, position) for position, suite in enumerate(suites)],
        rule=tolerance,
    )


def _draw_points(suite: SuiteParity, position: int) -> Series:
    marks = [
        Mark(left, abs(left - right), f"{left:.4f}: |Δ| {abs(left - right):.3g}")
        for left, right in suite.points
        if left != right
    ]
    return Series(suite.name, position, "dots", marks)


def measure_difference(token: TokenDifference) -> float | None:
    """|Δ| of a token; None where one side calls it impossible."""
    if token.left is None or token.right is None:
        return None
    return abs(token.left - token.right)


def _format_decade(place: int) -> str:
    """The lower end of a bin of `DifferenceStats.decades`."""
    if place == 0:
        return "0"
    exponent = LEAST_DECADE + place - 1
    return "≥ 1" if exponent == 0 else f"1e{exponent}"
