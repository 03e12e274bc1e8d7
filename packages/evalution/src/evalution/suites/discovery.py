"""Finds suites by name: the built-in ones, and the entry points of group `evalution.suites`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from evalution.suites.suite import AnySuite, Suite
from evalution_core import (
    ConfigurationError,
    EvalutionError,
    did_you_mean,
    normalized,
)

SUITES = "evalution.suites"

_BUILT_IN = {
    "MultipleChoice": "evalution.suites.multiple_choice:MultipleChoice",
    "Generation": "evalution.suites.generation:Generation",
    "Perplexity": "evalution.suites.perplexity:Perplexity",
}


def load_suite(name: str) -> type[AnySuite]:
    """The suite class of this name (case, `-` and `_` don't count), or `package.module:Class`.

    Raises:
        ConfigurationError: there is none; lists what is installed. Or its module can't be imported,
            or what it names is no suite.
    """
    if ":" in name:
        return _loaded(name, name)
    known = available_suites()
    matches = [found for found in known if normalized(found) == normalized(name)]
    if not matches:
        raise ConfigurationError(
            f"there is no suite {name!r}{did_you_mean(name, known)} (suites: {', '.join(known)})"
        )
    return _loaded(matches[0], known[matches[0]])


def available_suites() -> dict[str, str]:
    """Every suite's name and where it is; imports none of them."""
    third_party = {point.name: point.value for point in entry_points(group=SUITES)}
    return {**dict(sorted(third_party.items())), **_BUILT_IN}


def _loaded(name: str, value: str) -> type[AnySuite]:
    module_name, _, qualified = value.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in qualified.split("."):
            found = getattr(found, part)
    except EvalutionError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"suite {name!r} ({value}) can't be loaded: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Suite)):
        raise ConfigurationError(f"suite {name!r} ({value}) is no Suite, but {found!r}")
    return found  # pyright: ignore[reportUnknownVariableType]
