"""Arguments that an engine hands on to its runtime by name, from several places, each one once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from evalution_core import BaseEngine, ConfigurationError
from evalution_core.spelling import did_you_mean

SET_BY_THE_ENGINE = "the engine sets it"


def check_at_least_one(engine: BaseEngine, names: Iterable[str]) -> None:
    """Raise `ConfigurationError` over a number below 1 among these options."""
    for name in names:
        value = getattr(engine, name)
        if isinstance(value, int) and value < 1:
            raise ConfigurationError(f"{name}={value} must be at least 1")


def further_arguments(
    sources: Mapping[str, Mapping[str, Any]],
    *,
    refused: Mapping[str, str],
    taken: Collection[str],
) -> dict[str, Any]:
    """All of `sources` together, which are mappings of arguments by what a user calls them.

    Args:
        sources: `{"vllm_kwargs": {…}, "model.model_kwargs": {…}}`.
        refused: why an argument can't be in any of them, or which option has its place.
        taken: arguments that options of their own have set.

    Raises:
        ConfigurationError: an argument is refused, or set twice.
    """
    found: dict[str, Any] = {}
    for source, values in sources.items():
        for name, value in values.items():
            if name in refused:
                raise ConfigurationError(f"{source} may not hold {name}: {refused[name]}")
            if name in taken or name in found:
                raise ConfigurationError(f"{name} is set twice, the second time in {source}")
            found[name] = value
    return found


def set_options(engine: BaseEngine, names: Iterable[str]) -> dict[str, Any]:
    """Those of the named options that aren't at their defaults, with their values."""
    default = type(engine)()
    return {
        name: value
        for name in names
        if (value := getattr(engine, name)) is not None and value != getattr(default, name)
    }


def refuse_unknown(
    names: Iterable[str], known: Collection[str], runtime: str, kind: str = "argument"
) -> None:
    """Raise `ConfigurationError` over a name that `runtime`, as in `vllm 0.33.0`, hasn't."""
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{runtime} has no {kind} {name!r}{did_you_mean(name, known)}; leave it out, or "
                f"install a version that has it"
            )
