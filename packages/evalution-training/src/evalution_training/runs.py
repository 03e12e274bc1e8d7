"""From a name and params to handles, which are torn down exactly once."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    Model,
)
from evalution_core.redaction import find_secrets, redact, redact_text
from evalution_training.models import NAME, to_evaluated_model, training_model
from evalution_training.registry import TrainingBackend, load_backend, validate_params


def make_backend(name: str, params: Mapping[str, Any] | None = None) -> TrainingBackend:
    """Make the backend of this name with these params; nothing is prepared yet.

    Raises:
        ConfigurationError: there is none, or a param is wrong; nothing was constructed.
        EngineUnavailableError: its module can't be imported.
        EngineRuntimeError: it refuses valid params.
    """
    given: Mapping[str, Any] = {} if params is None else params
    kind: Any = load_backend(name)
    config = validate_params(kind.Config, given, name)
    with _wrap_errors(f"backend {name!r} can't be made of these params", given):
        return kind(**config.model_dump())


@contextmanager
def prepare_model(
    backend: TrainingBackend | str,
    *,
    model: Model | Mapping[str, Any] | str,
    run_dir: str | os.PathLike[str],
    params: Mapping[str, Any] | None = None,
) -> Generator[dict[str, Any]]:
    """Yield the handles of a backend; it is torn down once when the context ends, however it ends.

    When the body fails, a failing teardown becomes a note of the body's error.

    Args:
        backend: a backend, or the name of one, which is made of `params`.
        model: what to prepare; as a mapping with the keys of a spec's section `model`.
        run_dir: a folder that the backend may fill; it is made where there is none.

    Raises:
        ConfigurationError: as `make_backend`, or the model is wrong, or the folder can't be made.
        EngineUnavailableError: something that it needs isn't installed.
        EngineRuntimeError: it could not be prepared or torn down; with the failure as cause.
    """
    if isinstance(backend, str):
        backend = make_backend(backend, params)
    elif params is not None:
        raise ConfigurationError(
            f"params go to a backend that is named; {type(backend).__name__} is made already"
        )
    declared = training_model(model)
    with _prepared(backend, declared, run_dir, params or {}) as handles:
        yield handles


@contextmanager
def _prepared(
    backend: TrainingBackend,
    declared: dict[str, Any],
    run_dir: str | os.PathLike[str],
    secrets: Mapping[str, Any],
) -> Generator[dict[str, Any]]:
    name = getattr(backend, "name", type(backend).__name__)
    _make_folder(Path(run_dir))
    with _wrap_errors(f"backend {name!r} could not prepare {declared[NAME]}", secrets):
        handles = backend.prepare(model=declared, run_dir=os.fspath(run_dir))
    if not isinstance(handles, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EngineRuntimeError(
            f"backend {name!r}: prepare must return a dict of handles, got {handles!r}"
        )
    try:
        yield handles
    except BaseException as error:
        try:
            with _wrap_errors("teardown", secrets):
                backend.teardown(handles)
        except EvalutionError as second:
            error.add_note(f"then {type(second).__name__}: backend {name!r}: {second}")
        raise
    with _wrap_errors(f"backend {name!r}: teardown", secrets):
        backend.teardown(handles)


def _make_folder(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"run_dir {run_dir} can't be made: {error.strerror}; name another folder"
        ) from error


@contextmanager
def _wrap_errors(doing: str, params: Mapping[str, Any]) -> Generator[None]:
    """Raise what isn't an `EvalutionError` as one, with the original as cause.

    Credentials among `params` are kept out of the message.
    """
    try:
        yield
    except EvalutionError:
        raise
    except Exception as error:  # the border to foreign code: a backend may raise anything
        text = redact_text(str(error), find_secrets(dict(params)))
        if isinstance(error, ImportError):
            raise EngineUnavailableError(f"{doing}: {text}") from error
        raise EngineRuntimeError(f"{doing}: {type(error).__name__}: {text}") from error


class TrainingModel:
    """A model that a backend prepares: `evalution.run(engine=…, backend=TrainingModel(…))`.

    Args:
        kind: the backend's name.
        model: what it prepares; as for `prepare_model`.
        params: the backend's own.
        folder: where relative paths in `model` start.

    Raises:
        ConfigurationError: the backend, a param or the model is wrong; nothing is prepared.
        EngineUnavailableError: the backend's module can't be imported.
    """

    def __init__(
        self,
        kind: str,
        model: Model | Mapping[str, Any] | str,
        params: Mapping[str, Any] | None = None,
        *,
        folder: Path | None = None,
    ):
        self._kind = kind
        self._params = dict(params or {})
        self._backend = make_backend(kind, self._params)
        self._declared = training_model(model, folder)
        self.model = to_evaluated_model(self._declared)
        """The model under evaluation, as results name it."""

    def to_dict(self) -> dict[str, Any]:
        """Kind, params and the model as it was declared; JSON-safe, secrets redacted."""
        return redact({"kind": self._kind, "params": self._params, "model": self._declared})

    def prepare(self, run_dir: Path) -> AbstractContextManager[dict[str, Any]]:
        """Return a context with its handles, as the function `prepare_model` does."""
        return _prepared(self._backend, self._declared, run_dir, self._params)


def read_backend(name: str, options: Mapping[str, Any], model: Any, folder: Path) -> TrainingModel:
    """Read the sections `backend` and `model` of a spec in `folder`; errors as `TrainingModel`."""
    return TrainingModel(name, model, options, folder=folder)
