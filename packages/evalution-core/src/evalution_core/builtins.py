"""Models and rows that come inside an installed package, reachable as `builtin:<name>`.

A package offers them by an entry point of the group `evalution.builtins` whose value is a mapping
from the kind of file (`safetensors`, `gguf`, `rows/sums`) to its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from evalution_core.errors import ConfigurationError
from evalution_core.plugins import PluginRegistry, did_you_mean

PREFIX = "builtin:"


def _check_files(found: object, what: str) -> Mapping[str, Path]:
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{what} is no mapping from kinds of files to paths")
    return cast("Mapping[str, Path]", found)


BUILTINS = PluginRegistry(
    "evalution.builtins", "builtin", _check_files, own={"tiny": "evalution-reference"}
)
BUILTINS.takes_modules = False
"""Every model that comes inside a package; a spec of a stranger may name it, so it is no module."""


def builtin_path(name: str, kind: str) -> Path:
    """Return the path of the file or folder of this kind: `builtin_path("builtin:tiny", "gguf")`.

    Raises:
        ConfigurationError: no installed package offers it, or two do; the message lists what is.
        EngineUnavailableError: the package can't be imported.
    """
    offered = BUILTINS.load(name.removeprefix(PREFIX))
    if kind not in offered:
        hint = did_you_mean(kind, offered)
        raise ConfigurationError(
            f"{name} has no {kind!r}{hint} (it has: {', '.join(sorted(offered))})"
        )
    return offered[kind]
