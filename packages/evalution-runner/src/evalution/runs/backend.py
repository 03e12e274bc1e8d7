"""A model that the engine doesn't load: a backend prepares it, and the engine attaches to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evalution.runs.preflight import parse_model
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    UnsupportedRequestError,
)


@runtime_checkable
class ModelBackend(Protocol):
    """A backend, as `backend:` in a spec or `backend=` of a run names one."""

    @property
    def model(self) -> Model:
        """The model as results name it."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return its declaration, JSON-safe and without secrets."""
        ...

    def prepare(self, run_dir: Path) -> AbstractContextManager[Mapping[str, Any]]:
        """Prepare the handles for `engine.attach`; the end of the context tears them down.

        Args:
            run_dir: a folder that it may fill.
        """
        ...


BackendReader = Callable[[str, Mapping[str, Any], Any, Path], ModelBackend]
"""Reads a spec: the backend's name, its options, the section `model` as it stands, and the folder
from which relative paths start. Raises `ConfigurationError` for what is wrong in them."""


def resolve_model(
    model: object, backend: ModelBackend | None, engine: BaseEngine | None, *, isolate: bool
) -> Model:
    """Return the model of a run, the backend's or `model`; errors as those of the checks."""
    if backend is None:
        return Model() if model is None else parse_model(model)
    check_backend(backend, engine)
    if isolate:
        raise ConfigurationError("isolate needs a model that the engine loads, and no backend")
    if model is not None and parse_model(model) != backend.model:
        raise ConfigurationError("a backend brings the model; name none beside it")
    return backend.model


def check_backend(backend: object, engine: BaseEngine | None) -> None:
    """Raise unless it is a backend whose model the engine can be given.

    Raises:
        ConfigurationError: it is none, or there is no engine.
        UnsupportedRequestError: the engine loads models itself and nothing else.
    """
    if not isinstance(backend, ModelBackend):
        raise ConfigurationError(
            "backend must have model, to_dict and prepare, as evalution_training.TrainingModel "
            f"has, got {backend!r}"
        )
    if engine is None:
        raise ConfigurationError("a backend's model is run by an engine; name one beside it")
    if Capability.ATTACH not in engine.capabilities:
        raise UnsupportedRequestError(
            f"engine {type(engine).__name__} can't attach to a live model, which a run with a "
            "backend needs; `evalution engines NAME` lists what one can do"
        )
