"""Plugins by name, and names as people write them. For packages of this project.

Listing reads the metadata of installed packages and imports nothing; loading imports one plugin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from evalution_core.errors import ConfigurationError, EngineUnavailableError, EvalutionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])


def normalize(name: str) -> str:
    """Return `name` as names are compared: without case, `-` and `_`."""
    return name.casefold().replace("-", "").replace("_", "")


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the most alike of `known`, or None if none is at least `cutoff` alike (0 to 1).

    The measure is `difflib.SequenceMatcher.ratio` of the normalized names.
    """
    import difflib  # noqa: PLC0415 - only a mistake needs it, and it costs a tenth of core's import

    by_normal = {normalize(candidate): candidate for candidate in known}
    near = difflib.get_close_matches(normalize(name), by_normal, n=1, cutoff=cutoff)
    return by_normal[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest of the known names, or an empty string."""
    near = nearest_name(name, known)
    return f"; did you mean {near!r}?" if near else ""


def list_entry_points(group: str) -> list[EntryPoint]:
    """Return all entry points of a group, by name and then by distribution; imports none."""
    folders = tuple((folder, _last_change(folder)) for folder in sys.path)
    found = _read_entry_points(group, folders)
    return sorted(found, key=lambda point: (point.name, point.dist.name if point.dist else ""))


@lru_cache
def _read_entry_points(group: str, folders: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Read them once, until packages come to the folders of `sys.path` or leave them."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - a fifth of core's import time

    return entry_points(group=group)


def _last_change(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class PluginEntry(Generic[T]):
    """One plugin that can be asked for by name; nothing of it is imported yet."""

    name: str
    value: str
    """`package.module:Class`."""
    distribution: str | None
    version: str | None
    registry: PluginRegistry[T] = field(repr=False, compare=False)

    @property
    def source(self) -> str:
        """The distribution, or `in-process` for a registered plugin; picks one of a clash."""
        return self.distribution or "in-process"

    def load(self) -> T:
        """Import the plugin; raises as `PluginRegistry.load`."""
        return self.registry.load_entry(self)


class PluginRegistry(Generic[T]):
    """All plugins of one kind: entry points of a group, and what is registered in this process.

    A plugin is asked for by its name (case, `-` and `_` don't count), by `distribution/Name` where
    two packages clash, or by `package.module:Class`.

    Args:
        group: the entry-point group.
        noun: the word for a plugin of this kind in messages, such as `engine`.
        check: called with what was loaded and words for it (`engine 'X' of acme`); returns the
            plugin, or raises a `ConfigurationError` or `EngineUnavailableError`.
        unknown: raised where nothing has the name.
        unavailable: raised where a plugin can't be imported.
        built_in: names and values of plugins that need no entry point; `distribution` has them.
        distribution: where the built-in ones come from.
    """

    def __init__(
        self,
        group: str,
        noun: str,
        check: Callable[[object, str], T],
        *,
        unknown: type[ConfigurationError] = ConfigurationError,
        unavailable: type[EvalutionError] = EngineUnavailableError,
        built_in: Mapping[str, str] | None = None,
        distribution: str | None = None,
    ):
        self.group = group
        self._noun = noun
        self._check = check
        self._unknown = unknown
        self._unavailable = unavailable
        self._built_in = [
            PluginEntry(name, value, distribution, None, self)
            for name, value in (built_in or {}).items()
        ]
        self._registered: dict[str, PluginEntry[T]] = {}

    def entries(self) -> list[PluginEntry[T]]:
        """Return every plugin that is installed, built in or registered, by name; imports none."""
        found = {
            *(self._read_entry_point(point) for point in list_entry_points(self.group)),
            *self._built_in,
            *self._registered.values(),
        }
        return sorted(found, key=lambda entry: (normalize(entry.name), entry.distribution or ""))

    def find(self, name: str, *, hints: Mapping[str, str] | None = None) -> PluginEntry[T]:
        """Return the entry of this name; one that is spelt exactly goes before one that is alike.

        Args:
            name: a public name, `distribution/Name`, or `package.module:Class`.
            hints: names that may not be installed, and the packages that bring them.

        Raises:
            ConfigurationError: nothing has the name; the message lists what there is and what to
                install. Or two distributions provide it.
        """
        if ":" in name:
            return PluginEntry(name, name, None, None, self)
        distribution, _, wanted = name.rpartition("/")
        matches = [
            entry
            for entry in self.entries()
            if normalize(entry.name) == normalize(wanted)
            and (not distribution or normalize(entry.source) == normalize(distribution))
        ]
        matches = [entry for entry in matches if entry.name == wanted] or matches
        if not matches:
            raise self._make_unknown_error(name, hints or {})
        if len(matches) > 1:
            choices = ", ".join(f"{match.source}/{match.name}" for match in matches)
            raise ConfigurationError(
                f"{self._noun} {name!r} is provided more than once; name one of: {choices}"
            )
        return matches[0]

    def load(self, name: str, *, hints: Mapping[str, str] | None = None) -> T:
        """Import the plugin of this name and no other; raises as `find` and `load_entry`."""
        return self.find(name, hints=hints).load()

    def load_entry(self, entry: PluginEntry[T]) -> T:
        """Import a plugin.

        Raises:
            ConfigurationError: there is no such module or class, for one that was named so; or what
                the entry point names is no plugin of this kind.
            EngineUnavailableError: its module fails to import.
        """
        source = f" of {entry.distribution}" if entry.distribution else ""
        try:
            found = _import_value(entry.value)
        except EvalutionError:
            raise
        except (Exception, SystemExit) as error:  # the border: a plugin may raise anything
            is_typo = entry.name == entry.value and _is_absent(entry.value, error)
            raise (self._unknown if is_typo else self._unavailable)(
                f"{self._noun} {entry.name!r}{source} ({entry.value}) can't be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._check(found, f"{self._noun} {entry.name!r}{source}")

    def register(self, name: str) -> Callable[[C], C]:
        """Return a decorator that makes a class known by `name` in this process.

        The class is looked up again by module and name when it is used, since
        `@dataclass(slots=True)` builds a new one; it has to stand at the top level of its module.
        """

        def register_class(plugin: C) -> C:
            if "<locals>" in plugin.__qualname__:
                raise ConfigurationError(
                    f"@register_{self._noun}({name!r}): {plugin.__qualname__} must stand at module "
                    f"level"
                )
            value = f"{plugin.__module__}:{plugin.__qualname__}"
            entry = PluginEntry(name, value, None, None, self)
            known = self._registered.setdefault(normalize(name), entry)
            if known.value != value:
                raise ConfigurationError(
                    f"{self._noun} {name!r} is already registered by {known.value}; choose another "
                    f"name"
                )
            return plugin

        return register_class

    def _read_entry_point(self, point: EntryPoint) -> PluginEntry[T]:
        dist = point.dist
        distribution, version = (dist.name, dist.version) if dist else (None, None)
        return PluginEntry(point.name, point.value, distribution, version, self)

    def _make_unknown_error(self, name: str, hints: Mapping[str, str]) -> ConfigurationError:
        known = [entry.name for entry in self.entries()]
        likely = nearest_name(name, [*known, *hints], cutoff=0.6)
        advice = ""
        if likely in known:
            advice = f"; did you mean {likely!r}?"
        elif likely is not None:
            meant = "" if normalize(likely) == normalize(name) else f"did you mean {likely!r}? "
            advice = f"; {meant}pip install {hints[likely]}"
        listed = ", ".join(dict.fromkeys(known)) or "none"
        return self._unknown(f"no {self._noun} {name!r} is installed{advice} (installed: {listed})")


def _import_value(value: str) -> object:
    module_name, _, qualified = value.partition(":")
    return attrgetter(qualified)(sys.modules.get(module_name) or import_module(module_name))


def _is_absent(value: str, error: BaseException) -> bool:
    """Report whether the module isn't there, or was imported and has no such class."""
    name = value.partition(":")[0]
    missing = error.name if isinstance(error, ImportError) else None
    return name in ("", *sys.modules) or f"{name}.".startswith(f"{missing}.")
