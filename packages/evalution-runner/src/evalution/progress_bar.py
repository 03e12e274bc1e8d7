"""The progress bar of a terminal; its own module, since it imports rich."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from evalution.progress import PlainProgress, Progress, Running, SuiteProgress, is_quiet
from evalution.table import make_console

if TYPE_CHECKING:
    from rich.console import Console

_REFRESH_S = 0.1
"""A thousand samples a second must not redraw a thousand times."""
_WIDE, _MEDIUM = 100, 64
_SPINNER = 2


class ProgressBar(SuiteProgress):
    """A bar for each suite, with its rate and its main metric so far; closed with the suite.

    A narrow terminal shows the numbers without the bar, and the more important of them.
    """

    def __init__(self, console: Console):
        super().__init__()
        self._console = console
        self._is_ascii = not console.encoding.startswith("utf")
        self._step: Bar | None = None
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._drawn_at = 0.0

    def rows_checking(self, suite: str) -> None:
        self._start_step(f"reading the rows of {suite}")

    def rows_checked(self) -> None:
        self.model_failed()

    def model_loading(self, model: str, engine: str) -> None:
        self._start_step(f"loading {model} on {engine}")

    def model_ready(self, seconds: float) -> None:
        self.model_failed()
        self._console.print(f"model ready after {seconds:.1f} s", highlight=False)

    def model_failed(self) -> None:
        if self._step is not None:
            self._step.stop()
            self._step = None

    def suite_started(self, name: str, total: int) -> None:
        super().suite_started(name, total)
        width = self._console.width
        bar = 20 if width >= _WIDE else 8 if width >= _MEDIUM else 0
        self._bar = self._make_bar(
            *([BarColumn(bar_width=bar)] if bar else ()),
            MofNCompleteColumn(),
            _StateColumn(self, bar + 1 if bar else 0),
        )
        self._task = self._bar.add_task(self._title, total=total)
        self._drawn_at = time.monotonic()
        self._bar.start()

    def samples_cached(self, done: int) -> None:
        super().samples_cached(done)
        if done:
            self._console.print(f"{done} samples were finished before", highlight=False)

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        super().sample_finished(done, failed, running)
        if time.monotonic() - self._drawn_at >= _REFRESH_S:
            self._draw()

    def suite_finished(self) -> None:
        super().suite_finished()
        if self._bar is not None:
            self._draw()
            self._bar.stop()
            self._bar = None

    def find_room(self, taken: int) -> int:
        """Return the columns that are left for the state beside a bar of so many."""
        count = 2 * len(str(self.total)) + 1
        return self._console.width - _SPINNER - len(self._title) - count - taken - 2

    @property
    def _title(self) -> str:
        """The suite's name, shortened where it would take a third of the line, and its place."""
        name, width = self.name, self._console.width
        if len(name) > width // 3:
            name = f"{name[: width // 6]}..{name[-width // 6 + 2 :]}"
        if self.place is None:
            return name
        return name + (" ({} of {})" if width >= _WIDE else " ({}/{})").format(*self.place)

    def _start_step(self, text: str) -> None:
        self._step = self._make_bar(TimeElapsedColumn(), is_transient=True)
        self._step.add_task(text, total=None)
        self._step.start()

    def _make_bar(self, *columns: ProgressColumn, is_transient: bool = False) -> Bar:
        return Bar(
            SpinnerColumn("line" if self._is_ascii else "dots"),
            TextColumn("{task.description}", markup=False),
            *columns,
            console=self._console,
            transient=is_transient,
        )

    def _draw(self) -> None:
        assert self._bar is not None
        self._drawn_at = time.monotonic()
        self._bar.update(self._task, completed=self.done)


class _StateColumn(ProgressColumn):
    """The state as far as there is room for it, also while no answer comes."""

    def __init__(self, progress: ProgressBar, taken: int):
        super().__init__()
        self._progress = progress
        self._taken = taken

    def render(self, task: Task) -> Text:
        return Text(self._progress.format_state(self._progress.find_room(self._taken)))


def make_terminal_progress() -> Progress:
    """Return a progress bar on a terminal, plain lines elsewhere, nothing where it is quiet.

    A terminal that can't move its cursor gets lines too; both are on stderr.
    """
    if is_quiet():
        return Progress()
    terminal = make_console(stderr=True)
    return ProgressBar(terminal) if terminal.is_interactive else PlainProgress(sys.stderr)
