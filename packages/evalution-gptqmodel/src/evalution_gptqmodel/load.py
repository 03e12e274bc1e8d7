"""A quantised checkpoint in memory, by GPTQModel's own loader, or a quantised model attached."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download

from evalution_core import ConfigurationError, Model
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import redact_text
from evalution_enginekit import load_tokenizer
from evalution_enginekit.model_source import (
    checkpoint_identity,
    find_checkpoint_dtype,
    find_missing_weights,
    model_folder,
    read_weight_names,
    refuse_missing,
)
from evalution_enginekit.runtime import merge_arguments, shorten_error
from evalution_enginekit.tokenizer_classes import read_json
from evalution_gptqmodel.layers import (
    are_kernels_ready,
    count_kernels,
    dequantize,
    describe_quantization,
    find_quantized_layers,
)
from evalution_gptqmodel.options import GPTQModelOptions
from evalution_gptqmodel.runtime import divert_output, find_packable_layer, import_gptqmodel
from evalution_gptqmodel.upstream import Runtime, Wrapper
from evalution_transformers.attached_model import borrow_model, read_handles
from evalution_transformers.load import LoadedModel, refuse_two_places
from evalution_transformers.options import read_attention
from evalution_transformers.runtime import loading_errors, resolve_device
from evalution_transformers.upstream import CausalModel

_WANTED = "the folder of a quantised checkpoint, or a Hub id as in owner/name"
_DECLARATIONS = ("config.json", "quantize_config.json", "quant_config.json")
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "quantize_config.json",
    "quant_config.json",
)
_FETCHED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Files that are fetched from the Hub: no weights that are pickled."""
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
"""Arguments of the loader that `model_kwargs` may not hold, and the remedy."""
_TAKEN = ("device_map", "format")
"""Arguments that matter for a quantised checkpoint in a folder; all others the loader drops."""
_OTHER_RUNTIMES = ("vllm", "sglang", "mlx")
"""Backends that hand the checkpoint to a runtime of its own; two have an engine of their own."""
_FLOAT32_METHODS = ("bitsandbytes", "fp8", "gguf")
_LOADING_OPTIONS = ("backend", "dtype", "device", "attn_implementation", "dequantize")
_UNREADY = (
    "this model was quantised in this process, and GPTQModel readies its kernels when it loads a "
    "checkpoint: save the model, and build the engine on that folder"
)


def load_model(options: GPTQModelOptions, model: Model) -> LoadedModel:
    """Load a quantised checkpoint; with `dequantize` its layers are turned into ordinary ones.

    Raises:
        ConfigurationError: no quantised checkpoint is there, options or `model_kwargs` contradict
            it or each other, it lacks weights, or a layer can't be turned.
        EngineUnavailableError: the device, GPTQModel, or a library of the backend isn't there.
    """
    if not options.dequantize:
        return _describe(*_load_checkpoint(options, model))
    if options.backend != "auto" or "device_map" in model.model_kwargs:
        raise ConfigurationError(
            "dequantize=True leaves no quantised layer for backend or model_kwargs device_map to "
            "place; leave both out"
        )
    # In float32 on the CPU weights come out of every kernel as they are stored.
    found, settings = _load_checkpoint(replace(options, device="cpu", dtype="float32"), model)
    execution = {**describe_quantization(found.model, settings), "quantized_backend": "dequantized"}
    modules = cast("torch.nn.Module", found.model)
    dequantize(modules, find_packable_layer())
    dtype = getattr(torch, "float32" if options.dtype == "auto" else options.dtype)
    # `to(dtype)` would round the rotary frequencies too, which every loader keeps in float32.
    for tensor in modules.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    modules.to(device=resolve_device(options.device))
    return replace(found, execution=execution)


def attach_model(
    options: GPTQModelOptions, handles: Mapping[str, Any], template: Model | None
) -> LoadedModel:
    """Take the caller's model and tokenizer.

    `handles["model"]` is what GPTQModel's loader returned, or the model of Transformers in it.

    Raises:
        ConfigurationError: a handle is missing or of another kind, nothing of the model is
            quantised, its kernels aren't ready, or an option of loading is set.
    """
    handle, tokenizer = read_handles(options, handles, _LOADING_OPTIONS)
    settings: Any = getattr(handle, "quantize_config", None)
    if settings is not None:
        if not cast("Wrapper", handle).load_quantized_model:
            raise ConfigurationError(_UNREADY)
        handle = cast("Wrapper", handle).model
    loaded = borrow_model(handle, tokenizer, template)
    if not count_kernels(loaded.model):
        raise ConfigurationError(
            f"no layer of this {type(loaded.model).__name__} is one of GPTQModel's quantised "
            f"ones; run it with the engine Transformers"
        )
    if not are_kernels_ready(loaded.model):
        raise ConfigurationError(_UNREADY)
    return _describe(loaded, settings)


def choose_dtype(
    options: GPTQModelOptions, found: str | None, device: torch.device, method: str
) -> str:
    """Return the precision to load in: for `auto` the checkpoint's, float32 where it states none.

    float16 takes its place where no kernel of GPTQModel 7.6 (`SUPPORTS_DTYPES`) takes float32: on
    accelerators other than XPU, for methods other than those of `_FLOAT32_METHODS`.
    """
    dtype = found or "float32"
    if options.dtype != "auto":
        return options.dtype
    has_kernels = device.type in ("cpu", "xpu") or method in _FLOAT32_METHODS
    return dtype if dtype != "float32" or has_kernels else "float16"


def check_complete(model: torch.nn.Module, folder: Path) -> None:
    """Refuse a checkpoint that lacks an embedding, a norm, or an output layer.

    GPTQModel's loader asks for the weights of the quantised layers alone; any other layer without
    weights keeps whatever was in its memory.

    Raises:
        ConfigurationError: weights are missing.
    """
    quantized = tuple(f"{name}." for name, _ in find_quantized_layers(model))
    missing = find_missing_weights(model, read_weight_names(folder), exempt=quantized)
    refuse_missing(str(folder), "its model", missing)


def _describe(loaded: LoadedModel, settings: Any) -> LoadedModel:
    """Add the quantisation to `describe_execution`, and the arithmetic of the kernels.

    Kernels of quantised layers round to 16 bits what they multiply, whatever the model's dtype is.
    """
    execution = describe_quantization(loaded.model, settings)
    if loaded.model.dtype != torch.float32:
        return replace(loaded, execution=execution)
    return replace(loaded, execution={**execution, "dtype": "float32"}, dtype="bfloat16")


def _load_checkpoint(options: GPTQModelOptions, model: Model) -> tuple[LoadedModel, Any]:
    """Load weights and tokenizer; return GPTQModel's configuration of the model beside them."""
    _check_arguments(options, model)
    folder, revision = _find_folder(model, type(options).__name__)
    quantization = _read_quantization(model, folder)
    device = resolve_device(options.device)
    # The tokenizer first: if it is missing, nothing large is read in vain.
    tokenizer = load_tokenizer(model, folder)
    runtime = import_gptqmodel()
    method = _check_method(runtime, quantization, model)
    arguments: dict[str, Any] = {**model.model_kwargs, "backend": _find_backend(runtime, options)}
    if "device_map" not in arguments:
        arguments["device"] = str(device)
    config = read_json(folder / "config.json")
    dtype = choose_dtype(options, find_checkpoint_dtype(config, folder), device, method)
    # Left to itself, the loader takes bfloat16 on a CPU, and in place of float32.
    arguments["dtype"] = getattr(torch, dtype)
    attention = read_attention(options)
    if attention is not None:
        arguments["attn_implementation"] = attention
    wrapper = _load(runtime, folder, model, arguments)
    loaded = cast("torch.nn.Module", wrapper.model)
    check_complete(loaded, folder)
    _set_attention(loaded, attention)
    loaded.requires_grad_(requires_grad=False).eval()
    own = folder if revision is None else None
    identity = checkpoint_identity(model, own, _WEIGHTS, revision)
    found = LoadedModel(cast("CausalModel", loaded), tokenizer, identity)
    return found, wrapper.quantize_config


def _find_folder(model: Model, engine: str) -> tuple[Path, str | None]:
    """Return the folder of `model.path`, and the commit of a repository in the Hub's cache.

    Raises:
        ConfigurationError: there is none.
    """
    path = model.path
    if path is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: the folder or the Hub id of a quantised checkpoint"
        )
    if (folder := model_folder(path, _WANTED)) is not None:
        return folder, None
    fetched = [*_FETCHED, *(["*.py"] if model.trust_remote_code else [])]
    try:
        found = snapshot_download(path, revision=model.revision, allow_patterns=fetched)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no folder {path!r} here, and the Hub gave none: {redact_text(str(error))}"
        ) from error
    # The cache keeps each commit in a folder of that name.
    return Path(found), Path(found).name


def _read_quantization(model: Model, folder: Path) -> dict[str, Any]:
    """Return what the files of a checkpoint declare: `quant_method`, `bits` and the like.

    Raises:
        ConfigurationError: they declare nothing, or hold no weights that can be read.
    """
    if not any(folder.glob("*.safetensors")):
        raise ConfigurationError(
            f"no weights in {model.path!r}: engine GPTQModel reads *.safetensors alone; save the "
            f"checkpoint in that format"
        )
    for name in _DECLARATIONS:
        content: Any = read_json(folder / name)
        if name == "config.json":
            content = content.get("quantization_config")
        if isinstance(content, dict) and content:
            return cast("dict[str, Any]", content)
    raise ConfigurationError(
        f"{model.path!r} isn't quantised: no quantization_config in its config.json and no "
        f"quantize_config.json beside it; run it with the engine Transformers, or quantise it "
        f"with GPTQModel first"
    )


def _check_arguments(options: GPTQModelOptions, model: Model) -> None:
    merge_arguments({"model.model_kwargs": model.model_kwargs}, refused=_OURS, taken=())
    unknown = sorted(set(model.model_kwargs) - set(_TAKEN))
    if unknown:
        raise ConfigurationError(
            f"model.model_kwargs: GPTQModel's loader does nothing with {', '.join(unknown)} for a "
            f"quantised checkpoint; it takes {', '.join(_TAKEN)}"
        )
    refuse_two_places(options, model)


def _check_method(runtime: Runtime, quantization: Mapping[str, Any], model: Model) -> str:
    """Return how a checkpoint is quantised; `ConfigurationError` if GPTQModel can't run it."""
    method = str(quantization.get("quant_method", quantization.get("method", "gptq"))).lower()
    known = sorted(str(member.value) for member in runtime.quantization.METHOD)
    if method not in known:
        raise ConfigurationError(
            f"{model.path!r} is quantised by {method!r}, and GPTQModel {runtime.__version__} runs "
            f"{', '.join(known)}; the engine Transformers may load it"
        )
    return method


def _find_backend(runtime: Runtime, options: GPTQModelOptions) -> Any:
    """Return the member of GPTQModel's enumeration."""
    known = {str(member.value): member for member in runtime.BACKEND}
    possible = sorted(set(known) - set(_OTHER_RUNTIMES))
    asked = options.backend.strip().lower()
    if asked in possible:
        return known[asked]
    raise ConfigurationError(
        f"backend={options.backend!r} is no backend of GPTQModel {runtime.__version__} for "
        f"this engine, which has {', '.join(possible)}{did_you_mean(asked, possible)}"
    )


def _load(runtime: Runtime, folder: Path, model: Model, arguments: Mapping[str, Any]) -> Wrapper:
    values = {name: getattr(value, "value", value) for name, value in sorted(arguments.items())}
    asked = ", ".join(f"{name}={value}" for name, value in values.items())
    with loading_errors(f"quantised model with {asked}", str(model.path)), divert_output():
        return runtime.GPTQModel.load(
            str(folder), trust_remote_code=model.trust_remote_code, **arguments
        )


def _set_attention(loaded: Any, asked: str | None) -> None:
    """Set the attention, whose name GPTQModel 7.6 and 7.7 pass on for CUDA alone."""
    if asked is None or loaded.config._attn_implementation == asked:
        return
    try:
        loaded.set_attn_implementation(asked)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"attn_implementation={asked!r} can't be used here: {shorten_error(error)}"
        ) from error
