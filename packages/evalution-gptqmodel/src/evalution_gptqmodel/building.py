"""From an engine's options to a model that is ready to be run; imported when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from evalution_core import ConfigurationError, Model
from evalution_gptqmodel.dequantization import dequantize
from evalution_gptqmodel.kernels import are_ready, described, kernels_of
from evalution_gptqmodel.loading import load_quantized
from evalution_gptqmodel.upstream import packable_layer
from evalution_transformers import building
from evalution_transformers.building import Options, Runnable
from evalution_transformers.loading import resolve_device

_UNREADY = (
    "this model was quantised in this process, and GPTQModel readies its kernels when it loads a "
    "checkpoint: save the model, and build the engine on that folder"
)


def loaded(options: Options, model: Model, backend: str) -> Runnable:
    """A quantised checkpoint in memory, examined."""
    found = load_quantized(model, options.placement, backend, options.engine)
    runnable = building.prepared(options, found.checkpoint, found.folder.identity(model))
    return _told(runnable, found.settings)


def loaded_as_floats(options: Options, model: Model, backend: str) -> Runnable:
    """A quantised checkpoint whose layers were turned into ordinary ones, examined.

    Raises:
        ConfigurationError: a layer can't be turned, or kernels or several devices are asked for.
    """
    if backend != "auto" or "device_map" in model.model_kwargs:
        raise ConfigurationError(
            "dequantize=True leaves no quantised layer for backend or model_kwargs device_map to "
            "place; leave both out"
        )
    asked = options.placement
    # In float32 on the CPU weights come out of every kernel as they are stored.
    found = load_quantized(
        model, replace(asked, device="cpu", dtype="float32"), backend, options.engine
    )
    loaded_model: Any = found.checkpoint.model
    told = described(loaded_model, found.settings)
    dequantize(loaded_model, packable_layer())
    dtype = "float32" if asked.dtype == "auto" else asked.dtype
    loaded_model.to(device=resolve_device(asked.device), dtype=getattr(torch, dtype))
    runnable = building.prepared(options, found.checkpoint, found.folder.identity(model))
    return replace(runnable, described={**told, "quantized_backend": "dequantized"})


def borrowed(options: Options, handles: Mapping[str, Any], named: Model | None = None) -> Runnable:
    """The caller's model and tokenizer, examined.

    `handles["model"]` is what GPTQModel's loader gave, or the model of Transformers in it.

    Raises:
        ConfigurationError: a handle is missing or of another kind, nothing of the model is
            quantised, or its kernels aren't ready to be run.
    """
    settings: Any = None
    # What isn't a mapping is refused below, with the words for it.
    if isinstance(handles, Mapping) and (given := handles.get("model")) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        settings = getattr(given, "quantize_config", None)
        if settings is not None and not given.load_quantized_model:
            raise ConfigurationError(_UNREADY)
        handles = {**handles, "model": given if settings is None else given.model}
    runnable = building.borrowed(options, handles, named)
    if not kernels_of(runnable.model):
        raise ConfigurationError(
            f"no layer of this {type(runnable.model).__name__} is one of GPTQModel's quantised "
            f"ones; run it with the engine Transformers"
        )
    if not are_ready(runnable.model):
        raise ConfigurationError(_UNREADY)
    return _told(runnable, settings)


def _told(runnable: Runnable, settings: Any) -> Runnable:
    """With what `describe_execution` says of the quantisation, and the arithmetic of the kernels.

    Kernels of quantised layers round to 16 bits what they multiply, whatever the model's dtype is.
    """
    told = described(runnable.model, settings)
    if runnable.model.dtype != torch.float32:
        return replace(runnable, described=told)
    return replace(runnable, described={**told, "dtype": "float32"}, arithmetic="bfloat16")
