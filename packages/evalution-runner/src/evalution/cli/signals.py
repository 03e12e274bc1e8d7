"""Signals that end a command: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a terminal that is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from signal import SIG_DFL, Handlers, Signals, default_int_handler, getsignal, signal
from stat import S_ISCHR
from threading import current_thread, main_thread
from types import FrameType

_Handler = Callable[[int, FrameType | None], None]

# Windows has no SIGHUP.
_ENDING = [number for number in Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]


class SignalReceived(KeyboardInterrupt):
    """An end by a signal: as by Ctrl-C, with an exit status of its own."""

    def __init__(self, number: int):
        super().__init__(Signals(number).name)
        self.number = number


def raise_received(number: int, frame: FrameType | None) -> None:
    """Raise `SignalReceived`; the handler of a command that has nothing to finish."""
    leave_terminal(number)
    raise SignalReceived(number)


def leave_terminal(number: int) -> None:
    """Send what is printed from now on to nowhere, if the signal says that the terminal is gone."""
    if Signals(number).name != "SIGHUP":
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if S_ISCHR(os.fstat(stream).st_mode):  # a terminal that is gone is none by `isatty`
            os.dup2(nowhere, stream)
    os.close(nowhere)


@contextmanager
def catch_signals(handler: _Handler | Handlers) -> Generator[None]:
    """Within it, `handler` gets the signals that end a command.

    Only the main thread gets signals. Those that somebody else handles, or that are ignored as
    SIGHUP is under `nohup`, stay as they are.
    """
    usual = (SIG_DFL, default_int_handler, raise_received)
    is_main = current_thread() is main_thread()
    before = {number: getsignal(number) for number in _ENDING} if is_main else {}
    ours = {number: found for number, found in before.items() if found in usual}
    for number in ours:
        signal(number, handler)
    try:
        yield
    finally:
        for number, found in ours.items():
            signal(number, found)
