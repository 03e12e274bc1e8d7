"""A Llama-family checkpoint folder, as published on the Hugging Face Hub."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalution_core.errors import ConfigurationError
from evalution_reference.llama_config import LlamaConfig, read_config
from evalution_reference.safetensors_file import SafetensorsFile

__all__ = ["LlamaConfig", "load_checkpoint", "read_config", "tensor_shapes"]

Floats = NDArray[np.floating[Any]]

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def load_checkpoint(folder: str | Path) -> tuple[LlamaConfig, dict[str, Floats]]:
    """Read configuration and weights from `model.safetensors` or from the shards of its index.

    The weights keep their Hugging Face names and stored precision (bfloat16 becomes float32,
    exactly). A tied head is left out: the embedding stands for it.

    Raises:
        ConfigurationError: folder, file or tensor is missing; a file is truncated; a shape differs
            from the configuration; the weights hold a tensor that the forward pass would not use.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigurationError(f"checkpoint folder {str(folder)!r} does not exist")
    config = read_config(folder)
    files = _files_by_tensor(folder)
    shapes = tensor_shapes(config)
    names = _names_to_read(folder, config, shapes, files)
    grouped: defaultdict[SafetensorsFile, list[str]] = defaultdict(list)
    for name in names:
        grouped[files[name]].append(name)
    weights = {
        name: tensor for file, held in grouped.items() for name, tensor in file.read(held).items()
    }
    if config.tie_word_embeddings and _HEAD in weights:
        _check_tie(folder, weights[_EMBEDDING], weights.pop(_HEAD))
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ConfigurationError(
                f"tensor {name!r} in {str(files[name].path)!r} has shape {weights[name].shape}, "
                f"but config.json asks for {shape}"
            )
    return config, weights


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a model of this configuration needs."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.attention_bias:
        layer["self_attn.q_proj.bias"] = (queries,)
        layer["self_attn.k_proj.bias"] = layer["self_attn.v_proj.bias"] = (keys,)
    if config.attention_output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (config.vocab_size, hidden)}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[_HEAD] = (config.vocab_size, hidden)
    return shapes


def _files_by_tensor(folder: Path) -> dict[str, SafetensorsFile]:
    single = folder / "model.safetensors"
    if single.exists():
        file = SafetensorsFile(single)
        return dict.fromkeys(file.names, file)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _files_of_index(index)
    raise ConfigurationError(
        f"checkpoint folder {str(folder)!r} holds neither 'model.safetensors' nor "
        f"{index.name!r}; weights in another format have to be converted to safetensors first"
    )


def _files_of_index(index: Path) -> dict[str, SafetensorsFile]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shard_names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{str(index)!r} is not an index of safetensors files (no usable 'weight_map')"
        ) from error
    for shard_name in shard_names:
        if Path(shard_name).name != shard_name:
            raise ConfigurationError(f"{str(index)!r} points outside its folder: {shard_name!r}")
    shards = {name: SafetensorsFile(index.with_name(name)) for name in shard_names}
    return {name: shards[shard_name] for name, shard_name in weight_map.items()}


def _names_to_read(
    folder: Path,
    config: LlamaConfig,
    shapes: Mapping[str, tuple[int, ...]],
    files: Mapping[str, SafetensorsFile],
) -> list[str]:
    missing = sorted(shapes.keys() - files.keys())
    if missing:
        hint = ""
        if missing == [_HEAD]:
            hint = "; a head tied to the embedding needs tie_word_embeddings in config.json"
        raise ConfigurationError(
            f"the weights in {str(folder)!r} lack {_some(missing)}, "
            f"which config.json asks for{hint}"
        )
    names = list(shapes)
    if config.tie_word_embeddings and _HEAD in files:
        names.append(_HEAD)
    # Old exports carry the rope frequencies, which follow from config.json.
    unused = sorted(
        name for name in files.keys() - set(names) if not name.endswith("rotary_emb.inv_freq")
    )
    if unused:
        raise ConfigurationError(
            f"the weights in {str(folder)!r} hold {_some(unused)}, which a model of this "
            "config.json does not use, so that the results would not be those of the checkpoint"
        )
    return names


def _check_tie(folder: Path, embedding: Floats, head: Floats) -> None:
    # Transformers 4 uses the embedding in this case, Transformers 5 the head.
    if not np.array_equal(embedding, head):
        raise ConfigurationError(
            f"{str(folder / 'config.json')!r} says tie_word_embeddings, but {_HEAD!r} differs "
            f"from {_EMBEDDING!r}; set it to false or remove the tensor"
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
