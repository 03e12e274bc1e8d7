"""The quantised layers of a model: which kernels they are of, and what they were quantised to."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import torch

_PACKAGE = "gptqmodel.nn_modules."


def described(model: Any, settings: Any) -> dict[str, Any]:
    """What `describe_execution` tells of a quantised model.

    `quantized_backend` names the kernel classes that its layers are of, the most frequent first.
    `settings` is GPTQModel's configuration of the model; without it, formats, bits and group size
    are None.
    """
    kernels = kernels_of(model)
    names = ("method", "format", "runtime_format", "bits", "group_size")
    # `runtime_format` is no field: GPTQModel's loader sets it.
    told = {name: _plain(getattr(settings, name, None)) for name in names}
    return {
        "quantization": told["method"] or _declared_method(model),
        "quantized_backend": ", ".join(kernels),
        "quantized_layers": sum(kernels.values()),
        "checkpoint_format": told["format"],
        "runtime_format": told["runtime_format"],
        "bits": told["bits"],
        "group_size": told["group_size"],
    }


def kernels_of(model: Any) -> dict[str, int]:
    """The classes of the quantised layers and how many there are of each, most frequent first."""
    return dict(Counter(type(layer).__name__ for _, layer in quantized_layers(model)).most_common())


def are_ready(model: Any) -> bool:
    """Whether each layer's zeros are stored as its kernel reads them.

    In a model that was quantised in memory they aren't: gptqmodel 7.6 and 7.7 convert format 1 to
    format 2 when they load a checkpoint, and what is run before that gives wrong numbers.
    """
    layers: list[Any] = [layer for _, layer in quantized_layers(model)]
    return not any(
        getattr(layer, "REQUIRES_FORMAT_V2", False) and layer.qzero_format() == 1
        for layer in layers
    )


def quantized_layers(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers that GPTQModel put in place of the model's own, by name; not their parts."""
    parts = "\0"
    # A module's parts come right after it.
    for name, module in cast(torch.nn.Module, model).named_modules():
        if type(module).__module__.startswith(_PACKAGE) and not name.startswith(parts):
            parts = f"{name}."
            yield name, module


def _declared_method(model: Any) -> str | None:
    found: Any = getattr(model.config, "quantization_config", None)
    method = found.get("quant_method") if isinstance(found, dict) else None
    return None if method is None else str(method)


def _plain(found: Any) -> Any:
    """The value of a member of an enumeration; numbers as they are, anything else in words."""
    found = getattr(found, "value", found)
    return found if found is None or isinstance(found, int) else str(found)
