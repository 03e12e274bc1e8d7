"""A quantised checkpoint in memory, by GPTQModel's own loader, or a quantised model attached."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import redact_text
from evalution_enginekit import Tokenizer, load_tokenizer
from evalution_enginekit.model_source import checkpoint_identity, model_folder
from evalution_enginekit.runtime import find_changed_options, shorten_error
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
from evalution_transformers.attached_model import read_handles, refuse_loading_options
from evalution_transformers.load import refuse_missing, refuse_two_places
from evalution_transformers.options import read_attention
from evalution_transformers.runtime import resolve_device
from evalution_transformers.session import LoadedModel, examine_handles, examine_model
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
_OTHER_RUNTIMES = {"vllm": "VLLM", "sglang": "SGLang", "mlx": None}
"""Backends that hand the checkpoint to a runtime of its own, and the engine for that runtime."""
_LOADING_OPTIONS = ("backend", "dtype", "device", "attn_implementation", "dequantize")
_UNREADY = (
    "this model was quantised in this process, and GPTQModel readies its kernels when it loads a "
    "checkpoint: save the model, and build the engine on that folder"
)


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a checkpoint; `revision` is the Hub's commit, None for a folder of the user's.

    `quantization` is what its files declare (`quant_method`, `bits`, `group_size`, …).
    """

    path: Path
    quantization: Mapping[str, Any]
    revision: str | None = None

    def identity(self, model: Model) -> dict[str, Any] | None:
        """Return the Hub's revision, or the SHA-256 of each file by name."""
        folder = self.path if self.revision is None else None
        return checkpoint_identity(model, folder, _WEIGHTS, self.revision)


@dataclass(frozen=True, slots=True)
class QuantizedCheckpoint:
    """A quantised model with its tokenizer; `settings` is GPTQModel's configuration of it."""

    model: torch.nn.Module
    tokenizer: Tokenizer
    folder: Folder
    settings: Any


def load(options: GPTQModelOptions, model: Model) -> LoadedModel:
    """Load a quantised checkpoint and try which forms of forward pass it allows."""
    found = _load_checkpoint(options, model)
    identity = found.folder.identity(model)
    loaded = examine_model(options, cast("CausalModel", found.model), found.tokenizer, identity)
    return _describe(loaded, found.settings)


def load_as_floats(options: GPTQModelOptions, model: Model) -> LoadedModel:
    """Load a quantised checkpoint and turn its layers into ordinary ones.

    Raises:
        ConfigurationError: a layer can't be turned, or kernels or several devices are asked for.
    """
    if options.backend != "auto" or "device_map" in model.model_kwargs:
        raise ConfigurationError(
            "dequantize=True leaves no quantised layer for backend or model_kwargs device_map to "
            "place; leave both out"
        )
    # In float32 on the CPU weights come out of every kernel as they are stored.
    found = _load_checkpoint(replace(options, device="cpu", dtype="float32"), model)
    execution = describe_quantization(found.model, found.settings)
    dequantize(found.model, find_packable_layer())
    dtype = "float32" if options.dtype == "auto" else options.dtype
    found.model.to(device=resolve_device(options.device), dtype=getattr(torch, dtype))
    identity = found.folder.identity(model)
    loaded = examine_model(options, cast("CausalModel", found.model), found.tokenizer, identity)
    return replace(loaded, execution={**execution, "quantized_backend": "dequantized"})


def attach_model(
    options: GPTQModelOptions, handles: Mapping[str, Any], named: Model | None
) -> LoadedModel:
    """Take the caller's model and tokenizer, and try which forms of forward pass it allows.

    `handles["model"]` is what GPTQModel's loader returned, or the model of Transformers in it.

    Raises:
        ConfigurationError: a handle is missing or of another kind, nothing of the model is
            quantised, its kernels aren't ready, or an option of loading is set.
    """
    refuse_loading_options(find_changed_options(options, _LOADING_OPTIONS))
    handle, tokenizer = read_handles(handles)
    settings: Any = getattr(handle, "quantize_config", None)
    if settings is not None:
        if not cast("Wrapper", handle).load_quantized_model:
            raise ConfigurationError(_UNREADY)
        handle = cast("Wrapper", handle).model
    loaded = examine_handles(options, handle, tokenizer, named or Model())
    if not count_kernels(loaded.model):
        raise ConfigurationError(
            f"no layer of this {type(loaded.model).__name__} is one of GPTQModel's quantised "
            f"ones; run it with the engine Transformers"
        )
    if not are_kernels_ready(loaded.model):
        raise ConfigurationError(_UNREADY)
    return _describe(loaded, settings)


def check_complete(model: torch.nn.Module, folder: Path) -> None:
    """Refuse a checkpoint that lacks an embedding, a norm, or an output layer.

    GPTQModel's loader asks for the weights of the quantised layers alone; any other layer without
    weights keeps whatever was in its memory. Weights that the loader may have renamed or joined
    can't be judged: where the checkpoint has names that the model doesn't, nothing is refused.

    Raises:
        ConfigurationError: weights are missing.
    """
    stored = set(_weight_names(folder.glob("*.safetensors")))
    quantized = tuple(f"{name}." for name, _ in find_quantized_layers(model))
    held: dict[int, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if not name.startswith(quantized):
            held.setdefault(id(weight), set()).add(name)
    missing = [min(names) for names in held.values() if not names & stored]
    own = {*model.state_dict(), *(name for names in held.values() for name in names)}
    renamed = [name for name in stored - own if not name.startswith(quantized)]
    if not renamed:
        refuse_missing(str(folder), "its model", missing)


def _weight_names(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        with safe_open(file, "pt") as opened:
            yield from opened.keys()


def _describe(loaded: LoadedModel, settings: Any) -> LoadedModel:
    """Add the quantisation to `describe_execution`, and the arithmetic of the kernels.

    Kernels of quantised layers round to 16 bits what they multiply, whatever the model's dtype is.
    """
    execution = describe_quantization(loaded.model, settings)
    if loaded.model.dtype != torch.float32:
        return replace(loaded, execution=execution)
    return replace(loaded, execution={**execution, "dtype": "float32"}, dtype="bfloat16")


def _load_checkpoint(options: GPTQModelOptions, model: Model) -> QuantizedCheckpoint:
    """Load weights and tokenizer.

    Raises:
        ConfigurationError: no quantised checkpoint is there, options or `model_kwargs` contradict
            it or each other, or it lacks weights.
        EngineUnavailableError: the device, GPTQModel, or a library of the backend isn't there.
    """
    _check_arguments(options, model)
    folder = _quantized_folder(model, type(options).__name__)
    device = resolve_device(options.device)
    # The tokenizer first: if it is missing, nothing large is read in vain.
    tokenizer = load_tokenizer(model, folder.path)
    runtime = import_gptqmodel()
    _check_method(runtime, folder, model)
    arguments: dict[str, Any] = {**model.model_kwargs, "backend": _find_backend(runtime, options)}
    if "device_map" not in arguments:
        arguments["device"] = str(device)
    if options.dtype != "auto":
        arguments["dtype"] = getattr(torch, options.dtype)
    attention = read_attention(options)
    if attention is not None:
        arguments["attn_implementation"] = attention
    wrapper = _load(runtime, folder, model, arguments)
    loaded = cast("torch.nn.Module", wrapper.model)
    check_complete(loaded, folder.path)
    _set_attention(loaded, attention)
    loaded.requires_grad_(requires_grad=False).eval()
    return QuantizedCheckpoint(loaded, tokenizer, folder, wrapper.quantize_config)


def _quantized_folder(model: Model, engine: str) -> Folder:
    """Return the folder of `model.path`: a local one, or a repository of the Hub in its cache.

    Raises:
        ConfigurationError: there is none, or the checkpoint there isn't quantised.
    """
    if model.path is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: the folder or the Hub id of a quantised checkpoint"
        )
    path, revision = _find_folder(model, model.path)
    quantization = _read_quantization(path)
    if quantization is None:
        raise ConfigurationError(
            f"{model.path!r} isn't quantised: no quantization_config in its config.json and no "
            f"quantize_config.json beside it; run it with the engine Transformers, or quantise it "
            f"with GPTQModel first"
        )
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(
            f"no weights in {model.path!r}: engine {engine} reads *.safetensors alone; save the "
            f"checkpoint in that format"
        )
    return Folder(path, quantization, revision)


def _find_folder(model: Model, path: str) -> tuple[Path, str | None]:
    folder = model_folder(path, _WANTED)
    if folder is not None:
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


def _read_quantization(folder: Path) -> dict[str, Any] | None:
    for name in _DECLARATIONS:
        file = folder / name
        if not file.is_file():
            continue
        try:
            content: Any = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ConfigurationError(f"{file} is not valid JSON: {error}") from error
        if name == "config.json":
            content = content.get("quantization_config") if isinstance(content, dict) else None
        if isinstance(content, dict) and content:
            return cast("dict[str, Any]", content)
    return None


def _check_arguments(options: GPTQModelOptions, model: Model) -> None:
    for name, remedy in _OURS.items():
        if name in model.model_kwargs:
            raise ConfigurationError(f"model.model_kwargs may not hold {name}: {remedy}")
    unknown = sorted(set(model.model_kwargs) - set(_TAKEN))
    if unknown:
        raise ConfigurationError(
            f"model.model_kwargs: GPTQModel's loader does nothing with {', '.join(unknown)} for a "
            f"quantised checkpoint; it takes {', '.join(_TAKEN)}"
        )
    refuse_two_places(options, model)


def _check_method(runtime: Runtime, folder: Folder, model: Model) -> None:
    quantization = folder.quantization
    method = str(quantization.get("quant_method", quantization.get("method", "gptq"))).lower()
    known = sorted(str(member.value) for member in runtime.quantization.METHOD)
    if method not in known:
        raise ConfigurationError(
            f"{model.path!r} is quantised by {method!r}, and GPTQModel {runtime.__version__} runs "
            f"{', '.join(known)}; the engine Transformers may load it"
        )


def _find_backend(runtime: Runtime, options: GPTQModelOptions) -> Any:
    """Return the member of GPTQModel's enumeration."""
    known = {str(member.value): member for member in runtime.BACKEND}
    asked = options.backend.strip().lower()
    if asked in _OTHER_RUNTIMES:
        other = _OTHER_RUNTIMES[asked]
        hint = "leave it at auto" if other is None else f"use the engine {other}"
        raise ConfigurationError(f"backend={options.backend!r} is a runtime of its own; {hint}")
    if asked in known:
        return known[asked]
    possible = sorted(set(known) - set(_OTHER_RUNTIMES))
    raise ConfigurationError(
        f"backend={options.backend!r} is no backend of GPTQModel {runtime.__version__}, which has "
        f"{', '.join(possible)}{did_you_mean(asked, possible)}"
    )


def _load(runtime: Runtime, folder: Folder, model: Model, arguments: Mapping[str, Any]) -> Wrapper:
    values = {name: getattr(value, "value", value) for name, value in sorted(arguments.items())}
    asked = ", ".join(f"{name}={value}" for name, value in values.items())
    try:
        with divert_output():
            return runtime.GPTQModel.load(
                str(folder.path), trust_remote_code=model.trust_remote_code, **arguments
            )
    except ImportError as error:
        raise EngineUnavailableError(
            f"loading {model.path!r} needs more: {shorten_error(error)}"
        ) from error
    except torch.OutOfMemoryError as error:
        raise EngineUnavailableError(
            f"{model.path!r} doesn't fit there ({asked}); set model_kwargs device_map: "
            f"{shorten_error(error)}"
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
            f"{shorten_error(error)}"
        ) from error


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
