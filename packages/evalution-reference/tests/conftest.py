"""Small random checkpoints, written the way the Hugging Face Hub has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from evalution_reference.llama_config import read_config
from evalution_reference.load import tensor_shapes

CheckpointWriter = Callable[..., Path]

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> CheckpointWriter:
    """Return a function that writes a checkpoint and returns its folder.

    Keywords are entries of config.json; None leaves one out.
    """

    def write(
        model_type: str = "llama",
        *,
        name: str = "checkpoint",
        dtype: str = "float64",
        shards: int = 1,
        seed: int = 0,
        **entries: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {"model_type": model_type, **SMALL, **entries}
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        save_weights(folder, random_weights(folder, seed, dtype), shards)
        return folder

    return write


def random_weights(folder: Path, seed: int, dtype: str) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {}
    for name, shape in tensor_shapes(read_config(folder)).items():
        values = generator.standard_normal(shape)
        if "norm" in name:
            values = 1 + 0.2 * values
        elif "embed_tokens" not in name and len(shape) == 2:
            values *= 1.5 * shape[1] ** -0.5
        weights[name] = values.astype(dtype)
    return weights


def save_weights(folder: Path, weights: dict[str, NDArray[Any]], shards: int = 1) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        held = dict(list(weights.items())[shard::shards])
        save_file(held, folder / file_name)
        weight_map |= dict.fromkeys(held, file_name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
