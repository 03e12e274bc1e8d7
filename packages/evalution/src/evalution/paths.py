"""Paths that a person typed: what the system refuses is told like any other mistake."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evalution_core import ConfigurationError


@contextmanager
def path_errors(path: object) -> Generator[None]:
    """Raise what the system says about a path (name too long, no permission) by the path's name."""
    try:
        yield
    except OSError as error:
        shown = str(path)
        shown = shown if len(shown) <= 120 else f"{shown[:60]}…{shown[-40:]}"
        raise ConfigurationError(f"{shown} can't be read: {error.strerror}") from error


def typed_path(text: str) -> Path:
    """`text` as a path, `~` being somebody's home.

    Raises:
        ConfigurationError: there is no such home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{text}: there is no such home folder") from None
