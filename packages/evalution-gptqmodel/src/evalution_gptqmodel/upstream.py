"""The parts of GPTQModel that are used here, as Protocols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class QuantizationSettings(Protocol):
    """Enumerations of the subpackage `gptqmodel.quantization`."""

    METHOD: Any


class Wrapper(Protocol):
    """`BaseQModel`, which the loader returns around a model of Transformers."""

    model: Any
    quantize_config: Any
    load_quantized_model: bool


class Loader(Protocol):
    """The class `GPTQModel`."""

    def load(self, model_id_or_path: str, **arguments: Any) -> Wrapper: ...


class Runtime(Protocol):
    """The package `gptqmodel`."""

    GPTQModel: Loader
    BACKEND: Iterable[Any]
    quantization: QuantizationSettings
    __version__: str


class PackedLayer(Protocol):
    """A layer of `PackableQuantLinear`, the format GPTQ."""

    in_features: int
    out_features: int
    bias: torch.Tensor | None
    online_full_had: bool
    online_partial_had: bool

    def dequantize_weight(self) -> torch.Tensor:
        """Return the weight, [in, out], in the dtype of its scales."""
        ...
