"""Check that tinygrad computes a model as the keys of its GGUF file say.

tinygrad 0.13 reads some of the keys under `<architecture>.` and ignores the rest. The format is
llama.cpp's, so a key, or its absence, means what it means to llama.cpp. A file with a key that
could change a number and isn't computed that way is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalution_core import ConfigurationError
from evalution_enginekit.gguf.file import GGUFFile

_SIZES = (
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
"""Keys that every file must have, as one number for all layers."""
_COMPUTED = frozenset(
    {
        *_SIZES,
        "feed_forward_length",
        "leading_dense_block_count",
        "nextn_predict_layers",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_count",
        "expert_shared_feed_forward_length",
        "expert_weights_norm",
        "expert_weights_scale",
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        "vocab_size",
        "tensor_data_layout",
        "pooling_type",
        "rope.dimension_sections",
        "attention.layer_norm_epsilon",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)
"""Keys that change nothing of a text's logits in models whose norms are of root mean squares."""
_CHECKED = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "expert_gating_func")
_KNOWN = _COMPUTED | _WITHOUT_EFFECT | set(_CHECKED)
_AS_IF_ABSENT: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "rope.scaling.attn_factor": (1,),
    "use_parallel_residual": (False,),
    # Groups of experts, of which some are left out before experts are chosen.
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
}
"""The values of further keys that change nothing."""
_ROUTING: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "qwen3moe": {"expert_weights_norm": (True,), "expert_weights_scale": (0, 1)},
    "olmoe": {"expert_weights_norm": (False,), "expert_weights_scale": (0, 1)},
}
"""Values that llama.cpp uses whatever the file says, while tinygrad uses the file's."""
_PARTLY_ROTATED = ("deepseek2", "glm4moe")
"""Architectures whose rotary embeddings cover only a part of each head."""
_SOFTMAX, _SIGMOID = 1, 2
_GLM_LITE_LAYERS, _GLM_LITE_VOCABULARY = (47, 48), 154880


def check_hyperparameters(file: GGUFFile) -> None:
    """Refuse a file that tinygrad would compute wrongly.

    Args:
        file: of an architecture that tinygrad has; with the tensors of all its parts.

    Raises:
        ConfigurationError: it lacks a size, or has a key that tinygrad doesn't compute.
    """
    _check_sizes(file)
    _check_rotation(file)
    _check_experts(file)
    for key, value in file.metadata.items():
        if key.startswith(f"{file.architecture}."):
            _check_value(file, key.removeprefix(f"{file.architecture}."), value)


def _check_value(file: GGUFFile, key: str, value: Any) -> None:
    allowed = {**_AS_IF_ABSENT, **_ROUTING.get(file.architecture, {})}
    if value in allowed[key] if key in allowed else key in _KNOWN:
        return
    found = f"says {file.architecture}.{key} = {_shorten(value)}"
    raise _wrong_result_error(file, f"{found}, which tinygrad doesn't compute as llama.cpp does")


def _check_sizes(file: GGUFFile) -> None:
    for key in sorted(_COMPUTED):
        value = file.hyperparameter(key)
        if value is None and key in _SIZES:
            raise ConfigurationError(
                f"{file.path.name} doesn't say {file.architecture}.{key}, without which no model "
                "can be built of it; convert it again"
            )
        if isinstance(value, list):
            raise _wrong_result_error(
                file,
                f"gives each layer its own {file.architecture}.{key}, where tinygrad has one for "
                "all",
            )
    if not file.hyperparameter("attention.kv_lora_rank"):
        keys, values = _find_key_size(file), file.hyperparameter("attention.value_length")
        if values not in (None, keys):
            raise _wrong_result_error(
                file, f"has keys of {keys} numbers and values of {values}, and tinygrad one size"
            )


def _check_rotation(file: GGUFFile) -> None:
    kind = file.hyperparameter("rope.scaling.type") or "linear"
    factors = (file.hyperparameter(key) for key in ("rope.scaling.factor", "rope.scale_linear"))
    factor = next((factor for factor in factors if factor), 1)
    if kind != "none" and (kind != "linear" or factor != 1):
        raise _wrong_result_error(
            file, f"scales its rotary embeddings ({kind}), which tinygrad leaves out"
        )
    head = _find_key_size(file)
    rotated = file.hyperparameter("rope.dimension_count") or head
    if rotated != head and file.architecture not in _PARTLY_ROTATED:
        raise _wrong_result_error(
            file,
            f"rotates {rotated} of the {head} numbers of a head, which tinygrad has for "
            f"{' and '.join(_PARTLY_ROTATED)} alone",
        )


def _check_experts(file: GGUFFile) -> None:
    if not file.hyperparameter("expert_count"):
        return
    if file.architecture == "llama":
        raise _wrong_result_error(
            file, "is a mixture of experts whose router's weights tinygrad doesn't normalise"
        )
    if file.hyperparameter("expert_weights_scale") == 0 and file.architecture not in _ROUTING:
        raise _wrong_result_error(
            file, "scales its experts by 0, which means 1, and tinygrad takes it for 0"
        )
    # tinygrad chooses between the two by whether there is a bias.
    biased = any(tensor.name.endswith("exp_probs_b.bias") for tensor in file.tensors)
    gating = _find_gating(file, biased=biased)
    if gating != (_SIGMOID if biased else _SOFTMAX):
        raise _wrong_result_error(
            file,
            f"chooses experts by the function {gating} {'with' if biased else 'without'} a bias, "
            f"where tinygrad has softmax ({_SOFTMAX}) without and sigmoid ({_SIGMOID}) with one",
        )


def _find_gating(file: GGUFFile, *, biased: bool) -> int:
    """Return llama.cpp's number of the function from a router's logits to probabilities."""
    said = file.hyperparameter("expert_gating_func")
    if said:
        return said
    tokens = file.metadata.get("tokenizer.ggml.tokens", ())
    is_glm_lite = (
        biased
        and file.hyperparameter("block_count") in _GLM_LITE_LAYERS
        and len(tokens) == _GLM_LITE_VOCABULARY
    )
    return _SIGMOID if file.architecture == "glm4moe" or is_glm_lite else _SOFTMAX


def _find_key_size(file: GGUFFile) -> int:
    """Return the size of a head's keys, as tinygrad reads it."""
    for key in ("attention.key_length_mla", "attention.key_length"):
        if (length := file.hyperparameter(key)) is not None:
            return length
    return file.hyperparameter("embedding_length") // file.hyperparameter("attention.head_count")


def _wrong_result_error(file: GGUFFile, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{file.path.name} {what}: its numbers would be wrong; engine LlamaCpp may run it"
    )


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
