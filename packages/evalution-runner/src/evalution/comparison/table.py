"""A comparison, and a decision on it, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.table import Table

from evalution.comparison.comparison import (
    Comparison,
    Difference,
    MetricComparison,
    SuiteComparison,
    find_leaf_differences,
    find_missing_samples,
)
from evalution.comparison.gate import Decision, format_loss
from evalution.results import MetricResult, RunResult, describe_precisions
from evalution.table import format_number, name_run

SIGNIFICANT = 0.05
_GROUPINGS: Mapping[str | None, str] = {
    "left": "only the {0} run has groups of rows; the tests use them for both",
    "right": "only the {1} run has groups of rows; the tests use them for both",
    "neither": "the runs put the rows into different groups, so the tests use none: rows count as "
    "independent",
}
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


def make_comparison_table(comparison: Comparison, *, width: int) -> Table:
    """A row for each metric.

    On a terminal of less than 110 columns without interval and test, of less than 72 also without
    winner and p: which suite and metric it is must be readable.
    """
    shown = _choose_columns(width)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("suite", "metric"):
        table.add_column(name, overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for suite in comparison.suites:
        for position, metric in enumerate(suite.metrics):
            name = f"{metric.name} {'↑' if metric.higher_is_better else '↓'}"
            cells = _make_cells(metric, with_interval="test" in shown)
            names = [suite.name if position == 0 else "", name]
            table.add_row(*names, *(cells[column] for column in shown))
        table.add_section()
    return table


def make_legend(width: int) -> str:
    """Return an explanation of the columns that `make_comparison_table` has at this width."""
    shown = _choose_columns(width)
    return "; ".join(text for column, text in _MEANINGS.items() if column in shown)


def _choose_columns(width: int) -> tuple[str, ...]:
    return _SHOWN if width >= _NARROW else _SHOWN[: 5 if width >= _VERY_NARROW else 3]


def make_flip_table(suite: SuiteComparison, limit: int) -> Table:
    """The first `limit` rows that one side has right and the other wrong."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("row", justify="right", no_wrap=True)
    for name in ("change", "target", "left", "right"):
        table.add_column(name, overflow="fold")
    for flip in suite.flips[:limit]:
        texts = [shorten(text) for text in (flip.target, flip.left, flip.right)]
        table.add_row(str(flip.index), "better" if flip.winner == "right" else "worse", *texts)
    return table


def make_flip_heading(suite: SuiteComparison, limit: int) -> str:
    """Return a line that counts the flipped rows in each direction."""
    better = sum(flip.winner == "right" for flip in suite.flips)
    worse = len(suite.flips) - better
    more = f", the first {limit} of them" if limit < len(suite.flips) else ""
    return (
        f"{suite.name}: {suite.flipped_by} flipped in {_count_rows(better + worse)}{more}; "
        f"right is better in {better}, worse in {worse}"
    )


def list_headings(
    comparison: Comparison, sides: tuple[str, str] = ("left", "right")
) -> Iterator[str]:
    """Yield lines that name both runs, and their differences other than scores."""
    width = max(map(len, sides)) + 1
    for side, run in zip(sides, (comparison.left, comparison.right), strict=True):
        yield f"{side + ':':{width}} {_format_run(run)}"
    versions = 0
    for difference in comparison.differences:
        if difference.field.startswith("versions."):
            versions += 1
        else:
            yield f"  {_format_difference(difference)}"
    if versions:
        yield f"  versions: {versions} differ; --json lists them"


def list_remarks(
    comparison: Comparison, sides: tuple[str, str] = ("left", "right")
) -> Iterator[str]:
    """Yield caveats to print below the table; `sides` are the words for the two runs."""
    runs = comparison.left, comparison.right
    if found := describe_precisions(runs[0].precision, runs[1].precision, sides=sides):
        yield found
    for side, run in zip(sides, runs, strict=True):
        if run.status != "done":
            yield f"the {side} run is {run.status}: only its finished suites are compared"
    for side, names in zip(sides, (comparison.left_only, comparison.right_only), strict=True):
        if names:
            yield f"only in the {side} run: {', '.join(names)}"
    if not comparison.suites:
        yield "no suite is in both runs, so there is nothing to compare"
    for suite in comparison.suites:
        for remark in _list_suite_remarks(comparison, suite, sides):
            yield f"{suite.name}: {remark}"


def _list_suite_remarks(
    comparison: Comparison, suite: SuiteComparison, sides: tuple[str, str]
) -> Iterator[str]:
    yield from _list_option_remarks(suite)
    words = f"{sides[0]} run", f"{sides[1]} run"
    missing = find_missing_samples(comparison, suite.name, words)
    yield from [missing] if missing is not None else _list_row_remarks(suite, sides)
    for side, run in zip(words, (comparison.left, comparison.right), strict=True):
        if cut := run[suite.name].truncated:
            yield f"{_count_rows(cut)} had prompts that the {side} cut to fit"
    for metric in suite.metrics:
        if metric.is_contradicted:
            better = sides[metric.winner == "right"]
            yield (
                f"{metric.name} is better in the {better} run, and the rows that p is computed "
                "from favour the other: p is no evidence for this difference"
            )


def shorten(text: str | None, length: int = _TEXT) -> str:
    """One line of at most `length` characters; a dash for nothing."""
    if text is None:
        return "–"
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def _list_option_remarks(suite: SuiteComparison) -> Iterator[str]:
    found = [
        difference
        for option, (left, right) in suite.options.items()
        for difference in find_leaf_differences(left, right, option)
    ]
    yield from (f"option {_format_difference(difference)}" for difference in found[:_OPTIONS])
    if (more := len(found) - _OPTIONS) > 0:
        yield f"{more} more option{'' if more == 1 else 's'} differ; --json lists them"


def _list_row_remarks(suite: SuiteComparison, sides: tuple[str, str]) -> Iterator[str]:
    rows = suite.rows
    if not all(metric.same_rows for metric in suite.metrics):
        yield "the scores are of different rows; difference and p are of those that both answered"
    for side, count in zip(sides, (rows.left_only, rows.right_only), strict=True):
        if count:
            yield f"{_count_rows(count)} only in the {side} run"
    for side, count in zip(sides, (rows.left_failed, rows.right_failed), strict=True):
        if count:
            yield f"{_count_rows(count)} failed in the {side} run and count in no test"
    for count, remark in (
        (rows.other_rows, "of the same number but not the same: the data differ"),
        (rows.other_prompts, "with another prompt on each side, compared all the same"),
    ):
        if count:
            yield f"{_count_rows(count)} {remark}"
    if (found := _GROUPINGS.get(suite.grouped_by)) is not None:
        yield found.format(*sides)
    if not rows.paired:
        yield "no row was answered by both, so nothing is said about chance"


def _count_rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _make_cells(metric: MetricComparison, *, with_interval: bool) -> dict[str, str]:
    test = metric.test
    difference = format_number(metric.difference, sign="+")
    if with_interval and (interval := metric.shown_interval) is not None:
        difference += f" [{interval[0]:+.4f}, {interval[1]:+.4f}]"
    return {
        "left": _format_value(metric.left),
        "right": _format_value(metric.right),
        "difference": difference,
        "better": {"tie": "=", None: "–"}.get(metric.winner, str(metric.winner)),
        "p": _format_p(metric),
        "test": "" if test is None else test.name,
    }


def _format_value(metric: MetricResult | None) -> str:
    return format_number(None if metric is None else metric.value)


def _format_p(metric: MetricComparison) -> str:
    if metric.test is None or (p_value := metric.test.p_value) is None:
        return "–"
    shown = "<0.0001" if p_value < 0.0001 else f"{p_value:.4f}"
    return f"{shown} *" if p_value < SIGNIFICANT and not metric.is_contradicted else shown


def _format_run(run: RunResult) -> str:
    return name_run(run) + ("" if run.folder is None else f", {run.folder}")


def _format_difference(difference: Difference) -> str:
    left, right = (shorten(repr(v), _VALUE) for v in (difference.left, difference.right))
    return f"{difference.field}: {left} → {right}"


def describe_decision(decision: Decision) -> Iterator[str]:
    """Yield the verdict, with each check that decided it."""
    deciding = [
        check
        for check in decision.checks
        if check.verdict == decision.verdict and not check.advisory
    ]
    if decision.verdict == "ship":
        count = f"{len(deciding)} check{'' if len(deciding) == 1 else 's'}"
        yield f"ship: every loss is within its margin ({count})"
        for check in deciding:
            if doubt := check.reason.partition("; ")[2]:
                yield f"{check.subject}, {check.figure}: {doubt}"
        return
    for check in deciding:
        yield f"{decision.verdict}: {check.subject}, {check.figure}: {check.reason}"


def make_gate_table(decision: Decision) -> Table:
    """Return a row for each check; a loss below zero is a gain."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("of", "figure"):
        table.add_column(name, overflow="fold")
    for name in ("loss", "95 % interval", "margin", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    for check in decision.checks:
        ends = "–" if check.interval is None else " to ".join(map(format_loss, check.interval))
        loss = "–" if check.loss is None else format_loss(check.loss)
        verdict = f"({check.verdict})" if check.advisory else check.verdict
        table.add_row(check.subject, check.figure, loss, ends, format_loss(check.margin), verdict)
    return table
