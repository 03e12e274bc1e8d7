"""Every installed engine as an attribute: `engines.VLLM` imports that engine and no other.

`dir(engines)` lists the names from package metadata alone. An engine that isn't installed is an
error that says what to install. Case, `-` and `_` don't count: `engines.vllm` is the same class.
"""

from __future__ import annotations

from evalution.hints import INSTALL_HINTS
from evalution_core import BaseEngine, UnknownEngineError, available, load_engine


class EngineNotInstalledError(UnknownEngineError, AttributeError):
    """No installed engine has this name. As an `AttributeError` it leaves `hasattr` working."""


def __getattr__(name: str) -> type[BaseEngine]:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return load_engine(name, hints=INSTALL_HINTS)
    except UnknownEngineError as error:
        raise EngineNotInstalledError(str(error)) from None


def __dir__() -> list[str]:
    return sorted({entry.name for entry in available()})
