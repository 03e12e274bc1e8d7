"""Regular expressions of people: checked when they are declared, and stopped when they run on."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

from evalution_core import ConfigurationError

TIME_LIMIT_S = 5.0
"""Processor time of the process that a pattern may take on one text."""


def check_pattern(owner: str, pattern: str) -> re.Pattern[str]:
    """The pattern as Python's `re` reads it.

    Raises:
        ConfigurationError: it is no regular expression; names its owner and the fault.
    """
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(
            f"{owner}: {pattern!r} is no regular expression: {error}"
        ) from None


def find_match(pattern: str, text: str, *, last: bool = False) -> re.Match[str] | None:
    """The first match of a pattern in a text, or the last one.

    Raises:
        TimeoutError: it takes longer than `TIME_LIMIT_S`; names the pattern.
    """
    with _name_pattern(pattern, text):
        if not last:
            return _compile(pattern).search(text, timeout=TIME_LIMIT_S)
        matches = _compile(pattern).finditer(text, timeout=TIME_LIMIT_S)
        return next(iter(deque(matches, maxlen=1)), None)


def replace_matches(pattern: str, by: str, text: str) -> str:
    """The text with every match replaced; errors as `find_match`."""
    with _name_pattern(pattern, text):
        return _compile(pattern).sub(by, text, timeout=TIME_LIMIT_S)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    # Python's re can't be stopped. Most runs have no pattern: the import waits for the first.
    return import_module("regex").compile(pattern)


@contextmanager
def _name_pattern(pattern: str, text: str) -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(
            f"the pattern {pattern!r} takes more than {TIME_LIMIT_S:g} s on a text of {len(text)} "
            "characters; no part of a text should fit it in several ways, as it does (a|a)*"
        ) from error
