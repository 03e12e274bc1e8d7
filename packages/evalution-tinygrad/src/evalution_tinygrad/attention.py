"""Attention of tinygrad's blocks for tokens of many sequences side by side in one row.

Upstream's own has one start position for the whole batch, and its mask knows nothing but the order
of tokens. Here each token has a position and a set of cached tokens of its own. Weights, norms and
the rotation are upstream's (`tinygrad.llm.model`).
"""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tinygrad import Tensor
from tinygrad.llm.model import FFNBlock, MLATransformerBlock, TransformerBlock, apply_rope


@dataclass(frozen=True, slots=True)
class Step:
    """What a pass gives every layer.

    `rotation` is [tokens, rope_dim]; `visible` [tokens, upto] says which cached tokens each of the
    tokens looks at, itself among them. The pass writes its keys and values at `begin`, so that the
    cache holds `upto` tokens. `begin` and `upto` are numbers that tinygrad binds at each call.
    """

    rotation: Tensor
    visible: Tensor
    begin: Any
    upto: Any


Attention = Callable[[Any, Tensor, Tensor, Step], Tensor]
"""Of a block, its input [1, tokens, dim], its cache and the step: its output, like its input."""


def attention_of(block: FFNBlock) -> Attention | None:
    """The attention of a block; None for a layer whose state can't be shared or masked."""
    if isinstance(block, MLATransformerBlock):
        return _latent
    return _grouped if isinstance(block, TransformerBlock) else None


def cache_shape(block: Any, tokens: int) -> tuple[int, ...]:
    """The shape of a block's cache; the second dimension from behind runs over its tokens."""
    config = block.config
    if isinstance(block, MLATransformerBlock):
        return (1, 1, tokens, config.kv_lora_rank + config.rope_dim)
    return (2, config.n_kv_heads, tokens, config.head_dim)


def _stored(cache: Tensor, new: Tensor, step: Step, count: int) -> Tensor:
    """The cache's first `upto` tokens, once `new` has been written to it."""
    place = cache[:, :, step.begin : step.begin + count]
    return Tensor(cache.uop.after(place.uop.store(new.uop)))[:, :, : step.upto]


def _grouped(block: Any, x: Tensor, cache: Tensor, step: Step) -> Tensor:
    config, count = block.config, cast(int, x.shape[1])
    # Each on its own: a kernel that projects, turns and stores computes the projection twice.
    q, k, v = (linear(x).contiguous() for linear in (block.attn_q, block.attn_k, block.attn_v))
    whole = config.qk_norm and config.qk_norm != config.head_dim
    if whole:
        q, k = block.attn_q_norm(q), block.attn_k_norm(k)
    q = q.reshape(1, count, config.n_heads, config.head_dim).transpose(1, 2)
    k = k.reshape(1, count, config.n_kv_heads, config.head_dim).transpose(1, 2)
    v = v.reshape(1, count, config.n_kv_heads, config.head_dim).transpose(1, 2)
    if config.qk_norm and not whole:
        q, k = block.attn_q_norm(q), block.attn_k_norm(k)
    q, k = _turned(q, config.rope_dim, step).contiguous(), _turned(k, config.rope_dim, step)
    held = _stored(cache, k.cat(v, dim=0), step, count)
    found = q.scaled_dot_product_attention(
        held[0:1], held[1:2], attn_mask=step.visible, enable_gqa=True
    )
    return block.attn_output(found.transpose(1, 2).reshape(1, count, -1))


def _latent(block: Any, x: Tensor, cache: Tensor, step: Step) -> Tensor:
    config, count = block.config, cast(int, x.shape[1])
    plain = config.head_dim - config.rope_dim
    q = x if config.q_lora_rank == 0 else block.attn_q_a_norm(block.attn_q_a(x))
    q = (block.attn_q if config.q_lora_rank == 0 else block.attn_q_b)(q)
    q = q.reshape(1, count, config.n_heads, config.head_dim).transpose(1, 2)
    key_weight = block.attn_k_b["weight"].transpose(-1, -2)
    q = (q[..., :plain] @ key_weight).cat(apply_rope(q[..., plain:], step.rotation), dim=-1)
    compressed = block.attn_kv_a_mqa(x)
    latent = block.attn_kv_a_norm(compressed[..., : config.kv_lora_rank])
    turned = compressed[..., config.kv_lora_rank :].reshape(1, 1, count, config.rope_dim)
    k = latent.reshape(1, 1, count, -1).cat(apply_rope(turned, step.rotation), dim=-1)
    held = _stored(cache, k, step, count)
    scores = q @ held.transpose(-1, -2) * config.head_dim**-0.5
    weights = step.visible.where(scores, -float("inf")).softmax(-1)
    found = weights @ held[..., : config.kv_lora_rank]
    found = (found @ block.attn_v_b["weight"].transpose(-1, -2)).transpose(1, 2)
    return block.attn_output(found.reshape(1, count, -1))


def _turned(x: Tensor, rope_dim: int, step: Step) -> Tensor:
    turned = apply_rope(x[..., :rope_dim], step.rotation)
    return turned if rope_dim == x.shape[-1] else turned.cat(x[..., rope_dim:], dim=-1)
