"""Checks of what a person gave: paths, counts, files of results; one wording for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError
from evalution_core.options import format_value


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


class DamagedResultError(ConfigurationError):
    """A file of results isn't as it was written."""


def read_beginning(file: Path, size: int) -> bytes:
    """Return the first bytes of a file, by which its kind is known."""
    with file.open("rb") as content:
        return content.read(size)


def read_result_file(file: Path, what: str, newest_schema: int) -> dict[str, Any]:
    """Read a file of results, which is a JSON object with a `schema_version`.

    Raises:
        ConfigurationError: it can't be read, is not `what` it should be, or is of a newer version.
    """
    with path_errors(file):
        content = file.read_bytes()
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedResultError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{file} is no result of {what}: it holds no JSON object")
    known = cast("dict[str, Any]", found)
    version: object = known.get("schema_version")
    if type(version) is not int or version < 1:
        raise ConfigurationError(f"{file} is no result of {what}: it has no schema_version")
    if version > newest_schema:
        raise ConfigurationError(
            f"{file} was written by a newer evalution (schema {version}, this one reads up to "
            f"{newest_schema}); upgrade: pip install --upgrade evalution-runner"
        )
    return known


LARGEST = 2**31 - 1
"""No count is larger; every runtime can hold this one."""


def find_count_problem(value: int, *, least: int) -> str | None:
    """Return what is wrong with a count, as the end of a sentence; None if nothing is."""
    if value < least:
        return "must not be negative" if least == 0 else f"must be at least {least}"
    if value > LARGEST:
        return f"must be at most {LARGEST}"
    return None


def check_count(name: str, value: int, *, least: int) -> None:
    """Raise `ConfigurationError` unless it is an int from `least` on."""
    is_int = type(value) is int
    problem = find_count_problem(value, least=least) if is_int else "must be an int"
    if problem is not None:
        raise ConfigurationError(f"{name} {problem}, got {format_value(value)}")


_IS_CODE_ALLOWED: ContextVar[bool] = ContextVar("is_code_allowed", default=False)


@contextmanager
def allow_code() -> Generator[None]:
    """Within it, a spec may name code, which is run."""
    before = _IS_CODE_ALLOWED.set(True)
    try:
        yield
    finally:
        _IS_CODE_ALLOWED.reset(before)


def is_code_allowed() -> bool:
    """True within `allow_code`."""
    return _IS_CODE_ALLOWED.get()


def check_code_permission(what: str) -> None:
    """Raise `ConfigurationError` outside of `allow_code`; `what` names the code in the message."""
    if not is_code_allowed():
        raise ConfigurationError(
            f"{what} is code, which could do whatever you can; read it, and if you trust it, add "
            "--allow-code to the command (in Python: `with evalution.user_input.allow_code():`)"
        )


_ANSWERER: ContextVar[Callable[[str], bool] | None] = ContextVar("answerer", default=None)


@contextmanager
def answer_questions(answerer: Callable[[str], bool]) -> Generator[None]:
    """Within it, `ask` puts its questions to `answerer`, which returns True for a yes."""
    before = _ANSWERER.set(answerer)
    try:
        yield
    finally:
        _ANSWERER.reset(before)


def ask(question: str) -> bool:
    """Return the answer to a question; False where nobody is there to be asked."""
    answerer = _ANSWERER.get()
    return answerer is not None and answerer(question)
