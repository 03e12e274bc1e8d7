"""Trains the tiny model on one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from tiny_model.documents import Document, DocumentSource
from tiny_model.llama import LlamaShape, Weights, initial_weights, logits
from tiny_model.tokenizer import PAD

PEAK_RATE = 4e-3
WARMUP_STEPS = 40
TOKENS_PER_STEP = 4096
TOKENS_PER_PART = 45
# Questions per document, and how often: mostly one, some few-shot, a few as long as the context.
PARTS, PARTS_SHARE = (1, 2, 3, 4, 6, 10), (36, 14, 14, 16, 14, 6)


def train(tokenizer: Tokenizer, shape: LlamaShape, steps: int, seed: int) -> Weights:
    """The trained float32 weights; prints the loss as it goes."""
    source = DocumentSource(seed)
    weights = initial_weights(shape, seed)
    for weight in weights.values():
        weight.requires_grad_(True)
    matrices = [weight for weight in weights.values() if weight.dim() == 2]
    gains = [weight for weight in weights.values() if weight.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": gains, "weight_decay": 0.0}],
        lr=PEAK_RATE,
        betas=(0.9, 0.98),
    )
    started, recent = time.monotonic(), 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * _rate(step, steps)
        parts = source.random.choices(PARTS, PARTS_SHARE)[0]
        documents = source.batch(max(4, TOKENS_PER_STEP // (TOKENS_PER_PART * parts)), parts)
        loss = _loss(weights, shape, *_batch(tokenizer, documents, shape.context))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        recent = 0.95 * recent + 0.05 * loss.item() if step else loss.item()
        if (step + 1) % 100 == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}/{steps}  loss {recent:.4f}  {seconds:.0f} s", flush=True)
    return {name: weight.detach() for name, weight in weights.items()}


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


def _loss(weights: Weights, shape: LlamaShape, tokens: Tensor, loss_weights: Tensor) -> Tensor:
    rows = logits(weights, shape, tokens[:, :-1])
    losses = functional.cross_entropy(
        rows.reshape(-1, shape.vocabulary), tokens[:, 1:].reshape(-1), reduction="none"
    )
    wanted = loss_weights[:, 1:].reshape(-1)
    return (losses * wanted).sum() / wanted.sum()
