"""Several candidates of one reference, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from evalution.fidelity.result import Divergence, Estimate, FidelityResult
from evalution.fidelity.wording import (
    format_estimate,
    format_kl,
    format_nats,
    format_share,
    name_side,
)

ABSENT = "–"
_MEGABYTE = 1e6
_NARROW = 100


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A candidate as a line of a table; the columns that a narrow table has stand first.

    `flips` counts questions turned wrong, and right. A lower bound bears a ≥, and `covered` is the
    mass that was compared.
    """

    name: str
    kl: str
    size: str
    contrast: str
    p99: str
    same_top: str
    flips: str
    covered: str


COLUMNS = ("candidate", "mean KL", "weights", "less control", "p99", "same top", "flips", "mass")
"""Headings of a row's fields."""


def group_candidates(results: Iterable[FidelityResult]) -> list[list[FidelityResult]]:
    """Return the results that can be compared together, the nearest first.

    That is where the reference, the window, the mode and the texts are the same.
    """
    groups: list[list[FidelityResult]] = []
    for result in results:
        own = [group for group in groups if all(_is_alike(result, other) for other in group)]
        if own:
            own[0].append(result)
        else:
            groups.append([result])
    for group in groups:
        group.sort(key=lambda result: _rank(result.overall.candidate.divergence))
    return groups


def _rank(divergence: Divergence) -> tuple[bool, float]:
    """Return the place of a candidate; those that exclude tokens of the reference are last."""
    return divergence.infinite > 0, divergence.kl.value


def _is_alike(one: FidelityResult, other: FidelityResult) -> bool:
    """True if both are of the same windows; results without a digest of them have their counts."""
    pairs = zip(one.suites, other.suites, strict=False)
    return _identify_measurement(one) == _identify_measurement(other) and all(
        left.texts == right.texts or None in (left.texts, right.texts) for left, right in pairs
    )


def _identify_measurement(result: FidelityResult) -> tuple[object, ...]:
    engine = result.reference.engine
    reference = (result.reference.model, *map(engine.get, ("name", "options", "identity")))
    positions = [
        (suite.name, suite.documents, suite.candidate.divergence.positions)
        for suite in result.suites
    ]
    return reference, result.window, result.top, positions


def make_candidate_row(result: FidelityResult) -> CandidateRow:
    """Return the candidate of a result as a line, over all suites."""
    whole = result.overall
    divergence, flips = whole.candidate.divergence, whole.candidate.flips
    bound = "≥ " if divergence.is_lower_bound else ""
    return CandidateRow(
        name=name_side(result.candidate),
        kl=format_kl(divergence),
        size=format_bytes(result.candidate.bytes),
        contrast=ABSENT if whole.contrast is None else format_estimate(whole.contrast),
        p99=bound + format_nats(divergence.p99),
        same_top=format_share_estimate(divergence.same_top),
        flips=ABSENT if flips is None else f"{flips.right_to_wrong:,} / {flips.wrong_to_right:,}",
        covered=format_share(divergence.covered),
    )


def make_candidate_table(results: Sequence[FidelityResult], *, width: int) -> Table:
    """Return a row for each result, in their order; a narrow one has the mean and the size only."""
    table = Table(box=box.SIMPLE_HEAD)
    shown = len(COLUMNS) if width >= _NARROW else 3
    for position, name in enumerate(COLUMNS[:shown]):
        table.add_column(name, justify="right" if position else "left", overflow="fold")
    for result in results:
        row = make_candidate_row(result)
        cells = (row.name, row.kl, row.size, row.contrast, row.p99, row.same_top, row.flips)
        table.add_row(*(*cells, row.covered)[:shown])
    return table


def format_bytes(count: int | None) -> str:
    """Return a size in megabytes of a million bytes; a dash where it isn't known."""
    return ABSENT if count is None else f"{count / _MEGABYTE:,.1f} MB"


def format_share_estimate(estimate: Estimate) -> str:
    """Return a mean share with its interval, in per cent."""
    if estimate.low is None or estimate.high is None:
        return format_share(estimate.value)
    return f"{format_share(estimate.value)} ({estimate.low * 100:.2f} to {estimate.high * 100:.2f})"
