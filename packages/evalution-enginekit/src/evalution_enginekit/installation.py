"""What to say where a serving runtime isn't installed or doesn't run: these are for Linux alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from evalution_core import EngineUnavailableError

Python = tuple[int, int]

_LINUX = "linux"


def require_linux(runtime: str) -> None:
    """Raise `EngineUnavailableError`, which names other engines, unless this is Linux."""
    if sys.platform != _LINUX:
        raise EngineUnavailableError(f"{runtime} runs on Linux alone; {_elsewhere()}")


def require_distribution(*names: str, install: str) -> None:
    """Raise `EngineUnavailableError` where none is installed, before anything is imported."""
    if _installed(names) is None:
        raise EngineUnavailableError(f"{' or '.join(names)} is not installed; {install}")


def linux_install_hint(runtime: str, command: str, *, lowest: Python, highest: Python) -> str:
    """The command that brings a runtime for this machine and Python, or what goes before it.

    Args:
        runtime: its name, for people.
        command: what installs it where the Python fits.
        lowest, highest: the versions of Python that it has releases for.
    """
    if sys.platform != _LINUX:
        return _elsewhere()
    found = sys.version_info[:2]
    if lowest <= found <= highest:
        return command
    wanted = _text(lowest) if lowest == highest else f"{_text(lowest)} to {_text(highest)}"
    return (
        f"{runtime} has no release for Python {_text(found)}; make an environment with Python "
        f"{wanted}, and there {command}"
    )


def described_distribution(*names: str) -> str:
    """The first of them that is installed, with its version; the first one's name if none is."""
    return _installed(names) or names[0]


def _installed(names: Sequence[str]) -> str | None:
    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


def _elsewhere() -> str:
    return (
        f"on {sys.platform} take the engine Transformers (pip install evalution-transformers) or "
        f"LlamaCpp (pip install evalution-llama-cpp)"
    )


def _text(python: Python) -> str:
    return ".".join(map(str, python))
