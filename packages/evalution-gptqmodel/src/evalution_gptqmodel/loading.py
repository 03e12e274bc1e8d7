"""A quantised checkpoint in memory, by GPTQModel's own loader."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from safetensors import SafetensorError

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_enginekit import load_tokenizer
from evalution_enginekit.runtime import brief
from evalution_gptqmodel.folder import Folder, quantized_folder
from evalution_gptqmodel.upstream import Runtime, Wrapper, import_gptqmodel, quiet
from evalution_gptqmodel.weights import check_complete
from evalution_transformers.forward import CausalModel
from evalution_transformers.loading import Checkpoint, Placement, resolve_device

_OURS = {
    "adapter": "merge it into the model before it is quantised",
    "attn_implementation": "it is an option of the engine",
    "backend": "it is an option of the engine",
    "device": "it is an option of the engine",
    "dtype": "it is an option of the engine",
    "quantize_config": "the engine runs checkpoints that are quantised already",
    "revision": "it is model.revision",
    "torch_dtype": "the engine's option dtype is what it was renamed to",
    "trust_remote_code": "it is model.trust_remote_code",
}
"""Arguments of the loader that `model_kwargs` may not hold, and what to do instead."""
_TAKEN = ("device_map", "format")
"""Arguments that matter for a quantised checkpoint in a folder; all others the loader drops."""
_OTHER_RUNTIMES = {"vllm": "VLLM", "sglang": "SGLang", "mlx": None}
"""Backends that hand the checkpoint to a runtime of its own, and the engine for that runtime."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantised model with its tokenizer; `settings` is GPTQModel's configuration of it."""

    checkpoint: Checkpoint
    folder: Folder
    settings: Any


def load_quantized(model: Model, placement: Placement, backend: str, engine: str) -> Quantized:
    """Load weights and tokenizer.

    Raises:
        ConfigurationError: no quantised checkpoint is there, options or `model_kwargs` contradict
            it or each other, or it lacks weights.
        EngineUnavailableError: the device, GPTQModel, or a library of the backend isn't there.
    """
    _check_arguments(model, placement)
    folder = quantized_folder(model, engine)
    device = resolve_device(placement.device)
    # The tokenizer first: if it is missing, nothing large is read in vain.
    tokenizer = load_tokenizer(model, folder.path)
    runtime = import_gptqmodel()
    _check_method(runtime, folder, model)
    chosen = _backend(runtime, backend)
    arguments: dict[str, Any] = dict(model.model_kwargs)
    if "device_map" not in arguments:
        arguments["device"] = str(device)
    if placement.dtype != "auto":
        arguments["dtype"] = getattr(torch, placement.dtype)
    if placement.attn_implementation not in (None, "auto"):
        arguments["attn_implementation"] = placement.attn_implementation
    wrapper = _loaded(runtime, folder, model, arguments | {"backend": chosen})
    loaded = cast(torch.nn.Module, wrapper.model)
    check_complete(loaded, folder.path)
    _set_attention(loaded, placement)
    loaded.requires_grad_(False).eval()
    checkpoint = Checkpoint(cast(CausalModel, loaded), tokenizer, folder.path)
    return Quantized(checkpoint, folder, wrapper.quantize_config)


def _check_arguments(model: Model, placement: Placement) -> None:
    for name, remedy in _OURS.items():
        if name in model.model_kwargs:
            raise ConfigurationError(f"model.model_kwargs may not hold {name}: {remedy}")
    unknown = sorted(set(model.model_kwargs) - set(_TAKEN))
    if unknown:
        raise ConfigurationError(
            f"model.model_kwargs: GPTQModel's loader does nothing with {', '.join(unknown)} for a "
            f"quantised checkpoint; it takes {', '.join(_TAKEN)}"
        )
    if placement.device not in (None, "auto") and "device_map" in model.model_kwargs:
        raise ConfigurationError(
            f"device={placement.device!r} and model.model_kwargs device_map say where the model "
            f"goes; set one of them"
        )


def _check_method(runtime: Runtime, folder: Folder, model: Model) -> None:
    quantization = folder.quantization
    method = str(quantization.get("quant_method", quantization.get("method", "gptq"))).lower()
    known = sorted(str(member.value) for member in runtime.quantization.METHOD)
    if method not in known:
        raise ConfigurationError(
            f"{model.path!r} is quantised by {method!r}, and GPTQModel {runtime.__version__} runs "
            f"{', '.join(known)}; the engine Transformers may load it"
        )


def _backend(runtime: Runtime, name: str) -> Any:
    """The member of GPTQModel's enumeration."""
    known = {str(member.value): member for member in runtime.BACKEND}
    asked = name.strip().lower()
    if asked in _OTHER_RUNTIMES:
        other = _OTHER_RUNTIMES[asked]
        hint = "leave it at auto" if other is None else f"use the engine {other}"
        raise ConfigurationError(f"backend={name!r} is a runtime of its own; {hint}")
    if asked in known:
        return known[asked]
    possible = sorted(set(known) - set(_OTHER_RUNTIMES))
    near = difflib.get_close_matches(asked, possible, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigurationError(
        f"backend={name!r} is no backend of GPTQModel {runtime.__version__}; {hint}it has "
        f"{', '.join(possible)}"
    )


def _loaded(
    runtime: Runtime, folder: Folder, model: Model, arguments: Mapping[str, Any]
) -> Wrapper:
    values = {name: getattr(value, "value", value) for name, value in sorted(arguments.items())}
    asked = ", ".join(f"{name}={value}" for name, value in values.items())
    try:
        with quiet():
            return runtime.GPTQModel.load(
                str(folder.path), trust_remote_code=model.trust_remote_code, **arguments
            )
    except ImportError as error:
        raise EngineUnavailableError(
            f"loading {model.path!r} needs more: {brief(error)}"
        ) from error
    except torch.OutOfMemoryError as error:
        raise EngineUnavailableError(
            f"{model.path!r} doesn't fit there ({asked}); set model_kwargs device_map: "
            f"{brief(error)}"
        ) from error
    except (
        AssertionError,
        AttributeError,
        KeyError,
        OSError,
        RuntimeError,
        SafetensorError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigurationError(
            f"GPTQModel {runtime.__version__} could not load {model.path!r} with {asked}: "
            f"{brief(error)}"
        ) from error


def _set_attention(loaded: Any, placement: Placement) -> None:
    """GPTQModel 7.6 and 7.7 pass the name on for CUDA alone."""
    asked = placement.attn_implementation
    if asked in (None, "auto") or loaded.config._attn_implementation == asked:
        return
    try:
        loaded.set_attn_implementation(asked)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"attn_implementation={asked!r} can't be used here: {brief(error)}"
        ) from error
