"""Trains log-probabilities to stay where they are when keys and values are rounded.

A small model that is trained on answers alone decides by hair's breadths: storing its keys and
values in 16 bits moves single log-probabilities by hundredths, and no test could separate that
from a fault.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from tiny_model.llama import LlamaShape, Weights, logits

# A hundred times what f16 rounds by, so that the rare tokens that f16 moves far are seen often.
RELATIVE_NOISE = 0.02
SPLICES, SPLICE_LENGTH, LONGEST_PIECE = 8, 256, 30
STRAY_SHARE = 0.1


class Disturbance:
    """Relative normal noise on every key and value, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, kept: Tensor) -> Tensor:
        noise = torch.randn(kept.shape, generator=self._generator, dtype=kept.dtype)
        return kept * (1 + RELATIVE_NOISE * noise)


def spliced(tokens: Tensor, vocabulary: int, random: Random) -> Tensor:
    """Rows `[SPLICES, SPLICE_LENGTH]` of short pieces of `tokens`, with stray tokens between.

    Text that no training document has is where a model is least sure of itself.
    """
    flat = tokens.tolist()
    rows: list[list[int]] = []
    for _ in range(SPLICES):
        row: list[int] = []
        while len(row) < SPLICE_LENGTH:
            if random.random() < STRAY_SHARE:
                row.append(random.randrange(vocabulary))
            start = random.randrange(len(flat))
            row += flat[start : start + random.randint(1, LONGEST_PIECE)]
        rows.append(row[:SPLICE_LENGTH])
    return torch.tensor(rows)


def displacement(weights: Weights, shape: LlamaShape, tokens: Tensor, disturbed: Tensor) -> Tensor:
    """Mean squared change `[batch, length]` of the log-probabilities of all tokens.

    `disturbed` are the logits of `tokens` under a `Disturbance`.
    """
    steady = logits(weights, shape, tokens).log_softmax(-1)
    return (steady - disturbed.log_softmax(-1)).pow(2).mean(-1)
