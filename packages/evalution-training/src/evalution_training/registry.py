"""Training backends: their protocol, their params, and how they are found by name.

Listing reads package metadata only; loading imports one backend. A name is an entry point of the
group `evalution.training_backends`, one registered in this process, `distribution/name` where two
packages clash, or `package.module:Class`. Packages that were written for EvSys are named with their
group: `evsys_sdk.backends/name`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from evalution_core import ConfigurationError, EngineUnavailableError, EvalutionError
from evalution_core.plugins import did_you_mean, installed, normalized
from evalution_core.redaction import hide, is_secret_name, redact, scrub

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class TrainingBackend(Protocol):
    """Puts a model into memory, or makes a client of a training server, and hands it on.

    A class that has these members needs no base class.

    What stands under `backend.params` of a spec is validated by `Config` before the class is
    constructed with it, as keyword arguments. A constructor does nothing but keep them.
    """

    name: ClassVar[str]
    """The name for `backend.kind`."""
    Config: ClassVar[type[BaseModel]]
    """Its params; with `extra="forbid"`."""

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        """The handles that a training loop, and an engine's `attach`, take the model from.

        It is called once. If it fails it frees what it took: without handles, nobody else can.

        Args:
            model: `name` (a Hub id, a path, `builtin:tiny`, a server's name), and where the spec
                says so `load_checkpoint_path`, `init_from_checkpoint`, `renderer_name` and fields
                of `evalution_core.Model`.
            run_dir: a folder that it may fill.
        """
        ...

    def teardown(self, handles: dict[str, Any]) -> None:
        """Free what `prepare` took. Called once with what it returned, also after a failure."""
        ...


GROUP = "evalution.training_backends"
EVSYS_GROUP = "evsys_sdk.backends"
"""Its classes have the same members; read only where somebody names it."""

B = TypeVar("B", bound=type[Any])

_registered: dict[str, BackendEntry] = {}


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One backend that can be asked for by name; nothing of it is imported yet."""

    name: str
    value: str
    distribution: str | None = None
    version: str | None = None

    @property
    def source(self) -> str:
        """The distribution, or `in-process`; picks one of a clash."""
        return self.distribution or "in-process"

    def load(self) -> type[TrainingBackend]:
        """Import the backend's class.

        Raises:
            EngineUnavailableError: its module fails to import; the failure is the cause.
            ConfigurationError: what the entry names isn't a backend; says what it lacks.
        """
        where = f" of {self.distribution}" if self.distribution else ""
        try:
            found = _resolved(self.value)
        except EvalutionError:
            raise
        except Exception as error:  # the border to foreign code: a plugin may raise anything
            raise EngineUnavailableError(
                f"backend {self.name!r}{where} ({self.value}) can't be loaded: "
                f"{type(error).__name__}: {scrub(str(error))}"
            ) from error
        _check(found, f"backend {self.name!r}{where} ({self.value})")
        return found


def available_backends(group: str = GROUP) -> list[BackendEntry]:
    """Every backend that is installed, and for our own group registered, by name; imports none.

    Raises:
        ConfigurationError: `group` is neither ours nor that of EvSys.
    """
    if group not in (GROUP, EVSYS_GROUP):
        raise ConfigurationError(
            f"there is no group of backends {group!r}{did_you_mean(group, (GROUP, EVSYS_GROUP))} "
            f"(groups: {GROUP}, {EVSYS_GROUP})"
        )
    found = [_entry(point) for point in installed(group)]
    found += _registered.values() if group == GROUP else []
    return sorted(set(found), key=lambda entry: (normalized(entry.name), entry.source))


def load_backend(name: str) -> type[TrainingBackend]:
    """The backend class of this name (case, `-` and `_` don't count); imports that one.

    Raises:
        ConfigurationError: there is none, and what there is; or two packages bring it.
        EngineUnavailableError: its module can't be imported.
    """
    if ":" in name:
        return BackendEntry(name, name).load()
    source, _, wanted = name.rpartition("/")
    known = available_backends(EVSYS_GROUP if source == EVSYS_GROUP else GROUP)
    matches = [
        entry
        for entry in known
        if normalized(entry.name) == normalized(wanted)
        and (source in ("", EVSYS_GROUP) or normalized(entry.source) == normalized(source))
    ]
    if not matches:
        names = [entry.name for entry in known]
        raise ConfigurationError(
            f"there is no backend {name!r}{did_you_mean(wanted, names)} "
            f"(backends: {', '.join(names) or 'none'}){_elsewhere(wanted, source)}"
        )
    if len(matches) > 1:
        choices = ", ".join(f"{match.source}/{match.name}" for match in matches)
        raise ConfigurationError(
            f"backend {name!r} is provided more than once; name one of: {choices}"
        )
    return matches[0].load()


def register_backend(name: str | None = None) -> Callable[[B], B]:
    """Make a backend known in this process, without packaging.

    The class gets the name where it has none. It is looked up again by module and name when it is
    used, so it has to stand at the top level of its module.

    Raises:
        ConfigurationError: it is named in neither place, or otherwise in each; or another class has
            the name.
    """

    def register(backend: B) -> B:
        own: Any = getattr(backend, "name", None)
        called = name or own
        where = f"{backend.__module__}:{backend.__qualname__}"
        if not isinstance(called, str) or not called:
            raise ConfigurationError(
                f"backend {where} has no name; write @register_backend('its name')"
            )
        if own not in (None, called):
            raise ConfigurationError(
                f"backend {where} is registered as {called!r}, but its name is {own!r}"
            )
        if "<locals>" in where:
            raise ConfigurationError(f"backend {called!r} ({where}) must stand at module level")
        known = _registered.get(normalized(called))
        if known is not None and known.value != where:
            raise ConfigurationError(
                f"backend {called!r} is already registered by {known.value}; {where} needs another "
                "name"
            )
        backend.name = called
        _registered[normalized(called)] = BackendEntry(called, where)
        return backend

    return register


def _entry(point: EntryPoint) -> BackendEntry:
    dist = point.dist
    return BackendEntry(
        point.name, point.value, dist.name if dist else None, dist.version if dist else None
    )


def _elsewhere(wanted: str, source: str) -> str:
    if source:
        return ""
    theirs = {normalized(point.name) for point in installed(EVSYS_GROUP)}
    if normalized(wanted) not in theirs:
        return ""
    return f"; EvSys has one: name it {EVSYS_GROUP}/{wanted}"


def _resolved(value: str) -> Any:
    module, _, qualified = value.partition(":")
    found: Any = sys.modules.get(module) or import_module(module)
    for part in qualified.split(".") if qualified else ():
        found = getattr(found, part)
    return found


def _check(found: Any, what: str) -> None:
    if not isinstance(found, type):
        raise ConfigurationError(f"{what} isn't a class, but {found!r}")
    lacking = [name for name in ("prepare", "teardown") if not callable(getattr(found, name, None))]
    config: Any = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        lacking.append("Config (a pydantic model)")
    if lacking:
        raise ConfigurationError(f"{what} is no training backend; it lacks {', '.join(lacking)}")


def validated_params(config: type[BaseModel], params: Mapping[str, Any], what: str) -> BaseModel:
    """`params` as the backend's `Config`; `what` is the backend's name in messages.

    An unknown name is refused whether `Config` forbids it or not. Credentials among the values are
    kept out of every text from here on.

    Raises:
        ConfigurationError: a name is unknown, with the nearest one, or a value doesn't fit.
    """
    if not isinstance(params, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"params of backend {what!r} must be a mapping of names to values, got a "
            f"{type(params).__name__}"
        )
    hide(dict(params))
    known = [field.alias or name for name, field in config.model_fields.items()]
    for name in params:
        if name not in known and name not in config.model_fields:
            raise ConfigurationError(
                f"backend {what!r} has no param {name!r}{did_you_mean(str(name), known)} "
                f"(params: {', '.join(known) or 'none'})"
            )
    try:
        return config.model_validate(dict(params))
    except ValidationError as error:
        complaints = "; ".join(
            f"param {_place(fault['loc'])} of backend {what!r}: {fault['msg']}{_got(fault)}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigurationError(complaints) from None


def _place(location: tuple[int | str, ...]) -> str:
    return repr(".".join(str(part) for part in location))


def _got(fault: Any) -> str:
    if fault["type"] == "missing" or any(is_secret_name(str(part)) for part in fault["loc"]):
        return ""
    return f", got {redact(fault['input'])!r}"
