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
from evalution_core.plugins import PluginEntry, PluginRegistry, did_you_mean
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


def available_backends() -> list[PluginEntry[type[TrainingBackend]]]:
    """Return every backend that is installed, or registered here, by name; import none.

    Those of EvSys are found by their full names alone.
    """
    return _REGISTRIES[GROUP].entries()


def load_backend(name: str) -> type[TrainingBackend]:
    """Import the backend class of this name (case, `-` and `_` don't count), and no other.

    Raises:
        ConfigurationError: there is none, with a list of those there are; or two packages bring it.
        EngineUnavailableError: its module can't be imported.
    """
    group, _, wanted = name.rpartition("/")
    if group == EVSYS_GROUP:
        return _REGISTRIES[EVSYS_GROUP].load(wanted)
    return _REGISTRIES[GROUP].load(name)


def register_backend(name: str) -> Callable[[B], B]:
    """Return a decorator that makes a backend known in this process, without packaging.

    The class is looked up again by module and name when it is used, so it has to stand at the top
    level of its module.

    Raises:
        ConfigurationError: another class has the name.
    """
    return _REGISTRIES[GROUP].register(name)


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
        problems = "; ".join(_describe_problem(fault, what) for fault in error.errors())
        raise ConfigurationError(problems) from None


def _describe_problem(fault: Any, what: str) -> str:
    name = ".".join(map(str, fault["loc"]))
    is_hidden = any(is_secret_name(str(part)) for part in fault["loc"])
    is_known = fault["type"] in ("missing", "value_error") or is_hidden
    value = "" if is_known else f", got {redact(fault['input'])!r}"
    return f"param {name!r} of backend {what!r}: {fault['msg']}{value}"
