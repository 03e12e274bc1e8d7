"""The NumPy model against a float64 torch forward that shares no code and no formulation with it.

Complex-number rope, repeated key-value heads, one weight matrix per projection, torch's own
attention and log-softmax: an error would have to be made twice, in two different ways.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalution_enginekit.sampling import token_logprobs
from evalution_reference.llama import Llama
from evalution_reference.load import load_checkpoint

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional as F  # noqa: E402 - after the skip

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama, all heads": {"num_key_value_heads": 4},
    "llama, grouped, biased": {"num_key_value_heads": 2, "attention_bias": True},
    "llama, tied, one kv head": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama3 rope": {"rope_theta": 500.0, "rope_scaling": LLAMA3, "head_dim": 16},
    "linear rope": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.5}},
    "mistral": {"model_type": "mistral", "sliding_window": 512},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
}


class TorchLlama:
    """A forward pass over one whole sequence in float64, straight from a checkpoint's files."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: tensor.double() for name, tensor in stored.items()}
        default_head_dim = self.config["hidden_size"] // self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or default_head_dim

    def logprobs(self, token_ids: list[int]) -> Any:
        """Return the log-softmax after every position, [T, vocab]."""
        states = self.weights["model.embed_tokens.weight"][torch.tensor(token_ids)]
        turns = self.turns(len(token_ids))
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            states = states + self.attention(
                f"{prefix}.self_attn", self.norm(f"{prefix}.input_layernorm", states), turns
            )
            normed = self.norm(f"{prefix}.post_attention_layernorm", states)
            gate = self.linear(f"{prefix}.mlp.gate_proj", normed)
            up = self.linear(f"{prefix}.mlp.up_proj", normed)
            states = states + self.linear(f"{prefix}.mlp.down_proj", F.silu(gate) * up)
        states = self.norm("model.norm", states)
        tied = self.config.get("tie_word_embeddings", False)
        head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return torch.log_softmax(F.linear(states, head), dim=-1)

    def linear(self, name: str, states: Any) -> Any:
        return F.linear(states, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, states: Any) -> Any:
        weight = self.weights[f"{name}.weight"]
        return F.rms_norm(states, weight.shape, weight, self.config["rms_norm_eps"])

    def turns(self, length: int) -> Any:
        """Return e^(i * angle) by position and plane, [T, head_dim / 2]."""
        rope = dict(self.config.get("rope_scaling") or self.config.get("rope_parameters") or {})
        theta = rope.get("rope_theta", self.config.get("rope_theta", 10000.0))
        angles = [theta ** (-2 * plane / self.head_dim) for plane in range(self.head_dim // 2)]
        if rope.get("rope_type") == "linear":
            angles = [angle / rope["factor"] for angle in angles]
        if rope.get("rope_type") == "llama3":
            angles = [llama3_angle(angle, rope) for angle in angles]
        grid = torch.outer(
            torch.arange(length, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64)
        )
        return torch.polar(torch.ones_like(grid), grid)

    def attention(self, name: str, states: Any, turns: Any) -> Any:
        query, key, value = (
            self.linear(f"{name}.{kind}_proj", states).unflatten(-1, (-1, self.head_dim))
            for kind in "qkv"
        )
        if f"{name}.q_norm.weight" in self.weights:
            query, key = self.norm(f"{name}.q_norm", query), self.norm(f"{name}.k_norm", key)
        query, key = rotate(query, turns), rotate(key, turns)
        copies = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(copies, dim=1) for x in (key, value))
        seen = torch.ones(len(states), len(states), dtype=torch.bool).tril()
        mixed = F.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in (query, key, value)), attn_mask=seen
        )
        return self.linear(f"{name}.o_proj", mixed.transpose(0, 1).flatten(-2))


def rotate(states: Any, turns: Any) -> Any:
    real, imaginary = states.chunk(2, dim=-1)
    turned = torch.complex(real, imaginary) * turns[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def llama3_angle(angle: float, rope: dict[str, Any]) -> float:
    """Llama 3.1's scaling of one frequency, as Meta's `apply_scaling` has it."""
    wavelength = 2 * math.pi / angle
    trained = rope["original_max_position_embeddings"]
    if wavelength < trained / rope["high_freq_factor"]:
        return angle
    if wavelength > trained / rope["low_freq_factor"]:
        return angle / rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (trained / wavelength - low) / (high - low)
    return (1 - smooth) * angle / rope["factor"] + smooth * angle


def numpy_logprobs(folder: Path, token_ids: list[int], dtype: str = "float64") -> np.ndarray:
    """Return the log-probability of each token but the first, given those before it."""
    model = Llama(*load_checkpoint(folder), dtype=dtype)
    ids = np.array(token_ids)
    cache = model.new_cache()
    # In two runs, so that the cache is part of what is compared.
    hidden = [model.hidden_states(part, cache) for part in np.split(ids[:-1], [len(ids) // 3])]
    logits = model.logits(np.concatenate(hidden))
    return np.array(token_logprobs(logits, ids[1:])[0])


def chosen(logprobs: Any, token_ids: list[int]) -> np.ndarray:
    rows = logprobs[:-1].gather(1, torch.tensor(token_ids)[1:, None])[:, 0]
    return rows.double().numpy()


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    assert len(one) == len(other)
    assert np.isfinite(one).all()
    return float(np.abs(one - other).max())


def random_ids(vocab_size: int, count: int) -> list[int]:
    return np.random.default_rng(3).integers(0, vocab_size, count).tolist()


@pytest.fixture(scope="module")
def tiny_folder() -> Path:
    folder = Path(str(files("evalution_reference") / "data" / "tiny"))
    if not (folder / "config.json").exists():
        pytest.skip("the tiny model is not in evalution_reference/data/tiny")
    return folder


@pytest.mark.parametrize("entries", CHECKPOINTS.values(), ids=list(CHECKPOINTS))
def test_float64_agrees_with_torch_to_1e_10(
    write_checkpoint: Callable[..., Path],
    entries: dict[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    folder, token_ids = write_checkpoint(**entries), random_ids(97, 300)
    expected = chosen(TorchLlama(folder).logprobs(token_ids), token_ids)
    difference = largest_difference(numpy_logprobs(folder, token_ids), expected)
    record_property("max_abs_logprob_difference", difference)
    assert difference < 1e-10
    assert expected.std() > 0.5, "the random model must not be near uniform"


def test_the_tiny_model_agrees_with_torch_to_1e_10(
    tiny_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    model = TorchLlama(tiny_folder)
    length = min(300, model.config["max_position_embeddings"])
    token_ids = random_ids(model.config["vocab_size"], length)
    expected = chosen(model.logprobs(token_ids), token_ids)
    for dtype, bound in (("float64", 1e-10), ("float32", 1e-4)):
        difference = largest_difference(numpy_logprobs(tiny_folder, token_ids, dtype), expected)
        record_property(f"max_abs_logprob_difference_{dtype}", difference)
        assert difference < bound


def stock_logprobs(folder: Path, token_ids: list[int]) -> np.ndarray:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0]
    return chosen(torch.log_softmax(logits, dim=-1), token_ids)


@pytest.mark.parametrize("entries", CHECKPOINTS.values(), ids=list(CHECKPOINTS))
def test_stock_transformers_in_float64_is_close(
    write_checkpoint: Callable[..., Path],
    entries: dict[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    folder, token_ids = write_checkpoint(**entries), random_ids(97, 300)
    stock = stock_logprobs(folder, token_ids)
    difference = largest_difference(numpy_logprobs(folder, token_ids), stock)
    record_property("max_abs_logprob_difference", difference)
    assert difference < 1e-4


def test_stock_transformers_in_float64_is_close_on_the_tiny_model(
    tiny_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    token_ids = random_ids(config["vocab_size"], min(300, config["max_position_embeddings"]))
    stock = stock_logprobs(tiny_folder, token_ids)
    difference = largest_difference(numpy_logprobs(tiny_folder, token_ids), stock)
    record_property("max_abs_logprob_difference", difference)
    assert difference < 1e-4
