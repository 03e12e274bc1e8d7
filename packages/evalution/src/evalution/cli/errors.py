"""What a person reads when a command fails, and the exit code that goes with it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, signal

import typer

from evalution.table import console
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    UnsupportedRequestError,
    scrub,
)

EXIT_FAILED, EXIT_USAGE, EXIT_WITH_FAILURES, EXIT_INTERRUPTED = 1, 2, 3, 130
EXIT_OUTSIDE = EXIT_WITH_FAILURES
"""Two engines differ by more than the tolerance."""
_HINT = "hint: "
"""How a line, or a note of an error, begins that says what to do next."""


def exit_status(error: EvalutionError) -> int:
    """2 where a spec or the use of a command is wrong, so that nothing was run; else 1."""
    is_usage = isinstance(error, ConfigurationError | UnsupportedRequestError)
    return EXIT_USAGE if is_usage else EXIT_FAILED


@contextmanager
def told_errors(*, debug: bool) -> Generator[None]:
    """Tell an `EvalutionError` or a Ctrl-C in one line and leave with its exit code."""
    try:
        yield
    except EvalutionError as error:
        if debug:
            _print_traceback()
        tell(error)
        raise typer.Exit(exit_status(error)) from None
    except KeyboardInterrupt:
        before = signal(SIGINT, SIG_IGN)  # a second Ctrl-C must not end this as something else
        if debug:
            _print_traceback()
        print("interrupted; what was finished is kept", file=sys.stderr)
        signal(SIGINT, before)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def isolation_hinted(*, is_possible: bool) -> Generator[None]:
    """Tell with an error that lost requests how to find the one to blame, where isolation can."""
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
    # Messages of foreign errors stand in it as they are.
    print(scrub(traceback.format_exc()), end="", file=sys.stderr)


def tell(error: EvalutionError) -> None:
    """The error, its notes and what to do next, on stderr; secrets are scrubbed."""
    terminal = console(stderr=True)
    terminal.print("error:", style="bold red", end=" ")
    terminal.print(scrub(str(error)), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        label = "" if note.startswith(_HINT) else "note: "
        terminal.print(f"{label}{scrub(note)}", soft_wrap=True)
    if isinstance(error, EngineUnavailableError):
        hint = "`evalution doctor` shows which engines work here, and what others lack"
        terminal.print(f"{_HINT}{hint}", soft_wrap=True)
