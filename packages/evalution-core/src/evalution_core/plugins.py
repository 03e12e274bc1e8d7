"""Plugins by name, and names as people write them. For packages of this project.

Listing reads the metadata of installed packages and imports nothing; loading imports one plugin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from evalution_core.errors import ConfigurationError, EngineUnavailableError, EvalutionError
from evalution_core.redaction import find_secrets, redact_text

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])
_MOST_LISTED = 20


def normalize(name: str) -> str:
    """Return `name` as names are compared: without case, `-` and `_`."""
    return name.casefold().replace("-", "").replace("_", "")


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the most alike of `known`, or None if none is at least `cutoff` alike (0 to 1).

    The only one that begins with `name`, of three letters at least, comes first. Else the measure
    is `difflib.SequenceMatcher.ratio` of the normalized names.
    """
    import difflib  # noqa: PLC0415 - only a mistake needs it, and it costs a tenth of core's import

    by_normal = {normalize(candidate): candidate for candidate in known}
    start = normalize(name)
    near = [longer for longer in by_normal if longer.startswith(start)]
    if len(near) != 1 or not start[2:]:
        near = difflib.get_close_matches(start, by_normal, n=1, cutoff=cutoff)
    return by_normal[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest of the known names, or an empty string."""
    near = nearest_name(name, known)
    return f"; did you mean {near!r}?" if near else ""


def list_entry_points(group: str) -> list[EntryPoint]:
    """Return all entry points of a group; imports none.

    A distribution whose metadata can't be read is left out, with one warning of the logger
    `evalution`.
    """
    folders = tuple((folder, _last_change(folder)) for folder in sys.path)
    return [p for p in _read_entry_points(group.partition(".")[0], folders) if p.group == group]


UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError)
"""Errors of `importlib.metadata` on damaged files, which no version of Python wraps."""


@lru_cache(maxsize=8)
def _read_entry_points(of: str, folders: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """Read the groups of a project once, until packages come to `sys.path` or leave it."""
    from importlib.metadata import distributions  # noqa: PLC0415 - a fifth of core's import time

    # As Python's own `entry_points`, which fails as a whole: the first on the path hides others.
    first = {attrgetter("_normalized_name")(one): one for one in reversed([*distributions()])}
    points: list[EntryPoint] = []
    for name, one in first.items():
        try:
            # The sources of other projects' plugins would take longer than all the rest.
            points += [p for p in one.entry_points if p.group.startswith(of) and _read_source(one)]
        except UNREADABLE as error:
            _warn_once(f"{name} in {one.locate_file('')}", f"{type(error).__name__}: {error}")
    return points


@cache
def _read_source(one: Distribution | None) -> tuple[str | None, str | None]:
    """Return name and version of a distribution; its properties would read the file each time."""
    known: Any = one and one.metadata
    return (known.get("Name") or known.json["name"], known["Version"]) if one else (None, None)


@lru_cache
def _warn_once(distribution: str, cause: str) -> None:
    import logging  # noqa: PLC0415 - only a damaged package needs it

    text = f"{distribution} is left out, as its metadata can't be read; reinstall or remove it: "
    logging.getLogger("evalution").warning(text + cause)


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

    @property
    def qualified(self) -> str:
        """Return its name with the source, which no other plugin shares."""
        return f"{self.source}/{self.name}"

    def load(self) -> T:
        """Import the plugin; raises as `PluginRegistry.load`."""
        return self.registry.load_entry(self)


class PluginRegistry(Generic[T]):
    """All plugins of one kind: entry points of a group, and what is registered in this process.

    A plugin is asked for by its name (case, `-` and `_` don't count), by `distribution/Name` where
    two packages clash, or by `package.module:Class`. A name of this project's own stays with the
    package that brings it: a plugin of that name in another one needs its `distribution/Name`.

    Args:
        group: the entry-point group.
        noun: the word for a plugin of this kind in messages, such as `engine`.
        check: called with what was loaded and words for it (`engine 'X' of acme`); returns the
            plugin, or raises a `ConfigurationError` or `EngineUnavailableError`.
        unknown: raised where nothing has the name.
        unavailable: raised where a plugin can't be imported.
        built_in: names and values of plugins that need no entry point; `distribution` has them.
        distribution: where the built-in ones come from.
        own: names of this project, and the requirements that bring them, as a shell needs them.

    `aliases` has other words that people use, normalized, and the name that they mean; what follows
    a blank there is advice on its options. `fallback` ends the message on a name that is like no
    other. What engines have of these is the runner's to add. Without `takes_modules`,
    `package.module:Class` is no name.
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
        own: Mapping[str, str] | None = None,
    ):
        self.group = group
        self.own = {**dict.fromkeys(built_in or (), distribution or ""), **(own or {})}
        self.aliases: dict[str, str] = {}
        self.fallback = ""
        self._noun = noun
        self._check = check
        self._unknown = unknown
        self._unavailable = unavailable
        self.takes_modules = True
        known = (built_in or {}).items()
        self._built_in = [PluginEntry(*pair, distribution, None, self) for pair in known]
        self._registered: dict[str, PluginEntry[T]] = {}

    def entries(self) -> list[PluginEntry[T]]:
        """Return every plugin that is installed, built in or registered, by name; imports none."""
        found = {
            *(
                PluginEntry(point.name, point.value, *_read_source(point.dist), self)
                for point in list_entry_points(self.group)
            ),
            *self._built_in,
            *self._registered.values(),
        }
        return sorted(found, key=lambda entry: (normalize(entry.name), entry.distribution or ""))

    def names(self) -> dict[str, PluginEntry[T]]:
        """Return every plugin by its name, or by `distribution/Name` where that alone finds it."""
        entries = self.entries()
        alone = [entry for entry in entries if self._match(entry.name, entries) == [entry]]
        return {entry.name if entry in alone else entry.qualified: entry for entry in entries}

    def find(self, name: str) -> PluginEntry[T]:
        """Return the entry of this name; one that is spelt exactly goes before one that is alike.

        Args:
            name: a public name, `distribution/Name`, or `package.module:Class`.

        Raises:
            ConfigurationError: nothing has the name; the message lists what there is and what to
                install. Or two distributions provide it.
        """
        if ":" in name and self.takes_modules:
            return PluginEntry(name, name, None, None, self)
        matches = self._match(name, self.entries())
        if not matches:
            raise self._make_unknown_error(name)
        if len(matches) > 1:
            raise ConfigurationError(
                f"{self._noun} {name!r} is provided more than once; name one of: "
                f"{', '.join(match.qualified for match in matches)}"
            )
        return matches[0]

    def _match(self, name: str, entries: list[PluginEntry[T]]) -> list[PluginEntry[T]]:
        distribution, _, wanted = name.rpartition("/")
        owners = {normalize(known): bringer for known, bringer in self.own.items()}
        source = distribution or owners.get(normalize(wanted), "").strip('"').partition("[")[0]
        matches = [entry for entry in entries if normalize(entry.name) == normalize(wanted)]
        theirs = [entry for entry in matches if normalize(entry.source) == normalize(source)]
        if distribution:
            matches = theirs
        elif theirs:  # what this process registers is its user's own choice
            matches = [entry for entry in matches if entry in theirs or not entry.distribution]
        return [entry for entry in matches if entry.name == wanted] or matches

    def load(self, name: str) -> T:
        """Import the plugin of this name and no other; raises as `find` and `load_entry`."""
        return self.find(name).load()

    def load_entry(self, entry: PluginEntry[T]) -> T:
        """Import a plugin.

        Raises:
            ConfigurationError: there is no such module or class, for one that was named so; or what
                the entry point names is no plugin of this kind.
            EngineUnavailableError: its module fails to import.
        """
        source = f" of {entry.distribution}" if entry.distribution else ""
        what = f"{self._noun} {entry.name!r}{source}"
        try:
            return self._check(_import_value(entry.value), what)
        except (EvalutionError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the border: a plugin may raise anything, exit, or panic
            is_typo = entry.name == entry.value and _is_absent(entry.value, error)
            # A module that is imported knows the secrets of the environment, and may print them.
            message = redact_text(str(error), find_secrets(dict(os.environ)))
            raise (self._unknown if is_typo else self._unavailable)(
                f"{what} ({entry.value}) can't be loaded: {type(error).__name__}: {message}"
            ) from error

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

    def _make_unknown_error(self, name: str) -> ConfigurationError:
        known = [entry.name for entry in self.entries()]
        meant, _, options = self.aliases.get(normalize(name), "").partition(" ")
        likely = meant or nearest_name(name, [*known, *self.own], cutoff=0.6)
        advice = "" if likely else self.fallback
        if likely is not None and normalize(likely) != normalize(name):
            advice = f"; did you mean {likely!r}{options and f' with {options}'}?"
        if likely is not None and likely not in known:
            advice += f"{' ' if advice else '; '}pip install {self.own[likely]}"
        listed = ", ".join(dict.fromkeys(known)) or "none"
        if len(known) > _MOST_LISTED:
            listed = f"{len(known)}; `evalution {self._noun}s` lists them"
        return self._unknown(f"no {self._noun} {name!r} is installed{advice} (installed: {listed})")


def _import_value(value: str) -> object:
    # Without blanks and extras, as in `module : Class [extra]`.
    module_name, _, qualified = value.replace(" ", "").partition("[")[0].partition(":")
    if not qualified:
        raise ValueError("it names no class; write it as package.module:Class")
    module = sys.modules.get(module_name) or import_module(module_name)
    return attrgetter(qualified)(module)


def _is_absent(value: str, error: BaseException) -> bool:
    """Report whether the module isn't there, or was imported and has no such class."""
    name = value.partition(":")[0]
    missing = error.name if isinstance(error, ImportError) else None
    return name in ("", *sys.modules) or f"{name}.".startswith(f"{missing}.")
