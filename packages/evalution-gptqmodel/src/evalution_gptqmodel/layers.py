"""The quantised layers of a model: their kernels and bits, and their way back to floats."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import torch

from evalution_core import ConfigurationError
from evalution_gptqmodel.upstream import PackedLayer

_PACKAGE = "gptqmodel.nn_modules."


def describe_quantization(model: Any, settings: Any) -> dict[str, Any]:
    """Return the part of `describe_execution` that is about a model's quantisation.

    `quantized_backend` names the kernel classes that its layers are of, the most frequent first.
    `settings` is GPTQModel's configuration of the model; without it, formats, bits and group size
    are None.
    """
    kernels = count_kernels(model)
    names = ("method", "format", "runtime_format", "bits", "group_size")
    # `runtime_format` is no field: GPTQModel's loader sets it.
    found = {name: _to_plain(getattr(settings, name, None)) for name in names}
    return {
        "quantization": found["method"] or _declared_method(model),
        "quantized_backend": ", ".join(kernels),
        "quantized_layers": sum(kernels.values()),
        "checkpoint_format": found["format"],
        "runtime_format": found["runtime_format"],
        "bits": found["bits"],
        "group_size": found["group_size"],
    }


def count_kernels(model: Any) -> dict[str, int]:
    """Return how many quantised layers there are of each class, the most frequent first."""
    return dict(
        Counter(type(layer).__name__ for _, layer in find_quantized_layers(model)).most_common()
    )


def are_kernels_ready(model: Any) -> bool:
    """Return whether each layer's zeros are stored as its kernel reads them.

    In a model that was quantised in memory they aren't: gptqmodel 7.6 and 7.7 convert format 1 to
    format 2 when they load a checkpoint, and numbers are wrong before that.
    """
    layers: list[Any] = [layer for _, layer in find_quantized_layers(model)]
    return not any(
        getattr(layer, "REQUIRES_FORMAT_V2", False) and layer.qzero_format() == 1
        for layer in layers
    )


def find_quantized_layers(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the layers that GPTQModel put in place of the model's own, by name; not their parts."""
    parts = "\0"
    # A module's parts come right after it.
    for name, module in cast("torch.nn.Module", model).named_modules():
        if type(module).__module__.startswith(_PACKAGE) and not name.startswith(parts):
            parts = f"{name}."
            yield name, module


def _declared_method(model: Any) -> str | None:
    found: Any = getattr(model.config, "quantization_config", None)
    method = found.get("quant_method") if isinstance(found, dict) else None
    return None if method is None else str(method)


def _to_plain(found: Any) -> Any:
    """Return the value of an enumeration's member, a number as it is, anything else as text."""
    found = getattr(found, "value", found)
    return found if found is None or isinstance(found, int) else str(found)


def dequantize(model: torch.nn.Module, packable: type) -> None:
    """Put a linear layer with the same weights in the place of each quantised one.

    A weight is (stored integer − zero) × scale of its group, in the dtype of the scales. `packable`
    is GPTQModel's class of layers whose weights can be read.

    Raises:
        ConfigurationError: a layer can't be turned, or rotates its input; the model is unchanged.
    """
    layers = list(find_quantized_layers(model))
    for name, layer in layers:
        packed = cast("PackedLayer", layer)
        if not isinstance(layer, packable) or packed.online_full_had or packed.online_partial_had:
            raise ConfigurationError(
                f"dequantize=True: layer {name} is a {type(layer).__name__}, whose weights can't "
                f"be read; it takes a checkpoint in GPTQ's own format, without online rotation. "
                f"Leave dequantize out to run it on its kernels"
            )
    for name, layer in layers:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _make_linear(cast("PackedLayer", layer)))
    # The model isn't quantised now, and Transformers must not take it for that.
    configuration: Any = model.config
    if hasattr(configuration, "quantization_config"):
        del configuration.quantization_config


def _make_linear(layer: PackedLayer) -> torch.nn.Linear:
    weight = layer.dequantize_weight().T.contiguous()
    with torch.device("meta"):
        linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        linear.bias = torch.nn.Parameter(layer.bias.to(weight.dtype), requires_grad=False)
    return linear
