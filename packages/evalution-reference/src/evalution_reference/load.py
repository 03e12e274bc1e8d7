"""Find and load a Llama-family checkpoint folder, as published on the Hugging Face Hub."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import PREFIX, builtin_path
from evalution_reference.llama_config import LlamaConfig, read_config

Floats = NDArray[np.floating[Any]]

_DATA = Path(__file__).parent / "data" / "tiny"

TINY: dict[str, Path] = {
    "safetensors": _DATA,
    "gguf": _DATA / "tiny-f32.gguf",
    "gguf-q8_0": _DATA / "tiny-q8_0.gguf",
    "reference_values": _DATA / "reference_values.json",
    "quickstart": _DATA.parent / "quickstart.yaml",
    **{f"rows/{file.stem}": file for file in sorted((_DATA / "rows").glob("*.jsonl"))},
}
"""The files under `builtin:tiny`, by kind."""

_LIBRARY_DTYPES = frozenset({"F64", "F32", "F16"})
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def find_folder(model: Model) -> Path:
    """Return the folder that `model.path` names, or that a builtin's checkpoint is in.

    Raises:
        ConfigurationError: no path was given, or there is no such folder or builtin.
    """
    if model.path is None:
        raise ConfigurationError("engine Reference needs model.path: a folder, or builtin:tiny")
    if model.path.startswith(PREFIX):
        return builtin_path(model.path, "safetensors")
    folder = Path(model.path).expanduser()
    if not folder.is_dir():
        other = (
            "; for a name on the Hub take engine Transformers" if model.path.count("/") == 1 else ""
        )
        found = "is a file" if folder.exists() else "does not exist"
        raise ConfigurationError(
            f"model folder {model.path!r} {found}; engine Reference loads a local folder "
            f"with config.json and safetensors, or builtin:tiny{other}"
        )
    return folder


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
    files = _find_files(folder)
    shapes = tensor_shapes(config)
    names = _check_names(folder, config, shapes, files)
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


def _find_files(folder: Path) -> dict[str, SafetensorsFile]:
    """Return the file of every tensor in the folder."""
    single = folder / "model.safetensors"
    if single.exists():
        file = SafetensorsFile(single)
        return dict.fromkeys(file.names, file)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _read_index(index)
    raise ConfigurationError(
        f"checkpoint folder {str(folder)!r} holds neither 'model.safetensors' nor "
        f"{index.name!r}; weights in another format have to be converted to safetensors first"
    )


def _read_index(index: Path) -> dict[str, SafetensorsFile]:
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


def _check_names(
    folder: Path,
    config: LlamaConfig,
    shapes: Mapping[str, tuple[int, ...]],
    files: Mapping[str, SafetensorsFile],
) -> list[str]:
    """Return the tensors to read, and refuse weights that lack one or hold others."""
    missing = sorted(shapes.keys() - files.keys())
    if missing:
        hint = ""
        if missing == [_HEAD]:
            hint = "; a head tied to the embedding needs tie_word_embeddings in config.json"
        raise ConfigurationError(
            f"the weights in {str(folder)!r} lack {_join_names(missing)}, "
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
            f"the weights in {str(folder)!r} hold {_join_names(unused)}, which a model of this "
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


def _join_names(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


class SafetensorsFile:
    """An opened file whose length fits its header.

    Raises:
        ConfigurationError: the file is missing, unreadable, truncated or not in this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Any, because the library's stub leaves its methods untyped.
            self._file: Any = safe_open(path, framework="np")
        except FileNotFoundError as error:
            raise ConfigurationError(f"weights file {str(path)!r} does not exist") from error
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(
                f"weights file {str(path)!r} is truncated or not a safetensors file ({error}); "
                "copy or download it again"
            ) from error
        self.names: frozenset[str] = frozenset(self._file.keys())

    def read(self, names: Iterable[str]) -> dict[str, Floats]:
        """Return the named tensors in the precision they are stored in, bfloat16 as float32.

        Raises:
            ConfigurationError: a tensor is missing, or stored as anything but a plain float.
        """
        return {name: self._read_tensor(name) for name in names}

    def _read_tensor(self, name: str) -> Floats:
        if name not in self.names:
            raise ConfigurationError(f"tensor {name!r} is not in {str(self.path)!r}")
        dtype: str = self._file.get_slice(name).get_dtype()
        if dtype == "BF16":
            return self._read_bfloat16(name)
        if dtype not in _LIBRARY_DTYPES:
            raise ConfigurationError(
                f"tensor {name!r} in {str(self.path)!r} is stored as {dtype}; "
                "only F64, F32, F16 and BF16 weights can be run, quantized ones can't"
            )
        tensor: Floats = self._file.get_tensor(name)
        return tensor

    def _read_bfloat16(self, name: str) -> NDArray[np.float32]:
        # safetensors' numpy side has no bfloat16. A bfloat16 is the upper half of a float32.
        with self.path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            entry: dict[str, Any] = json.loads(file.read(header_size))[name]
            shape: list[int] = entry["shape"]
            file.seek(8 + header_size + int(entry["data_offsets"][0]))
            halves = np.frombuffer(file.read(2 * math.prod(shape)), dtype="<u2")
        return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)
