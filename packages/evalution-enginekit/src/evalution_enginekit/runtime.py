"""The border to a foreign runtime: importing it, and what its failures become."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from evalution_core import EngineRuntimeError, EngineUnavailableError, EvalutionError, scrub

_log = logging.getLogger(__name__)

_LONGEST = 600
"""Characters of a message of a runtime's."""
_CLAUSE = re.compile(r"^(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)$")


def import_runtime(
    module: str, versions: str, *, distributions: tuple[str, ...] = (), install: str
) -> ModuleType:
    """Import a runtime whose installed version is in range.

    Args:
        module: what to import (`vllm`).
        versions: comma-separated bounds on release numbers (`>=0.32,<0.34`).
        distributions: packages that may provide it, in order; the module's name if none.
        install: the command that brings it, for the error.

    Raises:
        EngineUnavailableError: none is installed, or its version is out of range, or it fails.
    """
    names = distributions or (module,)
    installed = [(name, found) for name in names if (found := _version(name)) is not None]
    if not installed:
        raise EngineUnavailableError(f"{' or '.join(names)} is not installed; {install}")
    name, found = installed[0]
    if not in_range(found, versions):
        raise EngineUnavailableError(f"needs {name}{versions}, found {name} {found}; {install}")
    try:
        return import_module(module)
    except Exception as error:  # the border: importing a runtime may raise anything
        raise EngineUnavailableError(
            f"{name} {found} is installed but can't be imported: {type(error).__name__}: "
            f"{scrub(str(error))}"
        ) from error


def in_range(found: str, versions: str) -> bool:
    """Whether a version's release number (`0.32.1` of `0.32.1.post2+cpu`) is within all bounds."""
    release = _release(found)
    for clause in versions.split(","):
        match = _CLAUSE.match(clause.strip())
        if match is None:
            raise ValueError(f"not a version bound: {clause!r}")
        operator, bound = match[1], _release(match[2])
        width = max(len(release), len(bound))
        left, right = _padded(release, width), _padded(bound, width)
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            ">": left > right,
        }
        if not holds[operator]:
            return False
    return True


def brief(error: BaseException) -> str:
    """Its message without secrets, and without the middle of one that lists all there is."""
    text = scrub(str(error))
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


@contextmanager
def runtime_errors(doing: str) -> Generator[None]:
    """The one place where a runtime's own exceptions become `EngineRuntimeError`, chained."""
    try:
        yield
    except (EvalutionError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the border: asyncio's CancelledError is no Exception
        raise EngineRuntimeError(
            f"{doing} failed: {type(error).__name__}: {scrub(str(error))}"
        ) from error


def end_steps(steps: Iterator[object] | None, doing: str) -> None:
    """Have an engine's generator let go of what it runs, now and not when it is collected.

    What it raises then is logged: there is an error already, or all its results are there.
    """
    if not isinstance(steps, Generator):
        return
    try:
        with runtime_errors(f"ending {doing}"):
            steps.close()
    except EvalutionError as error:
        _log.warning("%s", error)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _release(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def _padded(release: tuple[int, ...], width: int) -> tuple[int, ...]:
    return release + (0,) * (width - len(release))
