"""Trains the tiny model on one thread: first on answers, then on steadiness too."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from tiny_model.documents import Document, DocumentSource
from tiny_model.llama import LlamaShape, Weights, initial_weights, logits
from tiny_model.steadiness import Disturbance, displacement, spliced
from tiny_model.tokenizer import PAD

PEAK_RATE = 4e-3
WARMUP_STEPS = 40
WEIGHT_DECAY = 0.3
LABEL_SMOOTHING = 0.02
TOKENS_PER_STEP = 4096
TOKENS_PER_PART = 45
# Questions per document, and how often: mostly one, some few-shot, a few as long as the context.
PARTS, PARTS_SHARE = (1, 2, 3, 4, 6, 10), (36, 14, 14, 16, 14, 6)
# The last part of the training asks for steadiness too, at this weight beside the loss.
STEADY_FROM = 0.55
STEADY_WEIGHT = 1000.0


class Trainer:
    """Weights in training, with the sources of text and noise."""

    def __init__(self, tokenizer: Tokenizer, shape: LlamaShape, seed: int) -> None:
        self.tokenizer, self.shape = tokenizer, shape
        self.weights = initial_weights(shape, seed)
        for weight in self.weights.values():
            weight.requires_grad_(True)
        self._source = DocumentSource(seed)
        self._splices = Random(seed)
        self._disturbance = Disturbance(seed)
        self._optimizer = _optimizer(self.weights)

    def step(self, rate: float, steady: bool) -> float:
        """One update at a share of the peak rate; returns the loss on the documents."""
        for group in self._optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate
        parts = self._source.random.choices(PARTS, PARTS_SHARE)[0]
        count = max(4, TOKENS_PER_STEP // (TOKENS_PER_PART * parts))
        documents = self._source.batch(count, parts)
        tokens, weights = _batch(self.tokenizer, documents, self.shape.context)
        storing = self._disturbance if steady else None
        rows = logits(self.weights, self.shape, tokens[:, :-1], storing)
        loss = total = _loss(rows, tokens[:, 1:], weights[:, 1:])
        if steady:
            total = loss + STEADY_WEIGHT * self._displacement(tokens, rows)
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), 1.0)
        self._optimizer.step()
        return loss.item()

    def _displacement(self, tokens: Tensor, rows: Tensor) -> Tensor:
        real = tokens != self.tokenizer.token_to_id(PAD)
        moved = displacement(self.weights, self.shape, tokens[:, :-1], rows)
        foreign = spliced(tokens[real], self.shape.vocabulary, self._splices)
        disturbed = logits(self.weights, self.shape, foreign, self._disturbance)
        moved_foreign = displacement(self.weights, self.shape, foreign, disturbed)
        return moved[real[:, 1:]].mean() + moved_foreign.mean()


def train(tokenizer: Tokenizer, shape: LlamaShape, steps: int, seed: int) -> Weights:
    """The trained float32 weights; prints the loss as it goes."""
    trainer = Trainer(tokenizer, shape, seed)
    started, recent = time.monotonic(), 0.0
    for step in range(steps):
        loss = trainer.step(_rate(step, steps), step >= STEADY_FROM * steps)
        recent = 0.95 * recent + 0.05 * loss if step else loss
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}/{steps}  loss {recent:.4f}  {seconds:.0f} s", flush=True)
    return {name: weight.detach() for name, weight in trainer.weights.items()}


def _optimizer(weights: Weights) -> torch.optim.Optimizer:
    matrices = [weight for weight in weights.values() if weight.dim() == 2]
    gains = [weight for weight in weights.values() if weight.dim() == 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": gains, "weight_decay": 0.0},
        ],
        lr=PEAK_RATE,
        betas=(0.9, 0.98),
    )


def _rate(step: int, steps: int) -> float:
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))


def _batch(
    tokenizer: Tokenizer, documents: Sequence[Document], context: int
) -> tuple[Tensor, Tensor]:
    encodings = tokenizer.encode_batch([d.text for d in documents], add_special_tokens=False)
    width = min(context, max(len(encoding.ids) for encoding in encodings))
    tokens = torch.full((len(documents), width), tokenizer.token_to_id(PAD))
    weights = torch.zeros(len(documents), width)
    for row, (document, encoding) in enumerate(zip(documents, encodings, strict=True)):
        ids = encoding.ids[:width]
        tokens[row, : len(ids)] = torch.tensor(ids)
        ends = [end for _, end in encoding.offsets[:width]]
        weights[row, : len(ids)] = torch.tensor([document.weights[end - 1] for end in ends])
    return tokens, weights


def _loss(rows: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    losses = functional.cross_entropy(
        rows.flatten(0, 1), wanted.flatten(), reduction="none", label_smoothing=LABEL_SMOOTHING
    )
    return (losses * weights.flatten()).sum() / weights.sum()
