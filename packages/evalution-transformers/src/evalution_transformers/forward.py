"""A causal model's forward pass with logits at chosen rows alone, and the scores read off them."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

_ROWS_AT_ONCE = 256
"""Rows of logits that exist at a time: bounds memory by 256 x vocabulary."""


class CausalModel(Protocol):
    """The part of `PreTrainedModel` that scoring and generation use."""

    config: Any
    generation_config: Any

    @property
    def base_model(self) -> torch.nn.Module: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def __call__(self, *, input_ids: Tensor, **inputs: Any) -> Any: ...
    def forward(self, *args: Any, **inputs: Any) -> Any: ...
    def generate(self, **inputs: Any) -> Tensor: ...
    def get_output_embeddings(self) -> torch.nn.Module | None: ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one forward pass is given; all tensors are on the model's device.

    `positions` is None where each row is a sequence from its first token. `mask` is [B, tokens]
    with 0 for padding, a 4D mask that says which token sees which, or None for plain causal
    attention. `cache` is extended by the pass.
    """

    token_ids: Tensor
    positions: Tensor | None = None
    mask: Tensor | None = None
    cache: Any = None

    def keywords(self) -> dict[str, Any]:
        given = {
            "input_ids": self.token_ids,
            "position_ids": self.positions,
            "attention_mask": self.mask,
            "past_key_values": self.cache,
            "use_cache": self.cache is not None,
        }
        return {name: value for name, value in given.items() if value is not None}


class Forward:
    """Logits of chosen rows, with as little of the vocabulary projection as the model allows.

    `splits`: the model's output layer, applied to the last hidden states, gives its logits; then it
    is applied to the wanted rows alone, a chunk at a time. Otherwise the model's own forward pass
    is asked for the rows, which keeps whatever it does to logits (scaling, soft-capping).
    """

    def __init__(self, model: CausalModel, *, splits: bool = True):
        self.model = model
        self.splits = splits and model.get_output_embeddings() is not None
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        return self.model.device

    def run(self, inputs: Inputs) -> None:
        """Extend the cache of `inputs`; no logits."""
        with torch.no_grad():
            self.model.base_model(**inputs.keywords())

    def logits(self, inputs: Inputs, rows: Tensor, columns: Tensor) -> Iterator[Tensor]:
        """Logits [n, vocab] of token `columns[i]` of sequence `rows[i]`, in chunks, in order."""
        if not self.splits:
            yield from self._whole(inputs, rows, columns).split(_ROWS_AT_ONCE)
            return
        hidden = self.model.base_model(**inputs.keywords()).last_hidden_state
        kept = hidden[rows.to(hidden.device), columns.to(hidden.device)]
        del hidden
        head = cast(torch.nn.Module, self.model.get_output_embeddings())
        for chunk in kept.split(_ROWS_AT_ONCE):
            yield head(chunk)

    def _whole(self, inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
        if not self._takes_rows:
            logits = self.model(**inputs.keywords()).logits
            return logits[rows.to(logits.device), columns.to(logits.device)]
        wanted, at = torch.unique(columns, return_inverse=True)
        logits = self.model(**inputs.keywords(), logits_to_keep=wanted).logits
        return logits[rows.to(logits.device), at.to(logits.device)]


@dataclass(frozen=True, slots=True)
class RowScores:
    """For each row, in order: its target's log-probability and whether no logit is larger."""

    logprobs: list[float]
    greedy: list[bool]


@torch.no_grad()
def score_rows(
    forward: Forward, inputs: Inputs, rows: Tensor, columns: Tensor, targets: Tensor
) -> RowScores:
    """Log-probabilities of `targets[i]` at the row of token `columns[i]` of sequence `rows[i]`.

    Several targets may read one row: it is projected once. The arithmetic is float32 at least.
    """
    places, at = torch.unique(torch.stack((rows, columns)), dim=1, return_inverse=True, sorted=True)
    order = torch.argsort(at, stable=True)
    logprobs: list[Tensor] = []
    greedy: list[Tensor] = []
    begin = 0
    sorted_at, sorted_targets = at[order], targets[order]
    for chunk in forward.logits(inputs, places[0], places[1]):
        end = begin + len(chunk)
        inside = (sorted_at >= begin) & (sorted_at < end)
        chosen, is_top = _chosen(chunk, sorted_at[inside] - begin, sorted_targets[inside])
        logprobs.append(chosen)
        greedy.append(is_top)
        begin = end
    back = torch.argsort(order).cpu()
    return RowScores(
        torch.cat(logprobs).double().cpu()[back].tolist(), torch.cat(greedy).cpu()[back].tolist()
    )


def _chosen(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and greediness of each target; `logits` [n, vocab] may be of any dtype."""
    values = logits if logits.dtype == torch.float64 else logits.float()
    rows, targets = rows.to(values.device), targets.to(values.device)
    chosen = values[rows, targets]
    top = values.amax(dim=-1)
    # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
    rest = torch.logsumexp(values - top[:, None], dim=-1)
    return (chosen - top[rows]) - rest[rows], chosen >= top[rows]
