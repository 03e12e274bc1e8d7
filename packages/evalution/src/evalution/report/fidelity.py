"""Fidelity measurements on the page: each with its worst tokens, and candidates side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalution.fidelity.result import FidelityResult, SuiteFidelity, TopToken, WorstToken
from evalution.fidelity.wording import (
    describe_mode,
    describe_result,
    format_estimate,
    format_nats,
    format_share,
    name_side,
)
from evalution.redaction import mask_text
from evalution.report.fidelity_figures import draw_pareto, make_fidelity_figures
from evalution.report.fidelity_table import FigureGroup, format_share_estimate, list_figure_groups
from evalution.report.figures import Figure
from evalution.report.rendering import ABSENT

_WORST_SHOWN = 20
_BEFORE_SHOWN = 240
"""Characters of the text before a token: its end."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKS = {"\n": "↵", "\t": "⇥"}
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class TokenChance:
    """One of a side's likeliest tokens; `is_text` where it is the token of the text."""

    text: str
    probability: float
    shown: str
    is_text: bool


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A worst token of a suite, its texts as they may be shown, and both sides' likeliest."""

    suite: str
    found: WorstToken
    kl: str
    before: str
    token: str
    lists: Sequence[tuple[str, Sequence[TokenChance]]]


@dataclass(frozen=True, slots=True)
class FidelityView:
    """A measurement with its figures; `suites` are the columns of its table."""

    result: FidelityResult
    reference: str
    candidate: str
    control: str | None
    mode: str
    weights: str | None
    sentences: Sequence[str]
    notes: Sequence[str]
    suites: Sequence[SuiteFidelity]
    groups: Sequence[FigureGroup]
    worst: Sequence[ShownToken]
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One of several candidates of a reference, as a line of their table."""

    name: str
    size: str
    kl: str
    contrast: str
    p99: str
    same_top: str
    flips: str
    covered: str


@dataclass(frozen=True, slots=True)
class CandidateGroup:
    """Candidates held against one reference on the same texts, the nearest first."""

    reference: str
    mode: str
    is_lower_bound: bool
    rows: Sequence[CandidateRow]
    figures: Sequence[Figure]


def make_fidelity_view(result: FidelityResult, position: int) -> FidelityView:
    """Return the view of the measurement that stands at `position` on the page."""
    suites = result.suites if len(result.suites) == 1 else [result.overall, *result.suites]
    return FidelityView(
        result=result,
        reference=name_side(result.reference),
        candidate=name_side(result.candidate),
        control=None if result.control is None else name_side(result.control),
        mode=describe_mode(result),
        weights=_describe_weights(result),
        sentences=[mask_text(text) for text in describe_result(result)],
        notes=[mask_text(text) for text in result.notes],
        suites=suites,
        groups=list(list_figure_groups(suites)),
        worst=_list_worst(result),
        figures=make_fidelity_figures(suites, f"fidelity-{position}"),
    )


def _describe_weights(result: FidelityResult) -> str | None:
    before, after = result.reference.bytes, result.candidate.bytes
    if before is None or after is None:
        return None
    return f"{_format_bytes(after)} of weights, {_format_bytes(before)} in the reference"


def _format_bytes(count: int | None) -> str:
    return ABSENT if count is None else f"{count / _MEGABYTE:,.1f} MB"


def _list_worst(result: FidelityResult) -> list[ShownToken]:
    found = [(suite, token) for suite in result.suites for token in suite.candidate.worst]
    found.sort(key=lambda pair: pair[1].kl, reverse=True)
    return [_show_worst(suite, token) for suite, token in found[:_WORST_SHOWN]]


def _show_worst(suite: SuiteFidelity, found: WorstToken) -> ShownToken:
    bound = "≥ " if suite.candidate.divergence.is_lower_bound else ""
    cut = "…" if len(found.before) > _BEFORE_SHOWN else ""
    return ShownToken(
        suite=suite.name,
        found=found,
        kl=bound + format_nats(found.kl),
        before=cut + show_text(found.before[-_BEFORE_SHOWN:]),
        token=show_text(found.token),
        lists=[
            (side, [_show_chance(token, found.token) for token in tokens])
            for side, tokens in (("reference", found.reference_top), ("candidate", found.top))
        ],
    )


def _show_chance(token: TopToken, text: str) -> TokenChance:
    shown = format_share(token.probability)
    return TokenChance(show_text(token.text), token.probability, shown, token.text == text)


def show_text(text: str) -> str:
    """Return `text` with signs for its line ends and other characters that can't be seen."""
    return _CONTROL.sub(lambda found: _MARKS.get(found[0], "�"), text)


def group_candidates(results: Sequence[FidelityResult]) -> Iterator[CandidateGroup]:
    """Yield the candidates of each reference that has several, measured in the same way."""
    groups: list[list[FidelityResult]] = []
    for result in results:
        key = _identify_measurement(result)
        own = [group for group in groups if _identify_measurement(group[0]) == key]
        if own:
            own[0].append(result)
        else:
            groups.append([result])
    for position, group in enumerate(group for group in groups if len(group) > 1):
        group.sort(key=lambda result: result.overall.candidate.divergence.kl.value)
        yield CandidateGroup(
            reference=name_side(group[0].reference),
            mode=describe_mode(group[0]),
            is_lower_bound=any(r.overall.candidate.divergence.is_lower_bound for r in group),
            rows=[_make_candidate(result) for result in group],
            figures=draw_pareto(group, f"candidates-{position}"),
        )


def _identify_measurement(result: FidelityResult) -> tuple[object, ...]:
    """Return what two measurements must share for their figures to be comparable."""
    model, engine = result.reference.model, result.reference.engine
    positions = [
        (suite.name, suite.documents, suite.candidate.divergence.positions)
        for suite in result.suites
    ]
    return model, engine.get("name"), engine.get("options"), result.window, result.top, positions


def _make_candidate(result: FidelityResult) -> CandidateRow:
    whole = result.overall
    divergence, flips = whole.candidate.divergence, whole.candidate.flips
    bound = "≥ " if divergence.is_lower_bound else ""
    return CandidateRow(
        name=name_side(result.candidate),
        size=_format_bytes(result.candidate.bytes),
        kl=format_estimate(divergence.kl, is_lower_bound=divergence.is_lower_bound),
        contrast=ABSENT if whole.contrast is None else format_estimate(whole.contrast),
        p99=bound + format_nats(divergence.p99),
        same_top=format_share_estimate(divergence.same_top),
        flips=ABSENT if flips is None else f"{flips.right_to_wrong:,} / {flips.wrong_to_right:,}",
        covered=format_share(divergence.covered),
    )
