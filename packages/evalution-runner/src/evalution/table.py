"""Results as a table for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from evalution.ascii_text import SIGNS

if TYPE_CHECKING:
    from rich.text import Text

    from evalution.results import MetricResult, RunResult, SuiteResult

_WIDTH = 120
"""Of a table that goes to no terminal."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FILLING = re.compile(r" +(?=\n)")
_INTERVAL = "95 % interval"
_WIDE = 100
_NARROW = 64


class _VerbatimConsole(Console):
    """Shows texts as they are: brackets are no markup, colons no emoji, and escapes no commands."""

    def __init__(self, *, stderr: bool, width: int | None = None):
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        # A model's answer, or somebody's rows, must not rule the terminal.
        shown = _CONTROL.sub(_escape, text)
        is_unicode = self.encoding.startswith("utf")
        return super().render_str(shown if is_unicode else shown.translate(SIGNS), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, and to a file without the blanks that fill a table's lines."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(_FILLING.sub("", captured.get()))
        self.file.flush()


def make_console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal, or wide enough for any table where there is none."""
    found = _VerbatimConsole(stderr=stderr)
    return found if found.is_terminal else _VerbatimConsole(stderr=stderr, width=_WIDTH)


def print_answer(
    headings: Iterable[str],
    make_table: Callable[[int], Table],
    legend: str,
    remarks: Iterable[str],
    answers: Iterable[str],
    written: Path | None,
    *,
    style: str = "bold",
) -> None:
    """Print what was compared, a table for the terminal's width, remarks, and the answer last."""
    terminal = make_console()
    for line in headings:
        terminal.print(line, soft_wrap=True)
    terminal.print(make_table(terminal.width))
    terminal.print(legend, style="dim", soft_wrap=True)
    for line in remarks:
        terminal.print(line, style="yellow", soft_wrap=True)
    for line in answers:
        terminal.print(line, style=style, soft_wrap=True)
    if written is not None:
        print(f"results: {written}")


def make_result_table(result: RunResult, *, width: int = _WIDTH) -> Table:
    """Suite, metric, value, standard error, interval, n, failed, truncated; ↑ is better higher.

    On a terminal of less than 100 columns the standard error is left out, and failed and truncated
    where nothing was; on one of less than 64 also the interval: a score must be readable in full. A
    line below names what is left out.
    """
    shown = _choose_columns(result, width)
    table = Table(title=_make_title(result), box=box.SIMPLE_HEAD, title_justify="left")
    if width < _NARROW:
        table.show_edge, table.padding = False, (0, 0)
    if width < _WIDE:
        left_out = "stderr" if width >= _NARROW else f"{_INTERVAL}, stderr"
        table.caption, table.caption_justify = f"wider terminals: {left_out}", "left"
    for name in ("suite", "metric"):
        table.add_column(name, overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for suite in result.suites:
        for position, (name, metric) in enumerate(suite.metrics.items()):
            cells = _make_cells(suite, metric, width)
            names = [suite.name if position == 0 else "", _format_metric(name, metric)]
            table.add_row(*names, *(cells[column] for column in shown))
        table.add_section()
    return table


def list_complaints(result: RunResult) -> list[str]:
    """A line for each suite that has failed samples or faults of the session, with the first."""
    lines: list[str] = []
    for suite in result.suites:
        if suite.failed:
            lines.append(
                f"{suite.name}: {suite.failed} of {suite.n} samples failed; {suite.first_failure}"
            )
        lines.extend(f"{suite.name}: {error}" for error in suite.errors)
    return lines


def _choose_columns(result: RunResult, width: int) -> list[str]:
    if width >= _WIDE:
        return ["value", "stderr", _INTERVAL, "n", "failed", "cut"]
    found = ["value", _INTERVAL, "n"] if width >= _NARROW else ["value", "n"]
    if any(suite.failed for suite in result.suites):
        found.append("failed")
    if any(suite.truncated for suite in result.suites):
        found.append("cut")
    return found


def _escape(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


def _make_title(result: RunResult) -> str:
    if not result.limit:
        return name_run(result)
    rows = "1 row" if result.limit == 1 else f"{result.limit} rows"
    return f"{name_run(result)}, at most {rows} of each suite"


def name_run(run: RunResult) -> str:
    """Return a run's model and engine: `tiny on Reference`."""
    model = run.model.get("label") or run.model.get("path") or "default model"
    return f"{model} on {run.engine.get('name') or 'a live session'}"


def _format_metric(name: str, metric: MetricResult) -> str:
    return f"{name} {'↑' if metric.higher_is_better else '↓'}"


def _make_cells(suite: SuiteResult, metric: MetricResult, width: int) -> dict[str, str]:
    groups = metric.groups if width >= _WIDE else None
    return {
        "value": format_number(metric.value),
        "stderr": f"± {format_number(metric.stderr)}" if metric.stderr else "",
        _INTERVAL: format_interval(metric.interval),
        "n": str(metric.n)
        if groups is None
        else f"{metric.n} in {groups} group{'' if groups == 1 else 's'}",
        "failed": str(suite.failed),
        "cut": "–" if suite.truncated is None else str(suite.truncated),
    }


def format_interval(interval: tuple[float, float] | None) -> str:
    """Return both ends with three decimals, and nothing for no interval: `[0.676, 1.000]`."""
    if interval is None:
        return ""
    low, high = (f"{end:.3f}" if abs(end) < 1000 else f"{end:.6g}" for end in interval)
    return f"[{low}, {high}]"


def format_number(value: float | None, *, sign: str = "") -> str:
    """Return four decimals, six digits from a thousand on, a dash for None; `+` shows the sign."""
    if value is None:
        return "–"
    return f"{value:{sign}.4f}" if abs(value) < 1000 else f"{value:{sign}.6g}"
