"""The folder that a quantised checkpoint lies in, and what it says about its quantisation."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub import snapshot_download

from evalution_core import ConfigurationError, Model
from evalution_core.redaction import redact, scrub
from evalution_enginekit import model_identity
from evalution_enginekit.model_source import model_folder, told_arguments

_WANTED = "the folder of a quantised checkpoint, or a Hub id as in owner/name"
_DECLARATIONS = ("config.json", "quantize_config.json", "quant_config.json")
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "quantize_config.json",
    "quant_config.json",
)
_FETCHED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""What is fetched from the Hub: no weights that are pickled."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a checkpoint lies; `revision` is the Hub's commit, None for a folder of the user's.

    `quantization` is what its files declare (`quant_method`, `bits`, `group_size`, …).
    """

    path: Path
    quantization: Mapping[str, Any]
    revision: str | None = None

    def identity(self, model: Model) -> dict[str, Any] | None:
        """What answers for `model`: the Hub's revision, or the SHA-256 of each file by name."""
        if self.revision is None:
            found = model_identity(model, self.path, _WEIGHTS)
        elif model.tokenizer is None and model.tokenizer_path is None:
            found = {"repository": model.path, "revision": self.revision}
            found |= told_arguments(model)
        else:
            found = None
        if found is not None and model.model_kwargs:
            found["model_kwargs"] = redact(model.model_kwargs)
        return found


def quantized_folder(model: Model, engine: str) -> Folder:
    """The folder of `model.path`: a local one, or a repository of the Hub in its cache.

    Raises:
        ConfigurationError: there is none, or what is there isn't quantised.
    """
    if model.path is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: the folder or the Hub id of a quantised checkpoint"
        )
    path, revision = _located(model, model.path)
    quantization = _declared(path)
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


def _located(model: Model, path: str) -> tuple[Path, str | None]:
    folder = model_folder(path, _WANTED)
    if folder is not None:
        return folder, None
    fetched = [*_FETCHED, *(["*.py"] if model.trust_remote_code else [])]
    try:
        found = snapshot_download(path, revision=model.revision, allow_patterns=fetched)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no folder {path!r} here, and the Hub gave none: {scrub(str(error))}"
        ) from error
    # The cache keeps each commit in a folder of that name.
    return Path(found), Path(found).name


def _declared(folder: Path) -> dict[str, Any] | None:
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
