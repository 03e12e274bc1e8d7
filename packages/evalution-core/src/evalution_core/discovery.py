"""Finds engines by name. Listing reads package metadata only; loading imports one engine.

A name is an entry point of the group `evalution.engines` (`VLLM`; case, `-` and `_` don't count),
one registered in this process, `distribution/Name` where two packages clash, or
`package.module:Class` without any packaging.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from evalution_core.engine import CONTRACT_VERSION, BaseEngine
from evalution_core.entries import installed
from evalution_core.errors import (
    ConfigurationError,
    EngineUnavailableError,
    EvalutionError,
    UnknownEngineError,
)
from evalution_core.spelling import nearest_name, normalized

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENGINES = "evalution.engines"
E = TypeVar("E", bound=type[BaseEngine])

_registered: dict[str, EngineEntry] = {}


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine that can be asked for by name; nothing of it is imported yet."""

    name: str
    value: str
    distribution: str | None
    version: str | None

    @property
    def source(self) -> str:
        """The distribution, or `in-process` for a registered engine; picks one of a clash."""
        return self.distribution or "in-process"

    def load(self) -> type[BaseEngine]:
        """Import the engine's class.

        Raises:
            UnknownEngineError: it was named as `module:Class`, and there is no such one.
            EngineUnavailableError: its module fails to import, or was written for another contract.
            ConfigurationError: what the entry point names is no engine.
        """
        source = f" of {self.distribution}" if self.distribution else ""
        try:
            found = _resolve(self.value)
        except EvalutionError:
            raise
        except Exception as error:  # the border to foreign code: a plugin may raise anything
            is_typo = self.name == self.value and _is_absent(self.value, error)
            raise (UnknownEngineError if is_typo else EngineUnavailableError)(
                f"engine {self.name!r}{source} ({self.value}) can't be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        return _checked(found, self.name, source)


def available() -> list[EngineEntry]:
    """Every engine that is installed or registered, by name; imports none of them."""
    found = {*map(_entry, installed(ENGINES)), *_registered.values()}
    return sorted(found, key=lambda entry: (normalized(entry.name), entry.distribution or ""))


def load_engine(name: str, *, hints: Mapping[str, str] | None = None) -> type[BaseEngine]:
    """The engine class of this name; imports that one engine and no runtime.

    Args:
        name: a public name, `distribution/Name`, or `package.module:Class`.
        hints: names of engines that may not be installed, and what to install for them.

    Raises:
        UnknownEngineError: nothing installed has the name; lists what is, and what to install. Or
            there is no such module or class.
        ConfigurationError: two distributions provide the name.
        EngineUnavailableError: the engine's module is there and can't be imported.
    """
    if ":" in name:
        return EngineEntry(name, name, None, None).load()
    distribution, _, wanted = name.rpartition("/")
    matches = [
        entry
        for entry in available()
        if normalized(entry.name) == normalized(wanted)
        and (not distribution or normalized(entry.source) == normalized(distribution))
    ]
    if not matches:
        raise _unknown_engine(name, hints or {})
    if len(matches) > 1:
        choices = ", ".join(f"{match.source}/{match.name}" for match in matches)
        raise ConfigurationError(
            f"engine {name!r} is provided more than once; name one of: {choices}"
        )
    return matches[0].load()


def register_engine(name: str) -> Callable[[E], E]:
    """Make an engine known by `name` in this process, without packaging.

    The class is looked up again by module and name when it is used, since `@dataclass(slots=True)`
    builds a new one; it has to stand at the top level of its module.
    """

    def register(engine: E) -> E:
        if "<locals>" in engine.__qualname__:
            raise ConfigurationError(
                f"@register_engine({name!r}): {engine.__qualname__} must stand at module level"
            )
        value = f"{engine.__module__}:{engine.__qualname__}"
        known = _registered.setdefault(normalized(name), EngineEntry(name, value, None, None))
        if known.value != value:
            raise ConfigurationError(
                f"engine {name!r} is already registered by {known.value}; choose another name"
            )
        return engine

    return register


def _entry(point: EntryPoint) -> EngineEntry:
    dist = point.dist
    return EngineEntry(
        point.name, point.value, dist.name if dist else None, dist.version if dist else None
    )


def _resolve(value: str) -> Any:
    module_name, _, qualified = value.partition(":")
    return attrgetter(qualified)(sys.modules.get(module_name) or import_module(module_name))


def _is_absent(value: str, error: Exception) -> bool:
    """Whether the module isn't there, or was imported and has no such class."""
    name = value.partition(":")[0]
    return name in ("", *sys.modules) or f"{name}.".startswith(f"{getattr(error, 'name', None)}.")


def _checked(found: Any, name: str, source: str) -> type[BaseEngine]:
    if not (isinstance(found, type) and issubclass(found, BaseEngine)):
        raise ConfigurationError(f"engine {name!r}{source} isn't a BaseEngine, but {found!r}")
    if found.contract != CONTRACT_VERSION:
        older = "engine" if found.contract < CONTRACT_VERSION else "evalution-core"
        raise EngineUnavailableError(
            f"engine {name!r}{source} was written for contract {found.contract}, this "
            f"evalution-core implements {CONTRACT_VERSION}; upgrade the {older}"
        )
    return found


def _unknown_engine(name: str, hints: Mapping[str, str]) -> UnknownEngineError:
    known = [entry.name for entry in available()]
    likely = nearest_name(name, [*known, *hints], cutoff=0.6)
    advice = ""
    if likely in known:
        advice = f"; did you mean {likely!r}?"
    elif likely is not None:
        meant = "" if normalized(likely) == normalized(name) else f"did you mean {likely!r}? "
        advice = f"; {meant}pip install {hints[likely]}"
    listed = ", ".join(known) or "none"
    return UnknownEngineError(f"no engine {name!r} is installed{advice} (installed: {listed})")
