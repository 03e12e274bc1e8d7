"""Models and rows that come inside an installed package, reachable as `builtin:<name>`.

A package offers them by an entry point of the group `evalution.builtins` whose value is a mapping
from the kind of file (`safetensors`, `gguf`, `rows/sums`) to its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evalution_core.errors import ConfigurationError
from evalution_core.plugins import did_you_mean, list_entry_points

PREFIX = "builtin:"


def builtin_path(name: str, kind: str) -> Path:
    """Return the path of the file or folder of this kind: `builtin_path("builtin:tiny", "gguf")`.

    Raises:
        ConfigurationError: no installed package offers it; the message lists what is.
    """
    wanted = name.removeprefix(PREFIX)
    points = {point.name: point for point in list_entry_points("evalution.builtins")}
    if wanted not in points:
        listed = ", ".join(f"{PREFIX}{known}" for known in sorted(points)) or "none"
        raise ConfigurationError(
            f"{PREFIX}{wanted} is not installed (there are: {listed}); "
            f"{PREFIX}tiny comes with evalution-reference"
        )
    offered: Mapping[str, Path] = points[wanted].load()
    if kind not in offered:
        hint = did_you_mean(kind, offered)
        raise ConfigurationError(
            f"{PREFIX}{wanted} has no {kind!r}{hint} (it has: {', '.join(sorted(offered))})"
        )
    return offered[kind]
