"""A checkpoint in memory: where it lies, on which device and in which precision it is run."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    Model,
)
from evalution_enginekit import Tokenizer, load_tokenizer
from evalution_enginekit.model_source import model_folder
from evalution_enginekit.runtime import in_range
from evalution_enginekit.tokenizer_files import (
    HFTokenizer,
    given_tokenizer,
    load_hf_tokenizer,
    named_tokenizer,
)
from evalution_transformers.adapters import add_adapter
from evalution_transformers.forward import CausalModel
from evalution_transformers.upstream_loading import loading

_GGUF_TOKENIZERS = ">=5.23"
"""Versions that read a GGUF's own tokenizer rightly; 5.22 splits text in another way."""
_OURS = ("revision", "trust_remote_code", "dtype", "torch_dtype", "attn_implementation")
"""Arguments of the loader that have a place of their own, in the model or among the options."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model and its tokenizer; `folder` is where the files lie, None where they are cached."""

    model: CausalModel
    tokenizer: Tokenizer
    folder: Path | None


@dataclass(frozen=True, slots=True)
class Placement:
    """How a checkpoint is to be loaded, as the engine's options say it."""

    device: str | None
    dtype: str
    attn_implementation: str | None
    adapter: str | None


def load_checkpoint(model: Model, placement: Placement, engine: str) -> Checkpoint:
    """Load weights and tokenizer.

    Raises:
        ConfigurationError: nothing loadable is there, or `model_kwargs` and options contradict.
        EngineUnavailableError: the device isn't there, or an optional library is missing.
    """
    if model.path is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    taken = [name for name in _OURS if name in model.model_kwargs]
    if taken:
        raise ConfigurationError(
            f"model.model_kwargs may not hold {', '.join(taken)}: set model.revision and "
            f"model.trust_remote_code, or the engine's dtype and attn_implementation"
        )
    if placement.device not in (None, "auto") and "device_map" in model.model_kwargs:
        raise ConfigurationError(
            f"device={placement.device!r} and model.model_kwargs device_map say where the model "
            f"goes; set one of them"
        )
    folder = _folder(model.path)
    device = resolve_device(placement.device)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = _tokenizer(model, folder)
    loaded = _load(str(folder or model.path), model, placement, device)
    if isinstance(tokenizer, HFTokenizer):
        tokenizer.eos_ids |= declared_eos(loaded)
    if placement.adapter is not None:
        add_adapter(loaded, placement.adapter)
    cast(Any, loaded).requires_grad_(False).eval()
    return Checkpoint(loaded, tokenizer, folder)


def resolve_device(name: str | None) -> torch.device:
    """The named device, or the best there is for None and `auto`.

    Raises:
        ConfigurationError: the name isn't one of torch's.
        EngineUnavailableError: this machine or this build of torch lacks it.
    """
    if name in (None, "auto"):
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        return torch.device("cpu") if found is None else torch.device(found.type, 0)
    try:
        device = torch.device(name or "auto")
    except RuntimeError as error:
        raise ConfigurationError(
            f"device={name!r} isn't a device of torch; say cpu, cuda, cuda:1, mps or auto"
        ) from error
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = torch.accelerator.device_count() if present is not None else 0
    if device.type == "cpu" or (
        present is not None and device.type == present.type and (device.index or 0) < count
    ):
        return device
    there = "cpu" if present is None else f"cpu and {count} x {present.type}"
    raise EngineUnavailableError(
        f"device={name!r} isn't there: torch {torch.__version__} sees {there}"
    )


def described_runtime(device: str | None) -> dict[str, Any]:
    """Versions and device, as `BaseEngine.describe_runtime` tells them; errors as there."""
    return {
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "device": str(resolve_device(device)),
    }


def declared_eos(model: CausalModel) -> frozenset[int]:
    """The ids that the model's generation settings say end a generation."""
    found: Any = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset(cast("list[int]", found) if isinstance(found, list) else [int(found)])


def _folder(path: str) -> Path | None:
    file = Path(path).expanduser()
    if file.is_file():
        raise ConfigurationError(
            f"model.path {path!r} is a file; give its folder, and for a GGUF file model_kwargs "
            f"gguf_file={file.name!r}"
        )
    return model_folder(path)


def _tokenizer(model: Model, folder: Path | None) -> Tokenizer:
    own_gguf = "gguf_file" in model.tokenizer_kwargs
    if own_gguf and not in_range(transformers.__version__, _GGUF_TOKENIZERS):
        raise ConfigurationError(
            f"transformers {transformers.__version__} splits text otherwise than the tokenizer of "
            f"a GGUF file says; set tokenizer_path in place of tokenizer_kwargs gguf_file, or "
            f"install transformers{_GGUF_TOKENIZERS}"
        )
    path = str(folder or model.path)
    with loading("tokenizer", path, missing=f"the tokenizer of {path!r} needs more"):
        if folder is not None and not own_gguf:
            return load_tokenizer(model, folder)
        if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
            return given_tokenizer(model, model.tokenizer, frozenset)
        return load_hf_tokenizer(model, named_tokenizer(model) or path)


def _load(path: str, model: Model, placement: Placement, device: torch.device) -> CausalModel:
    arguments = dict(model.model_kwargs)
    arguments.setdefault("use_safetensors", "gguf_file" not in arguments or None)
    if placement.attn_implementation not in (None, "auto"):
        arguments["attn_implementation"] = placement.attn_implementation
    with loading("causal model", path, missing=f"loading {path!r} needs more"):
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=_dtype(placement.dtype),
            revision=model.revision or "main",
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
            **arguments,
        )
        loaded, report = found
        check_complete(path, report)
        return _placed(loaded, placement, arguments, device)


def check_complete(path: str, report: Mapping[str, Any]) -> None:
    """Refuse a checkpoint without all weights: upstream makes them up at random, and only warns.

    Args:
        report: what `from_pretrained` gives with `output_loading_info`.

    Raises:
        ConfigurationError: weights are missing; the message names some.
    """
    missing = sorted(str(name) for name in report.get("missing_keys", ()))
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise ConfigurationError(
            f"the checkpoint {path!r} lacks {len(missing)} weights of a causal model ({shown}); "
            f"its answers would be those of random ones"
        )


def _placed(
    loaded: Any, placement: Placement, arguments: Mapping[str, Any], device: torch.device
) -> CausalModel:
    """The model on its device, unless upstream has put it where it belongs."""
    is_quantized = getattr(loaded, "quantization_method", None) is not None
    if "device_map" in arguments or (is_quantized and loaded.device.type != "cpu"):
        return loaded
    if placement.dtype == "auto" and device.type == "cpu" and loaded.dtype == torch.float16:
        # Half precision has no fast kernels on a CPU, and some operations none at all.
        loaded = loaded if is_quantized else loaded.float()
    return loaded if loaded.device == device else loaded.to(device)


def _dtype(name: str) -> Any:
    return name if name == "auto" else getattr(torch, name)
