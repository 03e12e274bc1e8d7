"""Which software made a result."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from evalution.conditions.git_commits import commit_of
from evalution.conditions.requirements import requirements_of
from evalution_core import normalized

_NUMERIC = ("numpy", "torch", "jax", "transformers", "tokenizers", "safetensors", "accelerate")
"""Libraries that change numbers: recorded also where no package of ours asks for them."""


def software_versions(engine_distribution: str | None) -> dict[str, Any]:
    """Python, the platform, and the version of every distribution that had a part in a run.

    These are the runner and the engine's package, what both require, what those of our own among
    them require in turn, packages whose suites were imported, and imported numeric libraries.
    `git` has the commit of those that were installed from a repository.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    roots = {"evalution", *_packages_of_imported_suites()}
    if engine_distribution is not None:
        roots.add(engine_distribution)
    names = {_folded(name): name for name in _NUMERIC if name in sys.modules}
    names |= _involved(roots)
    commits: dict[str, Any] = {}
    for name in sorted(names.values(), key=str.casefold):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
        if (commit := commit_of(name)) is not None:
            commits[name] = dict(commit)
    return found | ({"git": commits} if commits else {})


def _involved(roots: Iterable[str]) -> dict[str, str]:
    """The distributions themselves, and all that is reached from them through ours, by name."""
    found: dict[str, str] = {}
    waiting = [(root, frozenset[str](), True) for root in sorted(roots)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras, is_root = waiting.pop()
        if (_folded(name), extras) in seen:
            continue
        seen.add((_folded(name), extras))
        found.setdefault(_folded(name), name)
        if is_root or _is_ours(name):
            waiting += [
                (needed.name, frozenset(needed.extras), False)
                for needed in requirements_of(name, sorted(extras))
            ]
    return found


def _packages_of_imported_suites() -> set[str]:
    return {
        point.dist.name
        for point in entry_points(group="evalution.suites")
        if point.dist is not None and point.module in sys.modules
    }


def _is_ours(name: str) -> bool:
    return re.fullmatch(r"evalution([-_.].+)?", name) is not None


def _folded(name: str) -> str:
    return normalized(name).replace(".", "")
