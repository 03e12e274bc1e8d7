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
LONGEST_TEXT = 16 << 20
"""Characters of what replacements may make of a text."""


def check_pattern(owner: str, pattern: str) -> re.Pattern[str]:
    """The pattern as Python's `re` reads it.

    Raises:
        ConfigurationError: it is no regular expression; names its owner and the fault.
    """
    try:
        found = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise ConfigurationError(
            f"{owner}: {pattern!r} is no regular expression: {error}"
        ) from None
    try:
        _compile(pattern)
    except ValueError as error:
        raise ConfigurationError(f"{owner}: {error}") from None
    return found


def find_match(
    pattern: str, text: str, *, last: bool = False, ignore_case: bool = False
) -> re.Match[str] | None:
    """The first match of a pattern in a text, or the last one.

    Raises:
        TimeoutError: it takes longer than `TIME_LIMIT_S`; names the pattern.
        ValueError: it is a regular expression to `re` alone.
    """
    with _name_pattern(pattern, text):
        if not last:
            return _compile(pattern, ignore_case).search(text, timeout=TIME_LIMIT_S)
        matches = _compile(pattern).finditer(text, timeout=TIME_LIMIT_S)
        return next(iter(deque(matches, maxlen=1)), None)


def count_matches(pattern: str, text: str, *, ignore_case: bool = False) -> int:
    """The number of matches that don't overlap; errors as `find_match`."""
    with _name_pattern(pattern, text):
        found = _compile(pattern, ignore_case).finditer(text, timeout=TIME_LIMIT_S)
        return sum(1 for _ in found)


def replace_matches(pattern: str, by: str, text: str) -> str:
    """The text with every match replaced.

    Raises:
        TimeoutError: as `find_match`.
        ValueError: as `find_match`, or the replacements have more than `LONGEST_TEXT` characters.
    """
    size = 0
    library = import_module("regex")

    def expand(match: re.Match[str]) -> str:
        nonlocal size
        try:
            made = match.expand(by)
        except (library.error, IndexError) as error:
            raise ValueError(
                f"{by!r} can't replace a match of {pattern!r} to the library `regex`: {error}"
            ) from None
        size += len(made)
        if size > LONGEST_TEXT:
            raise ValueError(
                f"replacing {pattern!r} by {by[:60]!r} makes more than {LONGEST_TEXT} characters "
                f"of a text of {len(text)}; a replacement should be shorter than what it replaces"
            )
        return made

    with _name_pattern(pattern, text):
        return _compile(pattern).sub(expand, text, timeout=TIME_LIMIT_S)


_LITERAL_BRACE = re.compile(r"(\\N\{[^}]*\}|\\.)|\{(?!\d*,?\d*\})", re.DOTALL)
"""A brace that begins no number of repetitions, or in its first group what holds another."""


@lru_cache(maxsize=256)
def _compile(pattern: str, ignore_case: bool = False) -> Any:
    # Python's re can't be stopped. Most runs have no pattern: the import waits for the first.
    library = import_module("regex")
    # {e}, {i} and {d} mean approximate matches to it, and themselves to re.
    escaped = _LITERAL_BRACE.sub(lambda match: match[1] or r"\{", pattern)
    try:
        return library.compile(escaped, library.IGNORECASE if ignore_case else 0)
    except (library.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{pattern!r} is no regular expression to the library `regex`: {error}; put a "
            "backslash before a brace or bracket of the text itself"
        ) from None


@contextmanager
def _name_pattern(pattern: str, text: str) -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(
            f"the pattern {pattern!r} takes more than {TIME_LIMIT_S:g} s on a text of {len(text)} "
            "characters; no part of a text should fit it in several ways, as it does (a|a)*"
        ) from error
