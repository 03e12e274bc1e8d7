"""A comparison for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from evalution.comparison.comparison import (
    Comparison,
    Difference,
    MetricComparison,
    SuiteComparison,
    leaf_differences,
)
from evalution.comparison.significance import PairedTest
from evalution.results import MetricResult, RunResult

SIGNIFICANT = 0.05
_MEANINGS = {
    "difference": "difference: right minus left",
    "test": "[…]: 95 % interval",
    "better": "better: whichever way the arrow points",
    "p": "p: how often chance alone makes as large a difference over the rows that both answered, "
    f"* below {SIGNIFICANT}",
}
_SHOWN = ("left", "right", "difference", "better", "p", "test")
_NARROW = 110
_VERY_NARROW = 72
_TEXT = 60
_VALUE = 80
_OPTIONS = 8
"""Of a suite, that are shown; two versions of a large group differ in hundreds."""


def comparison_table(comparison: Comparison, *, width: int) -> Table:
    """A row for each metric.

    On a terminal of less than 110 columns without interval and test, of less than 72 also without
    winner and p: which suite and metric it is must be readable.
    """
    shown = _columns(width)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("suite", "metric"):
        table.add_column(name, overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for suite in comparison.suites:
        for position, metric in enumerate(suite.metrics):
            name = f"{metric.name} {'↑' if metric.higher_is_better else '↓'}"
            cells = _cells(metric, with_interval="test" in shown)
            names = [suite.name if position == 0 else "", name]
            table.add_row(*names, *(cells[column] for column in shown))
        table.add_section()
    return table


def legend(width: int) -> str:
    """Return an explanation of the columns that `comparison_table` has at this width."""
    shown = _columns(width)
    return "; ".join(text for column, text in _MEANINGS.items() if column in shown)


def _columns(width: int) -> tuple[str, ...]:
    return _SHOWN if width >= _NARROW else _SHOWN[: 5 if width >= _VERY_NARROW else 3]


def flip_table(suite: SuiteComparison, limit: int) -> Table:
    """The first `limit` rows that one side has right and the other wrong."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("row", justify="right", no_wrap=True)
    for name in ("change", "target", "left", "right"):
        table.add_column(name, overflow="fold")
    for flip in suite.flips[:limit]:
        texts = [shortened(text) for text in (flip.target, flip.left, flip.right)]
        table.add_row(str(flip.index), "better" if flip.winner == "right" else "worse", *texts)
    return table


def flip_heading(suite: SuiteComparison, limit: int) -> str:
    """Return a line that counts the flipped rows in each direction."""
    better = sum(flip.winner == "right" for flip in suite.flips)
    worse = len(suite.flips) - better
    more = f", the first {limit} of them" if limit < len(suite.flips) else ""
    return (
        f"{suite.name}: {suite.flipped_by} flipped in {_rows(better + worse)}{more}; right is "
        f"better in {better}, worse in {worse}"
    )


def headings(comparison: Comparison) -> Iterator[str]:
    """Yield lines that name both runs, and their differences other than scores."""
    for side, run in (("left", comparison.left), ("right", comparison.right)):
        yield f"{side + ':':6} {_run(run)}"
    versions = 0
    for difference in comparison.differences:
        if difference.field.startswith("versions."):
            versions += 1
        else:
            yield f"  {_shown(difference)}"
    if versions:
        yield f"  versions: {versions} differ; --json lists them"


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield caveats to print below the table."""
    for side, run in (("left", comparison.left), ("right", comparison.right)):
        if run.status != "done":
            yield f"the {side} run is {run.status}: only its finished suites are compared"
    for side, names in (("left", comparison.left_only), ("right", comparison.right_only)):
        if names:
            yield f"only in the {side} run: {', '.join(names)}"
    if not comparison.suites:
        yield "no suite is in both runs, so there is nothing to compare"
    for suite in comparison.suites:
        yield from (f"{suite.name}: {remark}" for remark in _option_remarks(suite))
        yield from (f"{suite.name}: {remark}" for remark in _row_remarks(suite))


def shortened(text: str | None, length: int = _TEXT) -> str:
    """One line of at most `length` characters; a dash for nothing."""
    if text is None:
        return "–"
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def _option_remarks(suite: SuiteComparison) -> Iterator[str]:
    found = [
        difference
        for option, (left, right) in suite.options.items()
        for difference in leaf_differences(left, right, option)
    ]
    yield from (f"option {_shown(difference)}" for difference in found[:_OPTIONS])
    if (more := len(found) - _OPTIONS) > 0:
        yield f"{more} more option{'' if more == 1 else 's'} differ; --json lists them"


def _row_remarks(suite: SuiteComparison) -> Iterator[str]:
    rows = suite.rows
    if not all(metric.same_rows for metric in suite.metrics):
        yield "the scores are of different rows; difference and p are of those that both answered"
    for side, count in (("left", rows.left_only), ("right", rows.right_only)):
        if count:
            yield f"{_rows(count)} only in the {side} run"
    for side, count in (("left", rows.left_failed), ("right", rows.right_failed)):
        if count:
            yield f"{_rows(count)} failed in the {side} run and count in no test"
    if rows.other_rows:
        yield f"{_rows(rows.other_rows)} of the same number but not the same: the data differ"
    if rows.other_prompts:
        yield f"{_rows(rows.other_prompts)} with another prompt on each side, compared all the same"
    if not rows.paired:
        yield "no row was answered by both, so nothing is said about chance"


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _cells(metric: MetricComparison, *, with_interval: bool) -> dict[str, str]:
    test = metric.test
    difference = _difference(metric)
    if with_interval and test is not None and test.interval is not None:
        difference += f" [{test.interval[0]:+.4f}, {test.interval[1]:+.4f}]"
    return {
        "left": _value(metric.left),
        "right": _value(metric.right),
        "difference": difference,
        "better": {"tie": "=", None: "–"}.get(metric.winner, str(metric.winner)),
        "p": _p(test),
        "test": "" if test is None else test.name,
    }


def _value(metric: MetricResult | None) -> str:
    value = None if metric is None else metric.value
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.6g}"


def _difference(metric: MetricComparison) -> str:
    value = metric.difference
    if value is None:
        return "–"
    return f"{value:+.4f}" if abs(value) < 1000 else f"{value:+.6g}"


def _p(test: PairedTest | None) -> str:
    if test is None or test.p_value is None:
        return "–"
    shown = "<0.0001" if test.p_value < 0.0001 else f"{test.p_value:.4f}"
    return f"{shown} *" if test.p_value < SIGNIFICANT else shown


def _run(run: RunResult) -> str:
    model = run.model.get("label") or run.model.get("path") or "default model"
    engine = run.engine.get("name") or "a live session"
    return f"{model} on {engine}" + ("" if run.folder is None else f", {run.folder}")


def _shown(difference: Difference) -> str:
    left, right = (shortened(repr(v), _VALUE) for v in (difference.left, difference.right))
    return f"{difference.field}: {left} → {right}"
