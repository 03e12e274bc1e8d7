"""Messages and exit codes of commands that fail."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT

import typer

from evalution.cli.signals import SignalReceived, catch_signals, raise_received
from evalution.redaction import mask_text
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    UnsupportedRequestError,
)

EXIT_FAILED, EXIT_USAGE, EXIT_WITH_FAILURES = 1, 2, 3
EXIT_OUTSIDE = EXIT_WITH_FAILURES
"""Two engines differ by more than the tolerance, or a candidate by more than the policy allows."""
EXIT_UNDECIDED = 4
"""There are too few rows to say if a candidate may ship."""
KEPT, NOTHING_KEPT = "what was finished is kept", "nothing is kept"
_HINT = "hint: "
"""The beginning of a line, or of a note of an error, that says what to do next."""


def exit_status(error: EvalutionError) -> int:
    """Return 2 for a wrong spec or wrong use of a command, where nothing was run; else 1."""
    is_usage = isinstance(error, ConfigurationError | UnsupportedRequestError)
    return EXIT_USAGE if is_usage else EXIT_FAILED


def find_signal_status(error: KeyboardInterrupt) -> int:
    """Return the exit status of a command that a signal ended: 130, 143 or 129."""
    return 128 + (error.number if isinstance(error, SignalReceived) else SIGINT)


@contextmanager
def report_errors(*, debug: bool, kept: str = KEPT) -> Generator[None]:
    """Print an `EvalutionError` or a Ctrl-C in one line, and leave with its exit code.

    SIGTERM and SIGHUP end a command as Ctrl-C does; `kept` says what remains of its work.
    """
    try:
        with catch_signals(raise_received):
            yield
    except EvalutionError as error:
        if debug:
            _print_traceback()
        print_error(error)
        raise typer.Exit(exit_status(error)) from None
    except KeyboardInterrupt as error:
        with catch_signals(SIG_IGN):  # a second one must not end this as something else
            if debug:
                _print_traceback()
            print(f"interrupted; {kept}", file=sys.stderr)
        raise typer.Exit(find_signal_status(error)) from None


@contextmanager
def hint_isolation(*, is_possible: bool) -> Generator[None]:
    """Add a hint at `isolate` to an error of a runtime that died with requests in flight."""
    try:
        yield
    except EngineRuntimeError as error:
        if error.in_flight and is_possible:
            error.add_note(
                f"{_HINT}if it happens again, `isolate: true` at the top of the spec finds the "
                "request and records it as failed"
            )
        raise


def _print_traceback() -> None:
    # It contains messages of foreign errors as they are.
    print(mask_text(traceback.format_exc()), end="", file=sys.stderr)


def print_error(error: EvalutionError) -> None:
    """Print the error, its notes and what to do next to stderr, without secrets."""
    from evalution.table import make_console  # noqa: PLC0415 - an eighth of the program's start

    terminal = make_console(stderr=True)
    terminal.print("error:", style="bold red", end=" ")
    terminal.print(mask_text(str(error)), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        label = "" if note.startswith(_HINT) else "note: "
        terminal.print(f"{label}{mask_text(note)}", soft_wrap=True)
    if isinstance(error, EngineUnavailableError):
        hint = "`evalution doctor` shows which engines work here, and what others lack"
        terminal.print(f"{_HINT}{hint}", soft_wrap=True)
