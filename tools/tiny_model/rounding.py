"""Cost of 16-bit cached keys and values to the tiny model, in float64 arithmetic otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiny_model.llama import LlamaShape, Weights, logits

# What an engine with an f16 cache may differ by on the reference cases, in nats per token.
F16_LIMIT = 3e-3


@dataclass(frozen=True, slots=True)
class RoundingCost:
    """Distances that log-probabilities move, in nats."""

    tokens: int
    largest: float
    mean: float


@torch.no_grad()
def f16_cost(weights: Weights, shape: LlamaShape, texts: Sequence[Sequence[int]]) -> RoundingCost:
    """Over all tokens of the texts but each one's first."""
    precise = {name: weight.to(torch.float64) for name, weight in weights.items()}
    moved = torch.cat([_moved(precise, shape, torch.tensor([ids])) for ids in texts])
    return RoundingCost(len(moved), float(moved.max()), float(moved.mean()))


def _moved(weights: Weights, shape: LlamaShape, tokens: Tensor) -> Tensor:
    fed, wanted = tokens[:, :-1], tokens[0, 1:, None]
    exact, stored = (
        logits(weights, shape, fed, storing).log_softmax(-1)[0].gather(1, wanted)
        for storing in (None, _stored)
    )
    return (exact - stored).abs()[:, 0]


def _stored(kept: Tensor) -> Tensor:
    return kept.half().to(kept.dtype)
