"""The precision of a checkpoint, which `dtype: auto` means, and the names of arithmetics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

_STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Floats of safetensors files."""


def find_checkpoint_dtype(config: Mapping[str, Any], folder: Path | None) -> str | None:
    """Return the precision of a checkpoint as Transformers finds it; None: it isn't known.

    That is what `config.json` declares, also for its text model, else what the weights are stored
    in.

    Args:
        config: the content of `config.json`.
        folder: where the weights are, as far as they are here.
    """
    text = cast("Mapping[str, Any]", config.get("text_config") or {})
    declared = (part.get(key) for part in (config, text) for key in ("dtype", "torch_dtype"))
    found = next((str(dtype).removeprefix("torch.") for dtype in declared if dtype), None)
    return found or (None if folder is None else _read_stored_dtype(folder))


def choose_serving_dtype(asked: str, config: Mapping[str, Any], folder: Path | None) -> str:
    """Return the precision to ask a serving runtime for, whose own `auto` may be a narrower one.

    The checkpoint's for `auto`. With quantised weights it stays `auto`: the kernels decide.
    """
    if asked != "auto" or config.get("quantization_config"):
        return asked
    return find_checkpoint_dtype(config, folder) or asked


def name_precision(dtype: object, quantization: object, cache_dtype: object) -> str:
    """Return the name of an arithmetic; with quantization one to which no close tolerance belongs.

    `dtype` may be torch's. `cache_dtype` is the precision of the cache; None and `auto` mean the
    same as `dtype`.
    """
    name = str(dtype).removeprefix("torch.")
    if quantization is not None:
        return f"{name}, {quantization}"
    if cache_dtype is None or str(cache_dtype) in ("auto", name):
        return name
    return f"{name}, cache in {cache_dtype}"


def _read_stored_dtype(folder: Path) -> str | None:
    """Return the type of the first floats in a folder of safetensors files."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            header: Any = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        types = (_STORED.get(entry.get("dtype")) for entry in header.values())
        if found := next(filter(None, types), None):
            return found
    return None
