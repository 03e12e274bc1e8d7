"""What a loaded checkpoint's answers come from: its files, or the Hub's revision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from evalution_core import Model
from evalution_core.redaction import redact
from evalution_enginekit import files_identity, model_identity
from evalution_enginekit.model_source import told_arguments
from evalution_transformers.loading import Checkpoint

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf")


def identity_of(model: Model, checkpoint: Checkpoint, adapter: str | None) -> dict[str, Any] | None:
    """What `identity` tells: hashes or a revision, and what was passed to the loader.

    None where it can't be known, as with an adapter or a tokenizer from the Hub.
    """
    if checkpoint.folder is not None:
        identified = _folder_identity(model, checkpoint.folder)
    else:
        identified = _hub_identity(model, checkpoint)
    if identified is None:
        return None
    if adapter is not None:
        folder = Path(adapter)
        if not folder.is_dir():
            return None
        identified |= _files("adapter", folder)
    if model.model_kwargs:
        identified["model_kwargs"] = redact(plain(model.model_kwargs))
    return identified


def plain(value: Any) -> Any:
    """Arguments with what a configuration object says in place of the object."""
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value)
        return {key: plain(member) for key, member in members.items()}
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    told: Any = getattr(value, "to_dict", None)
    return plain(told()) if callable(told) else value


def _folder_identity(model: Model, folder: Path) -> dict[str, Any] | None:
    identified = model_identity(model, folder, _WEIGHTS)
    subfolder: Any = model.model_kwargs.get("subfolder")
    if identified is not None and subfolder:
        identified |= _files(subfolder, folder / subfolder)
    return identified


def _files(prefix: str, folder: Path) -> dict[str, Any]:
    files = files_identity(file for file in folder.iterdir() if file.is_file())
    return {f"{prefix}/{name}": told for name, told in files.items()}


def _hub_identity(model: Model, checkpoint: Checkpoint) -> dict[str, Any] | None:
    revision: Any = getattr(checkpoint.model.config, "_commit_hash", None)
    if revision is None or model.tokenizer is not None or model.tokenizer_path is not None:
        return None
    return {"repository": model.path, "revision": str(revision), **told_arguments(model)}
