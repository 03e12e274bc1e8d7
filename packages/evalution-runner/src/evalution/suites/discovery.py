"""Suites by name: the runner's own, and the entry points of the group `evalution.suites`."""

from __future__ import annotations

import os
import sys
from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules

from evalution.error_boundary import wrap_errors
from evalution.hints import LM_EVAL, LM_EVAL_HINT, SUITE_ALIASES, SUITE_HINTS, note_working_folder
from evalution.suites.suite import AnySuite, Suite, SuiteDeclaration, SuiteSet
from evalution.user_input import check_code_permission, parse_path, path_errors
from evalution_core import ConfigurationError
from evalution_core.plugins import PluginRegistry, did_you_mean, nearest_name, normalize

_GENERIC = {
    "MultipleChoice": "choice_suite",
    "Generation": "generation_suite",
    "Perplexity": "language_modelling",
}
"""Suites over a person's own rows, with their modules."""


def load_suite(name: str, folder: Path | None = None) -> type[SuiteDeclaration]:
    """Return the class of a suite, or of a set of suites, by its name or `package.module:Class`.

    `file.py:Class` is that of a file, whose path starts from `folder`.

    Raises:
        ConfigurationError: nothing has the name; lists what is installed. Or two packages bring it,
            or its module can't be imported, or what it names is no suite; or it is in a file, and
            code isn't allowed.
    """
    place, _, class_name = name.partition(":")
    if place.endswith(".py"):
        return _load_from_file((folder or Path()) / parse_path(place), class_name)
    try:
        with note_working_folder(name):
            return find_suites().load(name)
    except ConfigurationError as error:
        if class_name and folder is not None and (folder / f"{place}.py").is_file():
            error.add_note(
                f"{place}.py lies beside the spec; name it as a file: type: {place}.py:{class_name}"
            )
        raise


def _load_from_file(path: Path, class_name: str) -> type[SuiteDeclaration]:
    with path_errors(path):
        if not path.is_file():
            near = nearest_name(path.name, (file.name for file in path.parent.glob("*.py")))
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigurationError(f"there is no file {path}{hint}")
    check_code_permission(str(path))
    digest = blake2b(os.fsencode(path.absolute()), digest_size=4).hexdigest()
    name = f"evalution_suite_file_{path.stem}_{digest}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their annotations there
    with wrap_errors(f"{path} can't be imported", ConfigurationError):
        spec.loader.exec_module(module)
    suites = {
        found: value
        for found, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, SuiteDeclaration)
        and value.__module__ == name
    }
    if class_name not in suites:
        raise ConfigurationError(
            f"{path} holds no suite {class_name!r}{did_you_mean(class_name, suites)} "
            f"(suites: {', '.join(suites) or 'none'}); name one: type: {path.name}:CLASS"
        )
    return suites[class_name]


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
