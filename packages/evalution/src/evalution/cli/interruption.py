"""Ctrl-C while a run goes on: the first finishes what is in flight, the second ends at once."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from signal import SIGINT, default_int_handler, getsignal, signal
from threading import current_thread, main_thread
from types import FrameType

from evalution.runs.run import Run


@contextmanager
def finishing_first(handle: Run) -> Generator[None]:
    """Within it, a Ctrl-C asks `handle` to stop; where nothing is in flight it ends at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not handle.stop():
            raise KeyboardInterrupt
        print(
            "finishing what is in flight; Ctrl-C once more ends at once",
            file=sys.stderr,
            flush=True,
        )

    # Only the main thread gets signals; whoever handles them otherwise goes on doing so.
    is_ours = current_thread() is main_thread() and getsignal(SIGINT) is default_int_handler
    if not is_ours:
        yield
        return
    before = signal(SIGINT, interrupt)
    try:
        yield
    finally:
        signal(SIGINT, before)
