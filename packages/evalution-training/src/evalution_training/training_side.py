"""A model in training as a side of a comparison: as it is, without adapters, or in a dtype."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from evalution.fidelity.lockstep import RowSource, compare_windows, open_rows
from evalution.fidelity.requests import Window
from evalution_core import BaseEngine, BaseInferenceSession, ConfigurationError, Model
from evalution_training.backends import import_library

_WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}
_DTYPES = ("bfloat16", "float16", "float32")


@runtime_checkable
class _AdaptedModel(Protocol):
    """A model of peft, `peft.PeftModel`."""

    def disable_adapter(self) -> AbstractContextManager[Any]: ...


@runtime_checkable
class _TorchModel(Protocol):
    def parameters(self) -> Iterator[Any]: ...
    def to(self, dtype: Any, /) -> Self: ...


class TrainingSide:
    """The model in `handles`, to which `engine` attaches; a session is closed with its context."""

    def __init__(self, engine: BaseEngine, handles: Mapping[str, Any], model: Model | None):
        self.engine = engine
        self.model = model
        self._handles = handles

    @property
    def dtype(self) -> str | None:
        """The dtype of the weights, such as `bfloat16`; None where they aren't in this process."""
        weights = self._find_weights()
        return None if weights is None else str(weights.dtype).rpartition(".")[2]

    @property
    def wider_dtype(self) -> str | None:
        """The dtype whose rounding is small beside that of the weights'; None if there is none.

        Raises:
            ConfigurationError: there is one, but not on the weights' device.
        """
        wider = _WIDER.get(self.dtype or "")
        weights = self._find_weights()
        if wider == "float64" and weights is not None and weights.device.type == "mps":
            raise ConfigurationError(
                "the rounding of a model in float32 is measured in float64, which Apple's MPS "
                "doesn't have: give RolloutCheck a tolerance, in nats, or move the model to the CPU"
            )
        return wider

    @property
    def other_dtypes(self) -> list[str]:
        """The dtypes in which a rollout server may hold the weights, but their own."""
        return [each for each in _DTYPES if self.dtype not in (None, each)]

    @property
    def has_adapters(self) -> bool:
        return isinstance(self._handles.get("model"), _AdaptedModel)

    @contextmanager
    def open(
        self, dtype: str | None = None, *, with_adapters: bool = True
    ) -> Generator[BaseInferenceSession]:
        """Attach to the model, to a copy of it in `dtype`, or to it while its adapters are off."""
        handles = dict(self._handles)
        trained: Any = handles.get("model")
        context: AbstractContextManager[Any] = nullcontext()
        if dtype is not None:
            torch = import_library("torch", "local")
            handles["model"] = cast_weights(deepcopy(trained), getattr(torch, dtype))
        elif not with_adapters and isinstance(trained, _AdaptedModel):
            context = trained.disable_adapter()
        with context, self.engine.attach(handles, self.model) as session:
            yield session

    def _find_weights(self) -> Any:
        """Return the first tensor of the weights; None where they aren't in this process."""
        trained = self._handles.get("model")
        return next(trained.parameters(), None) if isinstance(trained, _TorchModel) else None

    def measure_rounding(self, dtype: str, windows: Sequence[Window], top: int) -> float:
        """Return the mean KL in nats between the model and its copy in `dtype`."""
        with self.open(dtype) as cast, self.open() as session:
            return measure_kl(open_rows(cast, top), open_rows(session, top), windows)


def cast_weights(model: Any, dtype: Any) -> Any:
    """Cast what a checkpoint stores; rotary frequencies, which it doesn't, stay as a server's."""
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def measure_kl(reference: RowSource, side: RowSource, windows: Sequence[Window]) -> float:
    """Return the mean KL over the positions where it is finite; ∞ if there is none."""
    compared = compare_windows(reference, side, windows)
    found = [each.figures["kl"] for each in compared if each.figures is not None]
    values = np.concatenate(found) if found else np.empty(0)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("inf")
