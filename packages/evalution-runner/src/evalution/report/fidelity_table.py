"""Table of a measurement's figures: a line for each, the control's beside the candidate's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from evalution.fidelity.candidates import ABSENT, format_share_estimate
from evalution.fidelity.result import Arm, Divergence, Estimate, SuiteFidelity
from evalution.fidelity.wording import format_estimate, format_nats, format_share


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure: `values` has one for each side of each suite, or `span` sides share one."""

    name: str
    about: str
    values: Sequence[str]
    span: int = 1


@dataclass(frozen=True, slots=True)
class FigureGroup:
    """Lines of the table under one heading."""

    title: str
    rows: Sequence[FigureRow]


def list_figure_groups(suites: Sequence[SuiteFidelity]) -> Iterator[FigureGroup]:
    """Yield the groups of the table; decisions only where a suite made any."""
    arms = [arm for suite in suites for arm in (suite.candidate, suite.control) if arm is not None]
    distances = [_make_row(name, about, show, arms) for name, about, show in _DISTANCES]
    if any(suite.contrast for suite in suites):
        contrasts = [ABSENT if s.contrast is None else format_estimate(s.contrast) for s in suites]
        about = "mean difference at the same positions: what the engine costs is taken off"
        distances.insert(1, FigureRow("Candidate less control", about, contrasts, span=2))
    if any(arm.divergence.infinite for arm in arms):
        distances.append(_make_row(*_EXCLUDED, arms))
    if any(arm.divergence.is_lower_bound for arm in arms):
        distances.append(_make_row(*_MASS, arms))
    yield FigureGroup("Distance from the reference, in nats", distances)
    rows = [_make_row(name, about, show, arms) for name, about, show in _PROBABILITIES]
    yield FigureGroup("Probabilities", rows)
    if any(arm.flips or arm.greedy for arm in arms):
        rows = [_make_row(name, about, show, arms) for name, about, show in _DECISIONS]
        shown = [row for row in rows if set(row.values) != {ABSENT}]
        yield FigureGroup("Decisions", shown)


def _make_row(name: str, about: str, show: Callable[[Arm], str], arms: Sequence[Arm]) -> FigureRow:
    return FigureRow(name, about, [show(arm) for arm in arms])


def _show_nats(read: Callable[[Divergence], float]) -> Callable[[Arm], str]:
    """Return how a figure of KL at single positions is shown, a lower bound as one."""

    def show(arm: Arm) -> str:
        bound = "≥ " if arm.divergence.is_lower_bound else ""
        return bound + format_nats(read(arm.divergence))

    return show


def _show_mean(read: Callable[[Divergence], Estimate]) -> Callable[[Arm], str]:
    def show(arm: Arm) -> str:
        is_lower_bound = arm.divergence.is_lower_bound
        return format_estimate(read(arm.divergence), is_lower_bound=is_lower_bound)

    return show


def _show_entropy(entropy: float | None) -> str:
    return ABSENT if entropy is None else format_nats(entropy)


def _show_flips(arm: Arm, name: str) -> str:
    if arm.flips is None or not arm.flips.questions:
        return ABSENT
    counts = {
        "changed": arm.flips.changed,
        "right_to_wrong": arm.flips.right_to_wrong,
        "wrong_to_right": arm.flips.wrong_to_right,
    }
    return f"{counts[name]:,} of {arm.flips.questions:,}"


def _show_greedy(arm: Arm) -> str:
    if arm.greedy is None or not arm.greedy.prompts:
        return ABSENT
    return f"{arm.greedy.prompts - arm.greedy.same:,} of {arm.greedy.prompts:,}"


def _show_first_step(arm: Arm) -> str:
    if arm.greedy is None or not arm.greedy.first_steps:
        return ABSENT
    return f"{median_low(arm.greedy.first_steps):,}"


_Line = tuple[str, str, Callable[[Arm], str]]

_DISTANCES: tuple[_Line, ...] = (
    ("Mean KL", "with its 95 % interval, clustered by document", _show_mean(lambda d: d.kl)),
    ("Median", "half of the positions have at most this", _show_nats(lambda d: d.median)),
    ("p95", "95 % of the positions have at most this", _show_nats(lambda d: d.p95)),
    ("p99", "99 % of the positions have at most this", _show_nats(lambda d: d.p99)),
    ("p99.9", "99.9 % of the positions have at most this", _show_nats(lambda d: d.p999)),
    ("Largest", "the worst position", _show_nats(lambda d: d.maximum)),
    (
        "Share of the worst 1 %",
        "part of the mean that the worst hundredth of the positions carries",
        lambda arm: format_share(arm.divergence.top_share),
    ),
    ("Reverse KL", "KL the other way round", _show_mean(lambda d: d.reverse_kl)),
    ("Jensen-Shannon", "symmetric, at most ln 2 = 0.6931", _show_mean(lambda d: d.js)),
    (
        "Positions",
        "tokens whose distribution was compared",
        lambda arm: f"{arm.divergence.positions:,}",
    ),
)

_EXCLUDED: _Line = (
    "Infinite",
    "positions where this side calls a token impossible that the reference doesn't: means leave "
    "them out",
    lambda arm: f"{arm.divergence.infinite:,}",
)
_MASS: _Line = (
    "Mass compared",
    "probability of the reference that was compared token by token; under 100 % every "
    "distance is a lower bound",
    lambda arm: format_share(arm.divergence.covered),
)

_PROBABILITIES: tuple[_Line, ...] = (
    (
        "Same top-1",
        "positions with the same most likely token",
        lambda arm: format_share_estimate(arm.divergence.same_top),
    ),
    (
        "Top-5 overlap",
        "mean share of the five likeliest tokens that both have",
        lambda arm: format_share(arm.divergence.top5_overlap),
    ),
    (
        "RMS Δp",
        "root mean square change of the probability of the token in the text",
        lambda arm: format_share(arm.divergence.rms_dp),
    ),
    (
        "ln perplexity ratio",
        "mean ln p(reference) − ln p of the text's tokens; above 0 the text became less likely",
        lambda arm: format_estimate(arm.divergence.log_ppl_ratio),
    ),
    (
        "Entropy",
        "mean over the positions, in nats",
        lambda arm: _show_entropy(arm.divergence.entropy),
    ),
    (
        "Entropy of the reference",
        "mean over the positions, in nats",
        lambda arm: _show_entropy(arm.divergence.entropy_reference),
    ),
)

_DECISIONS: tuple[_Line, ...] = (
    (
        "Answers changed",
        "questions whose chosen answer is another, from one wrong answer to another among them",
        lambda arm: _show_flips(arm, "changed"),
    ),
    (
        "Right → wrong",
        "questions that the reference alone answers right",
        lambda arm: _show_flips(arm, "right_to_wrong"),
    ),
    (
        "Wrong → right",
        "questions that the reference alone answers wrong",
        lambda arm: _show_flips(arm, "wrong_to_right"),
    ),
    ("Greedy texts changed", "free-running completions that differ", _show_greedy),
    ("First differing token", "median of the completions that differ", _show_first_step),
)
