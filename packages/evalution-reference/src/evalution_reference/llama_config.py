"""The configuration of a Llama-family model, read from `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from evalution_core.errors import ConfigurationError

# What Transformers assumes where config.json is silent; a family not listed here can't be run.
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of the rotary frequencies beyond the context that a model was first trained on.

    `linear` divides every frequency by `factor` (arXiv:2306.15595). `llama3` divides the long
    wavelengths by `factor`, leaves the short ones alone and blends in between (Llama 3.1); the
    other three fields are used by `llama3` alone.
    """

    rope_type: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama-family model, in the names of Transformers.

    `attention_bias` is about the query, key and value projections, `attention_output_bias` about
    the output projection. `qk_norm` is Qwen3's RMS norm of each query and key head.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    qk_norm: bool = False


class _ConfigFile:
    """One config.json with the defaults of its family; its errors name the file and the key."""

    def __init__(self, path: Path, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.family = raw.get("model_type")
        if self.family not in _FAMILY_DEFAULTS:
            raise self.error(
                f"has model_type {self.family!r}; the reference engine runs "
                + ", ".join(_FAMILY_DEFAULTS)
            )
        self._values = {**_FAMILY_DEFAULTS[cast(str, self.family)], **raw}

    def error(self, message: str) -> ConfigurationError:
        return ConfigurationError(f"{str(self.path)!r} {message}")

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"needs a positive whole number as {key!r}, has {value!r}")
        return value

    def number(self, values: Mapping[str, Any], key: str, default: float | None = None) -> float:
        value = values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.error(f"needs a positive number as {key!r}, has {value!r}")
        return float(value)

    def flag(self, key: str) -> bool:
        return bool(self.get(key))


def read_config(folder: Path) -> LlamaConfig:
    """Read `config.json` of a checkpoint, in the spelling of Transformers 4 or 5.

    Raises:
        ConfigurationError: the file is missing or broken, or asks for a computation that would
            not be the one done here: another family, quantized weights, a sliding window, another
            rope type or activation.
    """
    file = _ConfigFile(folder / "config.json", _read_json(folder / "config.json"))
    _refuse_other_computations(file)
    heads = file.count("num_attention_heads")
    kv_heads = file.count("num_key_value_heads", default=heads)
    hidden_size = file.count("hidden_size")
    head_dim = file.count("head_dim", default=hidden_size // heads)
    if heads % kv_heads or head_dim % 2:
        raise file.error(
            f"has {heads} attention heads, {kv_heads} key-value heads and head_dim {head_dim}; "
            "the first must be a multiple of the second, and head_dim even"
        )
    biased = file.family in ("llama", "qwen3") and file.flag("attention_bias")
    rope = _read_rope_parameters(file)
    return LlamaConfig(
        vocab_size=file.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=file.count("intermediate_size"),
        num_hidden_layers=file.count("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=file.number({"rms_norm_eps": file.get("rms_norm_eps")}, "rms_norm_eps", 1e-6),
        rope_theta=file.number(rope, "rope_theta", 10000.0),
        rope_scaling=_read_rope_scaling(file, rope),
        max_position_embeddings=file.count("max_position_embeddings"),
        tie_word_embeddings=file.flag("tie_word_embeddings"),
        attention_bias=biased or file.family == "qwen2",
        attention_output_bias=biased,
        qk_norm=file.family == "qwen3",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{str(path)!r} does not exist; a checkpoint is a folder with config.json "
            "and model.safetensors"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{str(path)!r} can't be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{str(path)!r} must hold a JSON object")
    return cast(dict[str, Any], content)


def _refuse_other_computations(file: _ConfigFile) -> None:
    if file.get("quantization_config"):
        raise file.error(
            "describes a quantized checkpoint (quantization_config); "
            "use the unquantized checkpoint, or an engine that runs quantized weights"
        )
    if (activation := file.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise file.error(f"has hidden_act {activation!r}; only 'silu' (SwiGLU) can be run")
    if file.flag("mlp_bias"):
        raise file.error("has mlp_bias; biases in the feed-forward layers can't be run")
    if (window := _find_sliding_window(file)) is not None:
        raise file.error(
            f"limits attention to a sliding window of {window} tokens, which can't be run; "
            f"a max_position_embeddings of at most {window} keeps the window out of effect"
        )


def _find_sliding_window(file: _ConfigFile) -> int | None:
    """Return the window where it would hide a position from some layer."""
    window = file.get("sliding_window")
    if window is None or file.family == "llama" or window >= file.count("max_position_embeddings"):
        return None
    if file.family == "mistral":
        return window
    if layer_types := file.get("layer_types"):
        return window if "sliding_attention" in layer_types else None
    first_windowed = file.get("max_window_layers")
    first_windowed = 28 if first_windowed is None else first_windowed
    in_effect = file.flag("use_sliding_window") and first_windowed < file.count("num_hidden_layers")
    return window if in_effect else None


def _read_rope_parameters(file: _ConfigFile) -> dict[str, Any]:
    """Merge Transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`)."""
    top_level = {
        key: file.get(key)
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        if file.get(key) is not None
    }
    nested: object = file.get("rope_scaling") or file.get("rope_parameters") or {}
    if not isinstance(nested, dict):
        raise file.error(f"needs an object as its rope parameters, has {nested!r}")
    return {**top_level, **cast(dict[str, Any], nested)}


def _read_rope_scaling(file: _ConfigFile, rope: dict[str, Any]) -> RopeScaling | None:
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in ("default", "linear", "llama3"):
        raise file.error(
            f"has rope type {rope_type!r}; the reference engine runs default, linear and llama3"
        )
    if file.number(rope, "partial_rotary_factor", 1.0) != 1.0:
        raise file.error("has a partial_rotary_factor; only rotation of whole heads can be run")
    if rope_type == "default":
        return None
    factor = file.number(rope, "factor")
    if rope_type == "linear":
        return RopeScaling("linear", factor)
    trained_length = file.number(
        rope, "original_max_position_embeddings", file.count("max_position_embeddings")
    )
    low, high = file.number(rope, "low_freq_factor"), file.number(rope, "high_freq_factor")
    if low >= high:
        raise file.error(f"needs low_freq_factor < high_freq_factor, has {low} and {high}")
    return RopeScaling("llama3", factor, low, high, int(trained_length))
