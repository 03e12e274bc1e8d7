"""Suites by name: the runner's own, and the entry points of the group `evalution.suites`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from evalution.hints import LM_EVAL, LM_EVAL_HINT, SUITE_ALIASES, SUITE_HINTS, note_working_folder
from evalution.suites.suite import AnySuite, Suite, SuiteDeclaration, SuiteSet
from evalution_core import ConfigurationError
from evalution_core.plugins import PluginRegistry, normalize

_GENERIC = {
    "MultipleChoice": "choice_suite",
    "Generation": "generation_suite",
    "Perplexity": "language_modelling",
}
"""Suites over a person's own rows, with their modules."""


def load_suite(name: str) -> type[SuiteDeclaration]:
    """Return the class of a suite, or of a set of suites, by its name or `package.module:Class`.

    Raises:
        ConfigurationError: nothing has the name; lists what is installed. Or two packages bring it,
            or its module can't be imported, or what it names is no suite.
    """
    with note_working_folder(name):
        return find_suites().load(name)


def available_suites() -> dict[str, str]:
    """Return every suite's name and place; imports no module of another package.

    Where two other packages bring one name, both stand here as `distribution/Name`.
    """
    return {name: entry.value for name, entry in find_suites().names().items()}


def built_in_suite(class_name: str) -> type[AnySuite] | None:
    """Return the runner's own suite whose class has this name, if there is one."""
    for name, value in find_built_in().items():
        if value.endswith(f":{class_name}"):
            found = load_suite(f"evalution/{name}")
            return found if issubclass(found, Suite) else None  # pyright: ignore[reportUnknownVariableType]
    return None


@cache
def find_suites() -> PluginRegistry[type[SuiteDeclaration]]:
    """Return the registry of suites; made when one is asked for, as it imports all tasks."""
    found = PluginRegistry(
        "evalution.suites",
        "suite",
        _check_suite,
        unavailable=ConfigurationError,
        built_in=find_built_in(),
        distribution="evalution",
        own=SUITE_HINTS,
    )
    found.aliases.update({normalize(word): meant for word, meant in SUITE_ALIASES.items()})
    has_lm_eval = any(entry.name == "lm_eval" for entry in found.entries())
    found.fallback = LM_EVAL_HINT + ("" if has_lm_eval else f" (pip install {LM_EVAL})")
    return found


@cache
def find_built_in() -> dict[str, str]:
    """Return the runner's own suites as `module:Class` by name: generic ones, and `tasks/`."""
    found = {name: f"{__package__}.{module}:{name}" for name, module in _GENERIC.items()}
    for module in iter_modules([str(Path(__file__).with_name("tasks"))]):
        place = f"{__package__}.tasks.{module.name}"
        for kind in vars(import_module(place)).values():
            if isinstance(kind, type) and kind.__module__ == place and "task" in vars(kind):
                found[vars(kind)["task"]] = f"{place}:{kind.__name__}"
    return found


def _check_suite(found: object, what: str) -> type[SuiteDeclaration]:
    if not (isinstance(found, type) and issubclass(found, (Suite, SuiteSet))):
        raise ConfigurationError(f"{what} is no Suite, but {found!r}")
    return found  # pyright: ignore[reportUnknownVariableType]
