"""Which software made a result."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions, version

_NUMERIC = ("numpy", "torch", "jax", "transformers", "tokenizers")
"""Libraries that change numbers: recorded when something imported them."""


def software_versions(engine_distribution: str | None) -> dict[str, str]:
    """Python, the platform, every part of Evalution, and what the engine's package requires.

    Versions are of what is installed; numeric libraries count only where they are imported.
    """
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    names = {name for dist in distributions() if _is_ours(name := dist.metadata["Name"])}
    names |= {name for name in _NUMERIC if name in sys.modules}
    if engine_distribution is not None:
        names |= {engine_distribution, *_required(engine_distribution)}
    for name in sorted(names, key=str.casefold):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _is_ours(name: str | None) -> bool:
    return name is not None and re.fullmatch(r"evalution([-_].+)?", name) is not None


def _required(name: str) -> list[str]:
    try:
        requirements = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    unconditional = [line for line in requirements if "extra ==" not in line]
    return [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in unconditional]
