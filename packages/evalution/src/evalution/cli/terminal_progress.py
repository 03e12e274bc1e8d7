"""The progress of a command: a bar on a terminal, lines elsewhere; both on stderr."""

from __future__ import annotations

import sys

from evalution.progress.bar import ProgressBar
from evalution.progress.reports import PlainProgress, Progress
from evalution.table import console


def terminal_progress() -> Progress:
    """What fits the stderr of this process."""
    terminal = console(stderr=True)
    return ProgressBar(terminal) if terminal.is_terminal else PlainProgress(sys.stderr)
