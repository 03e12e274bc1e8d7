"""Figures of fidelity measurements: where the divergence lies, and what bytes buy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from evalution.fidelity.result import Arm, Bin, Estimate, FidelityResult, SuiteFidelity
from evalution.fidelity.wording import format_estimate, format_nats, format_share, name_side
from evalution.report.figures import Axis, Figure, Mark, Point, Series, make_dot_plot
from evalution.view.labels import RunLabel

_HEIGHT = 320
_MEGABYTE = 1e6
_DECADES_NAMED = 6
_WIDENING = 4
"""Bins that grow by more than this factor stand on a logarithmic axis."""
_SIDES = tuple(
    RunLabel(position, name, "", "", (), name)
    for position, name in enumerate(("candidate", "control"))
)


def make_fidelity_figures(suites: Sequence[SuiteFidelity], name: str) -> list[Figure]:
    """Return the figures of a measurement; those of single positions are of the first of `suites`.

    `name` is unique on the page.
    """
    arms = [arm for arm in (suites[0].candidate, suites[0].control) if arm is not None]
    figures = [
        *_draw_suites(suites, f"{name}-suites"),
        _draw_distribution(arms, f"{name}-distribution"),
        _draw_bins(
            arms,
            f"{name}-position",
            ("Mean KL by position", "position in the window, in tokens"),
            lambda arm: arm.by_position,
        ),
        _draw_bins(
            arms,
            f"{name}-entropy",
            ("Mean KL by the reference's entropy", "entropy of the reference, in nats"),
            lambda arm: arm.by_entropy,
        ),
    ]
    if any(arm.greedy is not None and arm.greedy.prompts for arm in arms):
        figures.append(_draw_greedy(arms, f"{name}-greedy"))
    return figures


def _describe_bound(arm: Arm) -> str:
    """Return what a figure's note says of a lower bound; nothing for exact divergences."""
    if not arm.divergence.is_lower_bound:
        return ""
    return f"Lower bounds: {format_share(arm.divergence.covered)} of the mass was compared."


def _name_kl(arm: Arm) -> str:
    return "KL ≥, in nats" if arm.divergence.is_lower_bound else "KL, in nats"


def _draw_suites(suites: Sequence[SuiteFidelity], name: str) -> list[Figure]:
    sides = [[(s.name, s.candidate) for s in suites]]
    if suites[0].control is not None:
        sides.append([(s.name, s.control) for s in suites if s.control is not None])
    points = [
        [
            _make_point(suite, arm.divergence.kl, arm.divergence.is_lower_bound)
            for suite, arm in side
            if not arm.divergence.infinite
        ]
        for side in sides
    ]
    if sum(map(len, points)) < 2:
        return []
    figure = make_dot_plot(
        name,
        f"Mean {_name_kl(suites[0].candidate)}",
        f"Dot plot of the mean divergence of {len(suites)} suites; the table has the same.",
        [suite.name for suite in suites],
        points,
        _SIDES[: len(sides)],
    )
    note = _describe_bound(suites[0].candidate)
    return [replace(figure, note=note, x=Axis(from_zero=True))]


def _make_point(line: str, estimate: Estimate, is_lower_bound: bool) -> Point:
    about = f"{line}: {format_estimate(estimate, is_lower_bound=is_lower_bound)}"
    return Point(line, estimate.value, _find_interval(estimate), about)


def _find_interval(estimate: Estimate) -> tuple[float, float] | None:
    if estimate.low is None or estimate.high is None:
        return None
    return estimate.low, estimate.high


def _draw_distribution(arms: Sequence[Arm], name: str) -> Figure:
    counts = [{found.low: found.positions for found in arm.histogram} for arm in arms]
    lows = sorted({low for found in counts for low in found})
    filled = [at for at, low in enumerate(lows) if any(found.get(low) for found in counts)]
    shown = lows[min(filled, default=0) : max(filled, default=0) + 1]
    series = [
        Series(
            label.letter,
            label.position,
            "bars",
            [_make_bar(at, low, arm, found.get(low, 0)) for at, low in enumerate(shown)],
        )
        for label, arm, found in zip(_SIDES, arms, counts, strict=False)
    ]
    return Figure(
        name,
        "How far positions are from the reference",
        _describe_bound(arms[0]),
        "Histogram of the divergence of positions; the table has its quantiles.",
        height=_HEIGHT,
        x=Axis(f"{_name_kl(arms[0])}, from here on", ticks=_choose_ticks(shown)),
        y=Axis("positions", is_share=True, from_zero=True),
        series=series,
    )


def _make_bar(at: int, low: float, arm: Arm, count: int) -> Mark:
    share = count / max(arm.divergence.positions, 1)
    return Mark(at, share, f"from {low:.2g}: {share:.2%}")


def _choose_ticks(lows: Sequence[float]) -> list[tuple[float, str]]:
    """Return the ticks of at most six decades, and of 0, at the places of the bins."""
    exponents = {low: math.log10(low) for low in lows if low}
    decades = [low for low, at in exponents.items() if math.isclose(at, round(at), abs_tol=1e-6)]
    step = math.ceil(len(decades) / _DECADES_NAMED) or 1
    named = {low: f"1e{round(exponents[low])}" for low in decades[::-1][::step]}
    named |= {0.0: "0"} if 0.0 in lows else {}
    return [(lows.index(low), text) for low, text in named.items()]


def _draw_bins(
    arms: Sequence[Arm], name: str, titles: tuple[str, str], read: Callable[[Arm], list[Bin]]
) -> Figure:
    title, axis = titles
    series = [
        Series(
            label.letter,
            label.position,
            "line",
            [Mark(_find_middle(found), found.kl, _describe_bin(found)) for found in bins],
        )
        for label, arm in zip(_SIDES, arms, strict=False)
        if (bins := [found for found in read(arm) if found.positions and math.isfinite(found.kl)])
    ]
    return Figure(
        name,
        title,
        _describe_bound(arms[0]),
        "Curve of the mean divergence of positions.",
        height=_HEIGHT,
        x=Axis(axis, is_log=_are_widening(read(arms[0]))),
        y=Axis(_name_kl(arms[0]), from_zero=True),
        series=series,
    )


def _are_widening(bins: Sequence[Bin]) -> bool:
    widths = [found.high - found.low for found in bins if math.isfinite(found.high)]
    return bool(widths) and widths[-1] > _WIDENING * widths[0]


def _find_middle(found: Bin) -> float:
    return found.low if math.isinf(found.high) else (found.low + found.high) / 2


def _describe_bin(found: Bin) -> str:
    return f"{found.low:g} to {found.high:g}: {format_nats(found.kl)}, n = {found.positions:,}"


def _draw_greedy(arms: Sequence[Arm], name: str) -> Figure:
    series: list[Series] = []
    parted_at = [step for arm in arms if arm.greedy is not None for step in arm.greedy.first_steps]
    end = 1 + max(parted_at, default=0)
    for label, arm in zip(_SIDES, arms, strict=False):
        if arm.greedy is None or not arm.greedy.prompts:
            continue
        steps = sorted(arm.greedy.first_steps)
        left = [1 - parted / arm.greedy.prompts for parted in range(len(steps) + 1)]
        places = [0, *steps, end]
        marks = [
            Mark(step, share, f"token {step}: {share:.0%} the same")
            for step, share in zip(places, [*left, left[-1]], strict=True)
        ]
        series.append(Series(label.letter, label.position, "steps", marks))
    return Figure(
        name,
        "Greedy texts that are still the same",
        "A text is counted out at its first differing token.",
        "Curve of the share of greedy texts without a difference; the table has its end.",
        height=_HEIGHT,
        x=Axis("tokens generated"),
        y=Axis("the same", domain=(0, 1), is_share=True),
        series=series,
    )


def draw_pareto(results: Sequence[FidelityResult], name: str) -> list[Figure]:
    """Return the figure of bytes against mean KL; none with fewer than two results that have both.

    A dashed line joins those that no other beats in both.
    """
    found = [
        (result.candidate.bytes / _MEGABYTE, result.overall.candidate.divergence.kl, result)
        for result in results
        if result.candidate.bytes is not None and not result.overall.candidate.divergence.infinite
    ]
    if len(found) < 2:
        return []
    found.sort(key=lambda point: (point[0], point[1].value))
    arm = found[0][2].overall.candidate
    missing = len(results) - len(found)
    note = f"{missing} without a size or a finite mean left out." if missing else ""
    return [
        Figure(
            name,
            "What bytes buy: smaller to the left, nearer to the reference below",
            " ".join(text for text in (_describe_bound(arm), note) if text),
            f"Scatter plot of {len(found)} candidates; the table has the same.",
            height=_HEIGHT,
            x=Axis("weights, in megabytes"),
            y=Axis(
                f"mean {_name_kl(arm)}",
                is_log=all(estimate.value > 0 for _, estimate, _ in found),
            ),
            series=[_make_candidate(at, *point) for at, point in enumerate(found)],
            path=_find_front([(size, estimate.value) for size, estimate, _ in found]),
        )
    ]


def _make_candidate(
    position: int, size: float, estimate: Estimate, result: FidelityResult
) -> Series:
    named = name_side(result.candidate)
    is_lower_bound = result.overall.candidate.divergence.is_lower_bound
    about = f"{named}: {format_estimate(estimate, is_lower_bound=is_lower_bound)}, {size:,.1f} MB"
    mark = Mark(size, estimate.value, about, *(_find_interval(estimate) or (None, None)))
    return Series(named, position, "dots", [mark])


def _find_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return those of the points, which are in order of size, that lie below all smaller."""
    front: list[tuple[float, float]] = []
    for size, kl in points:
        if not front or kl < front[-1][1]:
            front.append((size, kl))
    return front
