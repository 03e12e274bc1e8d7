"""The runner's border to engines and suites of others: what they raise becomes ours."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from evalution_core import EngineRuntimeError, EvalutionError, scrub


@contextmanager
def foreign_errors(doing: str, kind: type[EvalutionError] = EngineRuntimeError) -> Generator[None]:
    """Raise what isn't an `EvalutionError` as `kind`, with the original as cause.

    An engine that calls `sys.exit` fails like any other: it may not end the run as a success.
    """
    try:
        yield
    except EvalutionError:
        raise
    except (Exception, SystemExit) as error:  # the border to foreign code: it may raise anything
        raise kind(scrub(f"{doing}: {type(error).__name__}: {error}")) from error


def clean_up(error: BaseException, *steps: Callable[[], object]) -> None:
    """Take every step after `error`; what fails becomes a note: the first error counts."""
    for step in steps:
        try:
            with foreign_errors("cleaning up"):
                step()
        except EvalutionError as second:
            error.add_note(f"then {type(second).__name__}: {second}")
