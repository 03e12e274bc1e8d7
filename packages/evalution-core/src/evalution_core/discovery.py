"""Finds engines by name. Listing reads package metadata only; loading imports one engine.

A name is an entry point of the group `evalution.engines` (`VLLM`; case, `-` and `_` don't count),
one registered in this process, `distribution/Name` where two packages clash, or
`package.module:Class` without any packaging.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from evalution_core.engine import BaseEngine, check_contract
from evalution_core.errors import ConfigurationError, UnknownEngineError
from evalution_core.plugins import PluginEntry, PluginRegistry

E = TypeVar("E", bound=type[BaseEngine])
EngineEntry = PluginEntry[type[BaseEngine]]


def available() -> list[EngineEntry]:
    """Return every engine that is installed or registered, by name; imports none of them."""
    return ENGINES.entries()


def load_engine(name: str) -> type[BaseEngine]:
    """Return the engine class of this name; imports that one engine and no runtime.

    Args:
        name: a public name, `distribution/Name`, or `package.module:Class`.

    Raises:
        UnknownEngineError: nothing installed has the name; lists what is, and what to install. Or
            there is no such module or class.
        ConfigurationError: two distributions provide the name.
        EngineUnavailableError: the engine's module is there and can't be imported, or it was
            written for another contract.
    """
    return ENGINES.load(name)


def register_engine(name: str) -> Callable[[E], E]:
    """Make an engine known by `name` in this process, without packaging.

    It has to stand at the top level of its module.
    """
    return ENGINES.register(name)


def _check_engine(found: object, what: str) -> type[BaseEngine]:
    if not (isinstance(found, type) and issubclass(found, BaseEngine)):
        raise ConfigurationError(f"{what} isn't a BaseEngine, but {found!r}")
    check_contract(found, what)
    if lacking := sorted(found.__abstractmethods__):
        raise ConfigurationError(f"{what} is abstract: it lacks {', '.join(lacking)}")
    return found


ENGINES: PluginRegistry[type[BaseEngine]] = PluginRegistry(
    "evalution.engines", "engine", _check_engine, unknown=UnknownEngineError
)
"""Every engine that can be asked for by name."""
