"""Greedy decoding and scoring with the torch forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tiny_model.llama import LlamaShape, Weights, logits


@dataclass(slots=True)
class Decoded:
    """A greedy continuation, EOS left out; `top2_gaps` has a value per step, EOS included."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    top2_gaps: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of given tokens; `is_greedy` where no token had a larger logit."""

    token_logprobs: list[float]
    is_greedy: bool


@torch.no_grad()
def decode_greedily(
    weights: Weights,
    shape: LlamaShape,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos: int,
) -> list[Decoded]:
    """A continuation per prompt, each until EOS, `max_new_tokens` or the end of the context."""
    outputs = [Decoded() for _ in prompts]
    running = list(range(len(prompts)))
    for _ in range(max_new_tokens):
        if not running:
            break
        rows = [[*prompts[i], *outputs[i].token_ids] for i in running]
        last = _last_logits(weights, shape, rows)
        top = last.log_softmax(-1).topk(2)
        still = []
        for index, values, ids in zip(running, top.values, top.indices, strict=True):
            output, token = outputs[index], int(ids[0])
            output.top2_gaps.append(float(values[0] - values[1]))
            if token == eos:
                output.finish_reason = "stop"
                continue
            output.token_ids.append(token)
            if len(prompts[index]) + len(output.token_ids) < shape.context:
                still.append(index)
        running = still
    return outputs


def _last_logits(
    weights: Weights, shape: LlamaShape, rows: Sequence[Sequence[int]]
) -> torch.Tensor:
    rows_logits = logits(weights, shape, _padded(rows))
    return rows_logits[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]


def _padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    # Attention is causal: whatever stands to the right of a row changes none of its values.
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


@torch.no_grad()
def score(
    weights: Weights, shape: LlamaShape, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[Scored]:
    """The log-probabilities of each continuation after its context, in the weights' dtype."""
    rows = [[*context, *continuation][:-1] for context, continuation in pairs]
    batch = logits(weights, shape, _padded(rows))
    found = []
    for row_logits, (context, continuation) in zip(batch, pairs, strict=True):
        wanted = torch.tensor(list(continuation))
        scored = row_logits[len(context) - 1 : len(context) - 1 + len(wanted)]
        chosen = scored.gather(1, wanted[:, None])[:, 0]
        logprobs = scored.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
        is_greedy = bool((scored.max(-1).values <= chosen).all())
        found.append(Scored([float(value) for value in logprobs], is_greedy))
    return found
