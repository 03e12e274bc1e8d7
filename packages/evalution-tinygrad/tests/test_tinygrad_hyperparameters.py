"""Refusal of hyperparameters that tinygrad doesn't compute, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path
from evalution_enginekit.gguf.file import GGUFFile, GGUFTensor, read_gguf
from evalution_tinygrad.hyperparameters import check_hyperparameters

_TINY = read_gguf(builtin_path("builtin:tiny", "gguf"))
_BIAS = GGUFTensor("blk.0.exp_probs_b.bias", (8,), "F32", 0, 32)
_EXPERTS = {"expert_count": 8, "expert_used_count": 2}


def _file(architecture: str, says: dict[str, Any], *, biased: bool = False) -> GGUFFile:
    """The tiny model's header as another architecture's, with further or fewer keys."""
    own = {key.replace("llama.", f"{architecture}."): v for key, v in _TINY.metadata.items()}
    own["general.architecture"] = architecture
    own |= {f"{architecture}.{key}": value for key, value in says.items()}
    metadata = {key: value for key, value in own.items() if value is not None}
    return replace(_TINY, metadata=metadata, tensors=_TINY.tensors + (_BIAS,) * biased)


@pytest.mark.parametrize(
    ("architecture", "says"),
    [
        ("llama", {}),
        ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
        ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}),
        ("llama", {"rope.scaling.original_context_length": 64, "attention.causal": True}),
        ("qwen3", {"expert_count": 0}),
        ("qwen3moe", {**_EXPERTS, "expert_weights_norm": True, "expert_gating_func": 1}),
        ("olmoe", {**_EXPERTS, "expert_weights_scale": 1.0}),
        ("glm4moe", {"rope.dimension_count": 16, "expert_group_count": 1}),
        ("glm4moe", {"rope.dimension_sections": [4, 6, 6, 0]}),
    ],
)
def test_keys_that_tinygrad_computes_are_accepted(architecture: str, says: dict[str, Any]) -> None:
    check_hyperparameters(_file(architecture, says))


@pytest.mark.parametrize(
    ("architecture", "says"),
    [("glm4moe", {}), ("deepseek2", {"expert_gating_func": 2}), ("deepseek2", {"block_count": 47})],
)
def test_a_sigmoid_router_has_a_bias(architecture: str, says: dict[str, Any]) -> None:
    file = _file(architecture, {**_EXPERTS, **says}, biased=True)
    if "block_count" in says:
        # GLM 4.7 Flash, whose first files leave the function out.
        tokens = ["x"] * 154880
        file = replace(file, metadata={**file.metadata, "tokenizer.ggml.tokens": tokens})
    check_hyperparameters(file)


@pytest.mark.parametrize(
    ("architecture", "says", "message"),
    [
        # Without a type, a factor is linear scaling.
        ("llama", {"rope.scaling.factor": 4.0}, r"rotary embeddings \(linear\)"),
        ("llama", {"rope.scale_linear": 4.0}, r"rotary embeddings \(linear\)"),
        ("qwen2", {"rope.scaling.type": "yarn"}, r"rotary embeddings \(yarn\)"),
        ("llama", {"rope.scaling.attn_factor": 2.0}, "says llama.rope.scaling.attn_factor = 2.0"),
        ("llama", {"rope.dimension_count": 16}, "rotates 16 of the 32 numbers of a head"),
        ("llama", {"attention.causal": False}, "says llama.attention.causal = False"),
        ("llama", {"attention.value_length": 64}, "keys of 32 numbers and values of 64"),
        ("llama", {"attention.head_count_kv": [2, 1]}, "gives each layer its own .*head_count_kv"),
        ("llama", _EXPERTS, "router's weights tinygrad doesn't normalise"),
        ("qwen2", {"logit_scale": 0.5}, "says qwen2.logit_scale = 0.5, which"),
        ("qwen3", {"new": "x" * 90}, r"says qwen3.new = 'x{39}…, which"),
        ("qwen3moe", {**_EXPERTS, "expert_weights_scale": 2.5}, "expert_weights_scale = 2.5"),
        ("qwen3moe", {**_EXPERTS, "expert_weights_norm": False}, "expert_weights_norm = False"),
        ("olmoe", {**_EXPERTS, "expert_weights_norm": True}, "expert_weights_norm = True"),
        ("glm4moe", {"expert_group_count": 4}, "says glm4moe.expert_group_count = 4"),
        ("glm4moe", _EXPERTS, "by the function 2 without a bias, where tinygrad has softmax"),
        ("deepseek2", {**_EXPERTS, "expert_gating_func": 2}, "by the function 2 without a bias"),
        ("deepseek2", {**_EXPERTS, "expert_weights_scale": 0.0}, "by 0, which means 1"),
        ("deepseek2", {"attention.temperature_scale": 0.1}, "attention.temperature_scale = 0.1"),
    ],
)
def test_keys_that_tinygrad_ignores_are_refused(
    architecture: str, says: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{message}.*wrong; engine LlamaCpp"):
        check_hyperparameters(_file(architecture, says))


def test_a_bias_without_a_sigmoid_is_refused() -> None:
    file = _file("deepseek2", _EXPERTS, biased=True)
    with pytest.raises(ConfigurationError, match="by the function 1 with a bias"):
        check_hyperparameters(file)


@pytest.mark.parametrize("key", ["context_length", "block_count", "attention.head_count"])
def test_a_missing_size_is_named(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"doesn't say llama.{key}, .* convert it again"):
        check_hyperparameters(_file("llama", {key: None}))
