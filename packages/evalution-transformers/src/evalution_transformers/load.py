"""A checkpoint in memory: weights, tokenizer and adapter, and the identity of what answers."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from evalution_core import ConfigurationError, Model
from evalution_enginekit import Tokenizer, files_identity, load_tokenizer, model_identity
from evalution_enginekit.model_source import (
    checkpoint_identity,
    model_folder,
    read_commit_hash,
    refuse_missing,
)
from evalution_enginekit.runtime import is_in_range
from evalution_enginekit.tokenizer import HFTokenizer, parse_eos_ids
from evalution_enginekit.tokenizer_classes import read_json
from evalution_transformers.options import (
    ModelOptions,
    TransformersCompatOptions,
    TransformersOptions,
    read_attention,
)
from evalution_transformers.runtime import loading_errors, resolve_device
from evalution_transformers.upstream import CausalModel, LoadableModel

_GGUF_TOKENIZERS = ">=5.23"
"""Versions that read a GGUF's own tokenizer rightly; 5.22 splits text in another way."""
_OURS = ("revision", "trust_remote_code", "dtype", "torch_dtype", "attn_implementation")
"""Arguments of the loader that have a place of their own, in the model or among the options."""

CheckpointOptions = TransformersCompatOptions | TransformersOptions
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf")


EvalMode = Callable[[], AbstractContextManager[object]]
"""Returns a context in which a model may be run."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory and its tokenizer.

    Attributes:
        identity: the files or the Hub's revision that answer; None where neither is known.
        mode: for a model of the caller's, the contexts in which it may be run.
        execution: its own part of `describe_execution`.
        dtype: the precision that its layers compute in, where it isn't that of its weights.
    """

    model: CausalModel
    tokenizer: Tokenizer
    identity: Mapping[str, Any] | None = None
    mode: EvalMode | None = None
    execution: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dtype: str | None = None


def load_model(options: CheckpointOptions, model: Model) -> LoadedModel:
    """Load weights and tokenizer.

    Raises:
        ConfigurationError: nothing loadable is there, or `model_kwargs` and options contradict.
        EngineUnavailableError: the device isn't there, or an optional library is missing.
    """
    if model.path is None:
        raise ConfigurationError(
            f"engine {type(options).__name__} needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    taken = [name for name in _OURS if name in model.model_kwargs]
    if taken:
        raise ConfigurationError(
            f"model.model_kwargs may not hold {', '.join(taken)}: set model.revision and "
            f"model.trust_remote_code, or the engine's dtype and attn_implementation"
        )
    refuse_two_places(options, model)
    folder = _find_folder(model.path)
    device = resolve_device(options.device)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = _load_tokenizer(model, folder)
    loaded = _load(str(folder or model.path), model, options, device)
    if isinstance(tokenizer, HFTokenizer):
        tokenizer.eos_ids |= read_declared_eos(loaded)
    is_adapted = bool(getattr(loaded, "_hf_peft_config_loaded", False))
    if options.adapter is not None:
        _add_adapter(loaded, options.adapter)
    loaded.requires_grad_(requires_grad=False).eval()
    revision = read_commit_hash(loaded.config)
    identity = _find_identity(model, folder, revision, options.adapter, is_adapted=is_adapted)
    return LoadedModel(loaded, tokenizer, identity)


def read_declared_eos(model: CausalModel) -> frozenset[int]:
    """Return the ids of the tokens that end a generation by the model's generation settings."""
    return parse_eos_ids(getattr(model.generation_config, "eos_token_id", None))


def refuse_two_places(options: ModelOptions, model: Model) -> None:
    """Raise `ConfigurationError` if option and `model_kwargs` both place the model on a device."""
    if options.device not in (None, "auto") and "device_map" in model.model_kwargs:
        raise ConfigurationError(
            f"device={options.device!r} and model.model_kwargs device_map say where the model "
            f"goes; set one of them"
        )


def check_complete(path: str, report: Mapping[str, Any]) -> None:
    """Refuse a checkpoint without all weights: Transformers makes them up, and only warns.

    Args:
        path: the checkpoint, for the message.
        report: what `from_pretrained` returns with `output_loading_info`.

    Raises:
        ConfigurationError: weights are missing; the message names some.
    """
    refuse_missing(path, "a causal model", [str(name) for name in report.get("missing_keys", ())])


def _find_identity(
    model: Model,
    folder: Path | None,
    revision: str | None,
    adapter: str | None,
    *,
    is_adapted: bool,
) -> dict[str, Any] | None:
    """Return hashes of the files that answer or the Hub's revision, and the loader's arguments.

    `is_adapted`: at the model's path lies an adapter, of a base there or elsewhere. None where not
    all is known, as with an adapter, its base or a tokenizer from the Hub.
    """
    identity = checkpoint_identity(model, folder, _WEIGHTS, revision)
    if identity is None:
        return None
    if is_adapted and (folder is None or not (folder / "adapter_config.json").is_file()):
        return None
    if is_adapted and folder is not None and not (folder / "config.json").is_file():
        settings = read_json(folder / "adapter_config.json")
        base = Path(str(settings.get("base_model_name_or_path")))
        if not base.is_dir():
            return None
        files = model_identity(Model(model_kwargs=model.model_kwargs), base, _WEIGHTS) or {}
        identity |= {f"base/{name}": digest for name, digest in files.items()}
    if adapter is not None:
        if not (adapted := Path(adapter).expanduser()).is_dir():
            return None
        files = files_identity(file for file in adapted.iterdir() if file.is_file())
        identity |= {f"adapter/{name}": digest for name, digest in files.items()}
    return identity


def _find_folder(path: str) -> Path | None:
    file = Path(path).expanduser()
    if file.is_file():
        raise ConfigurationError(
            f"model.path {path!r} is a file; give its folder, and for a GGUF file model_kwargs "
            f"gguf_file={file.name!r}"
        )
    return model_folder(path)


def _load_tokenizer(model: Model, folder: Path | None) -> Tokenizer:
    if "gguf_file" in model.tokenizer_kwargs and not is_in_range(
        transformers.__version__, _GGUF_TOKENIZERS
    ):
        raise ConfigurationError(
            f"transformers {transformers.__version__} splits text otherwise than the tokenizer of "
            f"a GGUF file says; set tokenizer_path in place of tokenizer_kwargs gguf_file, or "
            f"install transformers{_GGUF_TOKENIZERS}"
        )
    with loading_errors("tokenizer", str(folder or model.path)):
        return load_tokenizer(model, folder)


def _load(
    path: str, model: Model, options: CheckpointOptions, device: torch.device
) -> LoadableModel:
    arguments = dict(model.model_kwargs)
    arguments.setdefault("use_safetensors", "gguf_file" not in arguments or None)
    if (attention := read_attention(options)) is not None:
        arguments["attn_implementation"] = attention
    with loading_errors("causal model", path):
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=options.dtype if options.dtype == "auto" else getattr(torch, options.dtype),
            revision=model.revision or "main",
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
            **arguments,
        )
        loaded, report = found
        check_complete(path, report)
        return _move(loaded, arguments, device)


def _move(
    loaded: LoadableModel, arguments: Mapping[str, Any], device: torch.device
) -> LoadableModel:
    """Return the model on its device; one that Transformers has placed itself stays there."""
    is_quantized = getattr(loaded, "quantization_method", None) is not None
    if "device_map" in arguments or (is_quantized and loaded.device.type != "cpu"):
        return loaded
    return loaded if loaded.device == device else loaded.to(device)


def _add_adapter(model: LoadableModel, adapter: str) -> None:
    """Put the LoRA adapter of a folder or Hub id into the layers of `model`.

    Raises:
        ConfigurationError: it can't be loaded, or it is one of another model.
        EngineUnavailableError: peft is missing.
    """
    folder = Path(adapter).expanduser()
    adapter = str(folder) if folder.is_dir() else adapter
    if folder.is_dir() and not (folder / "adapter_model.safetensors").is_file():
        raise ConfigurationError(
            f"the adapter {adapter!r} has no adapter_model.safetensors; its weights are read from "
            f"safetensors alone"
        )
    missing = f"adapter={adapter!r} needs peft; pip install peft"
    with loading_errors("adapter", adapter, missing=missing):
        model.load_adapter(adapter)
        odd = _find_unmatched(model, adapter)
    if odd:
        raise ConfigurationError(
            f"the adapter {adapter!r} is not one of this model: {len(odd)} of its weights have no "
            f"counterpart, {odd[0]} for one"
        )


def _find_unmatched(model: LoadableModel, adapter: str) -> list[str]:
    """Return LoRA weights that only one of model and adapter has, which Transformers warns of."""
    import peft  # noqa: PLC0415 - an optional library

    weights: dict[str, Any] = cast("Any", peft).load_peft_weights(adapter, "cpu")
    stored = {name.removeprefix("base_model.model.") for name in weights}
    placed = {name.replace(".default", "") for name in model.state_dict()}
    return sorted(name for name in stored ^ placed if ".lora_" in name)
