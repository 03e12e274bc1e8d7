"""What the runner gets: a backend with a model, to be prepared when a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from evalution_core import Model, redact
from evalution_training.models import evaluated_model, training_model
from evalution_training.preparing import make_backend, prepared


class TrainingModel:
    """A model that a backend prepares: `evalution.run(engine=…, backend=TrainingModel(…))`.

    Args:
        kind: the backend's name.
        model: what it prepares; as for `prepared`.
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
        self._model = evaluated_model(self._declared)

    @property
    def model(self) -> Model:
        """What is evaluated, as results name it."""
        return self._model

    def to_dict(self) -> dict[str, Any]:
        """Kind, params and the model as it was declared; JSON-safe, secrets redacted."""
        return redact({"kind": self._kind, "params": self._params, "model": self._declared})

    def prepared(self, run_dir: Path) -> AbstractContextManager[dict[str, Any]]:
        """As the function `prepared`."""
        return prepared(self._backend, model=self._declared, run_dir=run_dir)


def read_backend(name: str, options: Mapping[str, Any], model: Any, folder: Path) -> TrainingModel:
    """The sections `backend` and `model` of a spec in `folder`; errors as `TrainingModel`."""
    return TrainingModel(name, model, options, folder=folder)
