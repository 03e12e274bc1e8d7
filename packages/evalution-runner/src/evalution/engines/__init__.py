"""Every installed engine as an attribute: `engines.VLLM` imports that engine and no other.

`dir(engines)` lists the names from package metadata alone. An engine that isn't installed is an
error that names what to install, also in `from evalution.engines import VLLM`. Case, `-` and `_`
don't count: `engines.vllm` is the same class.

Builders of servers, such as `build_openai_compatible_server`, come from the entry-point group
`evalution.servers`, under the names that the entry points have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from evalution.hints import SERVER_HINTS
from evalution_core import (
    ConfigurationError,
    UnknownEngineError,
    load_engine,
)
from evalution_core.discovery import available
from evalution_core.plugins import PluginRegistry


class EngineNotInstalledError(UnknownEngineError, AttributeError):
    """No installed engine has this name. As an `AttributeError` it leaves `hasattr` working."""


def _check_builder(found: object, what: str) -> Callable[..., object]:
    if not callable(found):
        raise ConfigurationError(f"{what} is no function, but {found!r}")
    return found


SERVERS = PluginRegistry(
    "evalution.servers",
    "server builder",
    _check_builder,
    unknown=EngineNotInstalledError,
    own=SERVER_HINTS,
)
"""Every builder of a server."""


class _MissingEngineFinder:
    """Raises what to install where `from evalution.engines import VLLM` finds no engine.

    Python replaces an `AttributeError` of this module by a bare `ImportError`, but looks for a
    submodule of that name before; all other finders come first.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package == __name__ and not name.startswith("_"):
            __getattr__(name)
        return None


sys.meta_path.append(_MissingEngineFinder)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in SERVER_HINTS or any(entry.name == name for entry in SERVERS.entries()):
        return SERVERS.load(name)
    try:
        return load_engine(name)
    except UnknownEngineError as error:
        raise EngineNotInstalledError(str(error)) from None


def __dir__() -> list[str]:
    return sorted({entry.name for entry in [*available(), *SERVERS.entries()]})
