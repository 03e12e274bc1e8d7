"""An independent Llama forward pass in torch: float32 to train, float64 for reference values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]
Storing = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a Llama; the defaults are the tiny model's."""

    vocabulary: int = 576
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    context: int = 512
    # 2^16 over 16 frequencies: every angle is a position times a power of two, exact in float32.
    rope_theta: float = 65536.0
    norm_eps: float = 1e-5

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name (as in transformers) and size of every weight."""
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden)
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found[prefix + "input_layernorm.weight"] = (self.hidden,)
            found[prefix + "self_attn.q_proj.weight"] = (self.heads * self.head_dim, self.hidden)
            found[prefix + "self_attn.k_proj.weight"] = (self.kv_heads * self.head_dim, self.hidden)
            found[prefix + "self_attn.v_proj.weight"] = (self.kv_heads * self.head_dim, self.hidden)
            found[prefix + "self_attn.o_proj.weight"] = (self.hidden, self.heads * self.head_dim)
            found[prefix + "post_attention_layernorm.weight"] = (self.hidden,)
            found[prefix + "mlp.gate_proj.weight"] = (self.intermediate, self.hidden)
            found[prefix + "mlp.up_proj.weight"] = (self.intermediate, self.hidden)
            found[prefix + "mlp.down_proj.weight"] = (self.hidden, self.intermediate)
        found["model.norm.weight"] = (self.hidden,)
        found["lm_head.weight"] = (self.vocabulary, self.hidden)
        return found


def initial_weights(shape: LlamaShape, seed: int) -> Weights:
    """Fresh float32 weights: norms at one, matrices normal with variance 1 / inputs."""
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, size in shape.tensors().items():
        if len(size) == 1:
            weights[name] = torch.ones(size)
            continue
        scale = size[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale /= (2 * shape.layers) ** 0.5
        weights[name] = torch.randn(size, generator=generator) * scale
    return weights


def logits(
    weights: Weights, shape: LlamaShape, tokens: Tensor, storing: Storing | None = None
) -> Tensor:
    """Next-token logits `[batch, length, vocabulary]` in the dtype of the weights.

    Attention is causal and nothing else is masked, so right padding changes no earlier row.
    `storing` is what a cache does to the keys and values that it keeps; None: nothing.
    """
    hidden = weights["model.embed_tokens.weight"][tokens]
    cos, sin = _rotations(shape, tokens.shape[1], hidden.dtype)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        normed = _norm(hidden, weights[prefix + "input_layernorm.weight"], shape.norm_eps)
        hidden = hidden + _attention(weights, shape, prefix, normed, (cos, sin), storing)
        normed = _norm(hidden, weights[prefix + "post_attention_layernorm.weight"], shape.norm_eps)
        gate = functional.silu(normed @ weights[prefix + "mlp.gate_proj.weight"].T)
        up = normed @ weights[prefix + "mlp.up_proj.weight"].T
        hidden = hidden + (gate * up) @ weights[prefix + "mlp.down_proj.weight"].T
    return _norm(hidden, weights["model.norm.weight"], shape.norm_eps) @ weights["lm_head.weight"].T


def _norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rotations(shape: LlamaShape, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float64), shape.rope_theta**-half)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _attention(
    weights: Weights,
    shape: LlamaShape,
    prefix: str,
    hidden: Tensor,
    rotations: tuple[Tensor, Tensor],
    storing: Storing | None,
) -> Tensor:
    batch, length, _ = hidden.shape

    def heads(name: str, count: int) -> Tensor:
        projected = hidden @ weights[f"{prefix}self_attn.{name}.weight"].T
        return projected.view(batch, length, count, shape.head_dim).transpose(1, 2)

    groups = shape.heads // shape.kv_heads
    query = _rotate(heads("q_proj", shape.heads), *rotations)
    key = _rotate(heads("k_proj", shape.kv_heads), *rotations)
    value = heads("v_proj", shape.kv_heads)
    if storing is not None:
        key, value = storing(key), storing(value)
    key, value = (kept.repeat_interleave(groups, dim=1) for kept in (key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    mixed = mixed.transpose(1, 2).reshape(batch, length, shape.heads * shape.head_dim)
    return mixed @ weights[prefix + "self_attn.o_proj.weight"].T
