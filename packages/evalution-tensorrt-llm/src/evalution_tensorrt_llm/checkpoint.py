"""What a model's configuration says of it, read before the runtime is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError, Model
from evalution_core.redaction import scrub
from evalution_enginekit import import_runtime
from evalution_enginekit.tokenizer_files import TRANSFORMERS

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's own description.

    Args:
        max_positions: the longest sequence; None if the configuration doesn't say.
        vocabulary: how many logits a row has; None if it doesn't say.
        dtype: precision of the weights.
        quantization: the method that they are quantized with.
        eos_ids: the ids that end a generation.
        revision: the commit on the Hub.
    """

    max_positions: int | None
    vocabulary: int | None
    dtype: str
    quantization: str | None
    eos_ids: frozenset[int] = frozenset()
    revision: str | None = None


def checkpoint(model: Model, folder: Path | None) -> Checkpoint:
    """The description of `folder`, or of the model on the Hub.

    Raises:
        ConfigurationError: there is no configuration, or it is broken.
    """
    if folder is not None:
        return _described(_read(folder / "config.json"))
    transformers: Any = import_runtime(
        "transformers", TRANSFORMERS, install='pip install "transformers>=4.57"'
    )
    where: dict[str, Any] = {
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
    }
    try:
        config: Any = transformers.AutoConfig.from_pretrained(model.path, **where)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no configuration could be loaded from {model.path!r}: {scrub(str(error))}"
        ) from error
    told: dict[str, Any] = config.to_dict()
    try:
        settings: Any = transformers.GenerationConfig.from_pretrained(model.path, **where)
        told["eos_token_id"] = settings.eos_token_id
    except OSError:
        # A model without generation settings is complete: what ends it is in its configuration.
        pass
    return _described(told, revision=config._commit_hash)


def _described(told: Mapping[str, Any], revision: str | None = None) -> Checkpoint:
    text = cast("Mapping[str, Any]", told.get("text_config") or told)
    lengths = [text[name] for name in _LENGTHS if isinstance(text.get(name), int)]
    dtype = text.get("dtype") or text.get("torch_dtype") or told.get("dtype")
    dtype = dtype or told.get("torch_dtype") or "bfloat16"
    quantization = cast("Mapping[str, Any]", told.get("quantization_config") or {})
    eos: Any = told.get("eos_token_id")
    ends = cast("list[int]", eos if isinstance(eos, list) else [] if eos is None else [eos])
    return Checkpoint(
        lengths[0] if lengths else None,
        text.get("vocab_size"),
        str(dtype).removeprefix("torch."),
        str(quantization.get("quant_method", "unknown")) if quantization else None,
        frozenset(ends),
        revision,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"no config.json in {file.parent}: give a folder with config.json and weights"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{file} isn't JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{file} must hold a JSON object")
    return cast("dict[str, Any]", found)
