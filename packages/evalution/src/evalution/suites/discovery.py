"""Finds suites by name: the built-in ones, and the entry points of group `evalution.suites`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from evalution.hints import SUITE_HINTS
from evalution.suites.suite import AnySuite, Suite, SuiteDeclaration, SuiteSet
from evalution_core import (
    ConfigurationError,
    EvalutionError,
    did_you_mean,
    normalized,
)

SUITES = "evalution.suites"


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """One suite that can be asked for by name; nothing of it is imported yet."""

    name: str
    value: str
    distribution: str

    @property
    def class_name(self) -> str:
        """The class in its module."""
        return self.value.rpartition(":")[2]


_GENERIC = {
    "MultipleChoice": "choice_suite",
    "Generation": "generation_suite",
    "Perplexity": "language_modelling",
}
"""Suites over a person's own rows, with their modules."""


@cache
def built_in_entries() -> tuple[SuiteEntry, ...]:
    """Return the runner's own suites: the generic ones, and the classes of `tasks/`."""
    generic = [_built_in(name, module, name) for name, module in _GENERIC.items()]
    tasks: list[SuiteEntry] = []
    for module in iter_modules([str(Path(__file__).with_name("tasks"))]):
        place = f"tasks.{module.name}"
        found = import_module(f"{__package__}.{place}")
        kinds = [kind for kind in vars(found).values() if _is_task(kind, found.__name__)]
        tasks += [_built_in(kind.task, place, kind.__name__) for kind in kinds]
    return (*generic, *sorted(tasks, key=lambda entry: entry.name))


def _is_task(found: object, module: str) -> bool:
    return isinstance(found, type) and found.__module__ == module and "task" in vars(found)


def _built_in(name: str, module: str, class_name: str) -> SuiteEntry:
    return SuiteEntry(name, f"{__package__}.{module}:{class_name}", "evalution")


def load_suite(name: str) -> type[SuiteDeclaration]:
    """The class of this name (case, `-` and `_` don't count), or `package.module:Class`.

    It is a suite's, or that of a set of them. A name that is spelt exactly goes before one that is
    only alike; `distribution/Name` picks one where two packages clash.

    Raises:
        ConfigurationError: there is none; lists what is installed. Or two packages bring it, or its
            module can't be imported, or what it names is no suite.
    """
    if ":" in name:
        return _loaded(name, name)
    known = _entries()
    matches = _matches(name, known)
    if not matches:
        listed = dict.fromkeys(entry.name for entry in known)
        raise ConfigurationError(
            f"there is no suite {name!r}{_advice(name, listed)} (suites: {', '.join(listed)})"
        )
    if len(matches) > 1:
        choices = ", ".join(f"{entry.distribution}/{entry.name}" for entry in matches)
        raise ConfigurationError(
            f"suite {name!r} is provided more than once; name one of: {choices}"
        )
    return _loaded(matches[0].name, matches[0].value)


def _advice(name: str, listed: Iterable[str]) -> str:
    """The nearest name, or what to install for a suite that is known and not there."""
    for hinted, distribution in SUITE_HINTS.items():
        if normalized(hinted) == normalized(name):
            return f"; pip install {distribution}"
    return did_you_mean(name, listed)


def available_suites() -> dict[str, str]:
    """Every suite's name and where it is; imports none of them.

    Where two packages bring one name, both stand here as `distribution/Name`.
    """
    entries = _entries()
    names = [entry.name for entry in entries]
    return {
        e.name if names.count(e.name) == 1 else f"{e.distribution}/{e.name}": e.value
        for e in entries
    }


def built_in_suite(class_name: str) -> type[AnySuite] | None:
    """The built-in suite whose class has this name, if there is one."""
    for entry in built_in_entries():
        if entry.class_name == class_name:
            found = _loaded(entry.name, entry.value)
            return found if issubclass(found, Suite) else None  # pyright: ignore[reportUnknownVariableType]
    return None


def _entries() -> list[SuiteEntry]:
    third_party = {
        SuiteEntry(point.name, point.value, point.dist.name if point.dist else "in-process")
        for point in entry_points(group=SUITES)
    }
    return [*sorted(third_party, key=lambda e: (e.name, e.distribution)), *built_in_entries()]


def _matches(name: str, known: Sequence[SuiteEntry]) -> list[SuiteEntry]:
    distribution, _, wanted = name.rpartition("/")
    alike = [
        entry
        for entry in known
        if normalized(entry.name) == normalized(wanted)
        and (not distribution or normalized(entry.distribution) == normalized(distribution))
    ]
    return [entry for entry in alike if entry.name == wanted] or alike


def _loaded(name: str, value: str) -> type[SuiteDeclaration]:
    module_name, _, qualified = value.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in qualified.split("."):
            found = getattr(found, part)
    except EvalutionError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"suite {name!r} ({value}) can't be loaded: {type(error).__name__}: {error}"
            f"{_beside(module_name)}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, (Suite, SuiteSet))):
        raise ConfigurationError(f"suite {name!r} ({value}) is no Suite, but {found!r}")
    return found  # pyright: ignore[reportUnknownVariableType]


def _beside(module: str) -> str:
    file = Path(f"{module.replace('.', '/')}.py")
    if module in sys.modules or not file.is_file():
        return ""
    return f"; {file} is in the working folder, which `python -m evalution` looks into"
