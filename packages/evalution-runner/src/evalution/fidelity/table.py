"""A fidelity result for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from evalution.fidelity.result import Arm, FidelityResult
from evalution.fidelity.wording import (
    describe_mode,
    format_estimate,
    format_kl,
    format_nats,
    name_side,
)

_SHOWN = {
    140: ("KL in nats", "median", "p99", "same top", "RMS Δp", "ln PPL ratio", "flips"),
    90: ("KL in nats", "p99", "same top", "flips"),
    0: ("KL in nats", "same top"),
}
"""Columns by the least width of the terminal."""


def list_headings(result: FidelityResult) -> Iterator[str]:
    """Yield lines that name the sides, and what was compared."""
    sides = [("reference", result.reference), ("candidate", result.candidate)]
    if result.control is not None:
        sides.append(("control", result.control))
    for name, side in sides:
        yield f"{name + ':':10} {name_side(side)}"
    yield f"compared:  {describe_mode(result)}, in windows of {result.window:,} tokens"


def make_fidelity_table(result: FidelityResult, *, width: int) -> Table:
    """A row for each suite and arm, and for all suites together where there are several.

    A narrower terminal shows fewer of the figures.
    """
    shown = next(columns for least, columns in _SHOWN.items() if width >= least)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("suite", overflow="fold")
    if result.control is not None:
        table.add_column("arm")
    table.add_column("positions", justify="right", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    together = [result.overall] if len(result.suites) > 1 else []
    for suite in [*result.suites, *together]:
        arms = [("candidate", suite.candidate)]
        if suite.control is not None:
            arms.append(("control", suite.control))
        for name, arm in arms:
            label = [name] if result.control is not None else []
            cells = _make_cells(arm)
            positions = f"{arm.divergence.positions:,}"
            table.add_row(suite.name, *label, positions, *(cells[column] for column in shown))
    return table


LEGEND = (
    "KL(reference ‖ side): mean over positions, with a 95 % interval clustered by document; same "
    "top: positions with the same most likely token; Δp: of the text's token; ln PPL ratio: above "
    "0 the side is worse; flips: questions turned wrong / turned right"
)


def _make_cells(arm: Arm) -> dict[str, str]:
    found, flips = arm.divergence, arm.flips
    bound = "≥ " if found.is_lower_bound else ""
    return {
        "KL in nats": format_kl(found),
        "median": bound + format_nats(found.median),
        "p99": bound + format_nats(found.p99),
        "same top": f"{found.same_top.value:.2%}",
        "RMS Δp": f"{found.rms_dp:.2%}",
        "ln PPL ratio": format_estimate(found.log_ppl_ratio),
        "flips": "–" if flips is None else f"{flips.right_to_wrong} / {flips.wrong_to_right}",
    }
