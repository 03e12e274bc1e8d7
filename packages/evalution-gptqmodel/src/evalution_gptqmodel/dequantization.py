"""Quantised layers turned back into ordinary ones, whose products round no further."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any, Protocol, cast

import torch

from evalution_core import ConfigurationError
from evalution_gptqmodel.kernels import quantized_layers


class PackedLayer(Protocol):
    """What is read off a layer of GPTQModel's `PackableQuantLinear`, which format GPTQ has."""

    in_features: int
    out_features: int
    bias: torch.Tensor | None
    online_full_had: bool
    online_partial_had: bool

    def dequantize_weight(self) -> torch.Tensor:
        """The weight, [in, out], in the dtype of its scales."""
        ...


def dequantize(model: torch.nn.Module, packable: type) -> None:
    """Put a linear layer with the same weights in the place of each quantised one.

    A weight is (stored integer − zero) × scale of its group, in the dtype of the scales. `packable`
    is GPTQModel's class of the layers that can tell their weights.

    Raises:
        ConfigurationError: a layer can't, or it turns its input first; the model is as it was.
    """
    layers = list(quantized_layers(model))
    for name, layer in layers:
        packed = cast(PackedLayer, layer)
        if not isinstance(layer, packable) or packed.online_full_had or packed.online_partial_had:
            raise ConfigurationError(
                f"dequantize=True: layer {name} is a {type(layer).__name__}, whose weights can't "
                f"be had; it takes a checkpoint in GPTQ's own format, without online rotation. "
                f"Leave dequantize out to run it on its kernels"
            )
    for name, layer in layers:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _linear(cast(PackedLayer, layer)))
    # What is left isn't quantised, and Transformers shall not take it for that.
    configuration: Any = model.config
    if hasattr(configuration, "quantization_config"):
        del configuration.quantization_config


def _linear(layer: PackedLayer) -> torch.nn.Linear:
    weight = layer.dequantize_weight().T.contiguous()
    with torch.device("meta"):
        linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        linear.bias = torch.nn.Parameter(layer.bias.to(weight.dtype), requires_grad=False)
    return linear
