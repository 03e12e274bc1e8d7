"""The progress bar of a terminal; its own module, since it imports rich."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from evalution.progress import PlainProgress, Progress, Running, SuiteProgress, is_quiet
from evalution.table import make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

_REFRESH_S = 0.1
"""A thousand samples a second must not redraw a thousand times."""


class ProgressBar(SuiteProgress):
    """A bar for each suite, with its rate and its main metric so far; closed with the suite."""

    def __init__(self, console: Console):
        super().__init__()
        self._console = console
        self._loading: Status | None = None
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._drawn_at = 0.0

    def model_loading(self, model: str, engine: str) -> None:
        self._loading = self._console.status(Text(f"loading {model} on {engine}"))
        self._loading.start()

    def model_ready(self, seconds: float) -> None:
        self.model_failed()
        self._console.print(f"model ready after {seconds:.1f} s", highlight=False)

    def model_failed(self) -> None:
        if self._loading is not None:
            self._loading.stop()
            self._loading = None

    def suite_started(self, name: str, total: int) -> None:
        super().suite_started(name, total)
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(name, total=total, state="")
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
        if self._bar is not None:
            self._draw()
            self._bar.stop()
            self._bar = None

    def _draw(self) -> None:
        assert self._bar is not None
        self._drawn_at = time.monotonic()
        self._bar.update(self._task, completed=self.done, state=self.format_state())


def make_terminal_progress() -> Progress:
    """Return a progress bar on a terminal, plain lines elsewhere, nothing where it is quiet."""
    if is_quiet():
        return Progress()
    terminal = make_console(stderr=True)
    return ProgressBar(terminal) if terminal.is_terminal else PlainProgress(sys.stderr)
