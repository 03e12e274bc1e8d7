"""Checks of paths and counts that a person typed, with one wording for each mistake."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evalution_core import ConfigurationError


@contextmanager
def path_errors(path: object) -> Generator[None]:
    """Raise the system's errors on a path (name too long, no permission) with the path's name."""
    try:
        yield
    except OSError as error:
        shown = str(path)
        shown = shown if len(shown) <= 120 else f"{shown[:60]}…{shown[-40:]}"
        raise ConfigurationError(f"{shown} can't be read: {error.strerror}") from error


def parse_path(text: str) -> Path:
    """Return `text` as a path, with `~` replaced by the home folder.

    Raises:
        ConfigurationError: there is no such home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{text}: there is no such home folder") from None


LARGEST = 2**31 - 1
"""No count is larger; every runtime can hold this one."""


def find_count_problem(value: int, *, least: int) -> str | None:
    """Return what is wrong with a count, as the end of a sentence; None if nothing is."""
    if value < least:
        return "must not be negative" if least == 0 else f"must be at least {least}"
    if value > LARGEST:
        return f"must be at most {LARGEST}"
    return None


def format_value(value: object) -> str:
    """Return `repr`, also for an int with more digits than Python prints."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
