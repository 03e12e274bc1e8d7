"""Fidelity measurements on the page: each with its worst tokens, and candidates side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalution.fidelity.candidates import (
    CandidateRow,
    format_bytes,
    group_candidates,
    make_candidate_row,
)
from evalution.fidelity.result import FidelityResult, SuiteFidelity, TopToken, WorstToken
from evalution.fidelity.wording import (
    describe_mode,
    describe_result,
    format_nats,
    format_share,
    name_side,
)
from evalution.redaction import mask_text
from evalution.report.fidelity_figures import draw_pareto, make_fidelity_figures
from evalution.report.fidelity_table import FigureGroup, list_figure_groups
from evalution.report.figures import Figure

_WORST_SHOWN = 20
_BEFORE_SHOWN = 240
"""Characters of the text before a token: its end."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKS = {"\n": "↵", "\t": "⇥"}


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
    return f"{format_bytes(after)} of weights, {format_bytes(before)} in the reference"


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


def make_candidate_groups(results: Sequence[FidelityResult]) -> Iterator[CandidateGroup]:
    """Yield the candidates of each reference that has several, measured in the same way."""
    several = [group for group in group_candidates(results) if len(group) > 1]
    for position, group in enumerate(several):
        yield CandidateGroup(
            reference=name_side(group[0].reference),
            mode=describe_mode(group[0]),
            is_lower_bound=any(r.overall.candidate.divergence.is_lower_bound for r in group),
            rows=[make_candidate_row(result) for result in group],
            figures=draw_pareto(group, f"candidates-{position}"),
        )
