"""Training backends: their protocol, their params, and how they are found by name.

Listing reads package metadata only; loading imports one backend. A name is an entry point of the
group `evalution.training_backends`, one registered in this process, `distribution/name` where two
packages clash, or `package.module:Class`. Packages that were written for EvSys are named with their
group: `evsys_sdk.backends/name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast

from pydantic import BaseModel, ValidationError

from evalution_core import ConfigurationError
from evalution_core.plugins import PluginEntry, PluginRegistry, did_you_mean, normalized
from evalution_core.redaction import is_secret_name, redact


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
        """Return the handles from which a training loop, and an engine's `attach`, take the model.

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


def available_backends(group: str = GROUP) -> list[PluginEntry[type[TrainingBackend]]]:
    """Return every backend that is installed, or registered here, by name; import none.

    Raises:
        ConfigurationError: `group` is neither ours nor that of EvSys.
    """
    registry = _REGISTRIES.get(group)
    if registry is None:
        raise ConfigurationError(
            f"there is no group of backends {group!r}{did_you_mean(group, _REGISTRIES)} "
            f"(groups: {', '.join(_REGISTRIES)})"
        )
    return registry.entries()


def load_backend(name: str) -> type[TrainingBackend]:
    """Import the backend class of this name (case, `-` and `_` don't count), and no other.

    Raises:
        ConfigurationError: there is none, with a list of those there are; or two packages bring it.
        EngineUnavailableError: its module can't be imported.
    """
    source, _, wanted = name.rpartition("/")
    if source == EVSYS_GROUP:
        return _REGISTRIES[EVSYS_GROUP].load(wanted)
    try:
        entry = _REGISTRIES[GROUP].find(name)
    except ConfigurationError as error:
        if not source and _has_backend(EVSYS_GROUP, name) and not _has_backend(GROUP, name):
            raise ConfigurationError(
                f"{error}; EvSys has one: name it {EVSYS_GROUP}/{name}"
            ) from None
        raise
    return entry.load()


def register_backend(name: str | None = None) -> Callable[[B], B]:
    """Return a decorator that makes a backend known in this process, without packaging.

    The class gets the name if it has none. It is looked up again by module and name when it is
    used, so it has to stand at the top level of its module.

    Raises:
        ConfigurationError: neither place names it, or they name it differently; or another class
            has the name.
    """

    def register(backend: B) -> B:
        own: Any = getattr(backend, "name", None)
        called = name or own
        place = f"{backend.__module__}:{backend.__qualname__}"
        if not isinstance(called, str) or not called:
            raise ConfigurationError(
                f"backend {place} has no name; write @register_backend('its name')"
            )
        if own not in (None, called):
            raise ConfigurationError(
                f"backend {place} is registered as {called!r}, but its name is {own!r}"
            )
        _REGISTRIES[GROUP].register(called)(backend)
        backend.name = called
        return backend

    return register


def _has_backend(group: str, name: str) -> bool:
    names = {normalized(entry.name) for entry in _REGISTRIES[group].entries()}
    return normalized(name) in names


def _check(found: object, what: str) -> type[TrainingBackend]:
    if not isinstance(found, type):
        raise ConfigurationError(f"{what} isn't a class, but {found!r}")
    lacking = [name for name in ("prepare", "teardown") if not callable(getattr(found, name, None))]
    config: Any = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        lacking.append("Config (a pydantic model)")
    if lacking:
        raise ConfigurationError(f"{what} is not a training backend; it lacks {', '.join(lacking)}")
    return cast("type[TrainingBackend]", found)


_REGISTRIES = {
    group: PluginRegistry[type[TrainingBackend]](group, "backend", _check)
    for group in (GROUP, EVSYS_GROUP)
}


def validate_params(config: type[BaseModel], params: Mapping[str, Any], what: str) -> BaseModel:
    """Return `params` as the backend's `Config`; `what` is the backend's name in messages.

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
            f"param {_place(fault['loc'])} of backend {what!r}: {fault['msg']}"
            f"{_describe_value(fault)}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigurationError(complaints) from None


def _place(location: tuple[int | str, ...]) -> str:
    return repr(".".join(str(part) for part in location))


def _describe_value(fault: Any) -> str:
    if fault["type"] in ("missing", "value_error") or any(
        is_secret_name(str(part)) for part in fault["loc"]
    ):
        return ""
    return f", got {redact(fault['input'])!r}"
