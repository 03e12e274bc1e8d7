"""A parity result for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rich import box
from rich.table import Table

from evalution.parity.result import (
    NEAR_TIE,
    DifferenceStats,
    ParityResult,
    SuiteParity,
    TokenDifference,
)

_NARROW = 90
_SHOWN = ("requests", "tokens", "max |Δ|", "p99", "p50", "flips", "greedy", "texts")
_SHOWN_NARROW = ("max |Δ|", "flips", "texts")
_WORST_SHOWN = 3
_LISTED = 3


def make_parity_table(result: ParityResult, *, width: int) -> Table:
    """A row for each suite: how large the differences are, and which decisions they change.

    On a terminal of less than 90 columns only the largest difference, flips and texts.
    """
    shown = _SHOWN if width >= _NARROW else _SHOWN_NARROW
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("suite", overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for suite in result.suites:
        cells = _make_cells(suite)
        table.add_row(suite.name, *(cells[column] for column in shown))
    return table


LEGEND = (
    "|Δ|: between the two log-probabilities of a token, in nats (of a request where tokens aren't "
    "reported); flips, greedy, texts: decisions that differ, of how many; in brackets near ties "
    f"(under {NEAR_TIE:g}), which count as the same"
)


def list_headings(result: ParityResult) -> Iterator[str]:
    """Yield lines that name both engines."""
    for side, subject in (("left", result.left), ("right", result.right)):
        model, engine = subject["model"], subject["engine"]
        options = ", ".join(f"{k}={v}" for k, v in engine["options"].items() if v is not None)
        named = model.get("label") or model.get("path") or "default model"
        yield f"{side + ':':6} {named} on {engine['name']}{f' ({options})' if options else ''}"


def list_remarks(result: ParityResult) -> Iterator[str]:
    """Yield what doesn't fit into the table: where the worst is, and what could not be compared."""
    yield from result.notes
    for suite in result.suites:
        is_beyond = suite.tokens is not None and suite.tokens.max > result.tolerance.logprob
        worst = suite.worst_tokens[: _WORST_SHOWN if is_beyond else 1]
        yield from (
            f"{suite.name}: {text}" for text in (*_list_worst(worst), *_list_suite_remarks(suite))
        )


def list_verdict(result: ParityResult) -> Iterator[str]:
    """One line if all is within the tolerance, else a line for each complaint."""
    if result.is_within:
        yield f"within the tolerance of {result.tolerance.logprob:g} per token"
    if texts := [suite.name for suite in result.suites if not (suite.tokens or suite.sums)]:
        yield f"only texts were compared, as a side gave no log-probabilities: {', '.join(texts)}"
    for complaint in result.complaints:
        yield f"outside the tolerance: {complaint}"


def _make_cells(suite: SuiteParity) -> dict[str, str]:
    spread = suite.tokens or suite.sums
    sizes = None if spread is None else [*_format_sizes(spread)]
    return {
        "requests": f"{suite.compared}/{suite.requests}",
        "tokens": "–" if suite.tokens is None else str(suite.tokens.count),
        **{
            name: "–" if sizes is None else sizes[at]
            for at, name in enumerate(("max |Δ|", "p99", "p50"))
        },
        "flips": _format_share(suite.flips, suite.near_flips, suite.choices),
        "greedy": _format_share(suite.greedy_apart, 0, suite.greedy),
        "texts": _format_share(suite.divergences, suite.near_divergences, suite.texts),
    }


def _format_sizes(spread: DifferenceStats) -> Iterator[str]:
    """Yield the maximum and two quantiles; ∞ for those that an infinite difference reaches."""
    for share, size in ((1.0, spread.max), (0.99, spread.p99), (0.5, spread.p50)):
        is_infinite = math.ceil(share * spread.count) > spread.count - spread.infinite
        yield "∞" if is_infinite else f"{size:.1e}"


def _list_worst(differences: Iterable[TokenDifference]) -> Iterator[str]:
    for worst in differences:
        token = "" if worst.token_id is None else f" (id {worst.token_id})"
        yield (
            f"one of the largest differences: row {worst.row}, request {worst.request}, token "
            f"{worst.position}{token}: {_show(worst.left)} against {_show(worst.right)}"
        )


def _list_suite_remarks(suite: SuiteParity) -> Iterator[str]:
    for flip in [flip for flip in suite.flip_list if not flip.is_near_tie][:_LISTED]:
        yield f"row {flip.row}: choice {flip.left} became {flip.right}, gap {_show(flip.gap)}"
    if suite.greedy_rows:
        rows = ", ".join(map(str, suite.greedy_rows[:_LISTED]))
        yield f"is_greedy differs in row {rows}{', …' if suite.greedy_apart > _LISTED else ''}"
    for parting in [found for found in suite.divergence_list if not found.is_near_tie][:_LISTED]:
        place = "" if parting.token is None else f"token {parting.token}, "
        gap = "unknown" if parting.gap is None else f"{parting.gap:.3g}"
        yield (
            f"row {parting.row}: texts part at {place}character {parting.character}, gap {gap}: "
            f"{parting.left!r} became {parting.right!r}"
        )
    missing = suite.uncompared
    for count, reason in (
        (missing.left_failed, "requests that failed on the left alone"),
        (missing.right_failed, "requests that failed on the right alone"),
        (missing.both_failed, "requests that failed on both sides"),
        (missing.cut_apart, "requests cut at different places"),
        (missing.counted_apart, "requests with another number of tokens on each side"),
    ):
        if count:
            yield f"{reason}: {count}"
    if missing.first_failure is not None:
        yield missing.first_failure


def _format_share(count: int, near: int, total: int) -> str:
    if not total:
        return "–"
    return f"{count}{f' [{near}]' if near else ''}/{total}"


def _show(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.7f}"
