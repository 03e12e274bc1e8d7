"""A few tokens that tell which forms of a model's forward pass give its own logits."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig

from evalution_transformers.fixed_batches import plain_settings
from evalution_transformers.forward import CausalModel, Forward, Inputs
from evalution_transformers.tree_mask import MASKED_ATTENTION, as_attention_mask, tree_mask

_TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""By how much a row of logits may differ in the mean, as a share of the row's own spread."""
_LOUD = 1e4
"""Logits of this size show what is done to them: a cap of 30 leaves small ones nearly alone."""
_ULPS = 1
"""The same sums in the same order: equal up to a step of the dtype."""

_REFUSALS = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""How a model that doesn't take a form of input says so, in its own way."""


class Probe:
    """Two short sequences with a common beginning, and their logits by the model's plain pass."""

    def __init__(self, model: CausalModel, vocab_size: int):
        ids = [(7919 * at + 13) % vocab_size for at in range(13)]
        self._model = model
        self._head, self._left, self._right = ids[:6], ids[6:10], ids[10:]
        with torch.no_grad():
            self._with_left = self._plain(self._head + self._left)
            self._with_right = self._plain(self._head + self._right)

    def is_causal(self) -> bool:
        """Whether the logits of the common beginning don't depend on what follows it."""
        return self._alike(self._with_left[:6], self._with_right[:6])

    def splits(self) -> bool:
        """Whether logits are the output layer's on the last hidden states, and nothing is added.

        The layer's input is made large, so that a cap or a scale of the logits can't hide.
        """
        token_ids = self._head + self._left
        factor = _LOUD / max(float(self._with_left.abs().max()), 1e-3)
        try:
            with torch.no_grad(), _louder(self._model.get_output_embeddings(), factor):
                own = self._plain(token_ids).double()
                parts = self._logits(Forward(self._model, splits=True), token_ids).double()
        except _REFUSALS:
            return False
        allowed = _ULPS * torch.finfo(self._model.dtype).eps * float(own.abs().max())
        return bool((own - parts).abs().max() <= allowed)

    def packs(self, *, splits: bool, attention: str) -> bool:
        """Whether sequences behind one cached beginning may stand side by side in one row."""
        expected = torch.cat((self._with_left, self._with_right[6:]))
        return self._agrees(expected, lambda: self._packed_logits(splits, attention))

    def pads(self) -> bool:
        """Whether `generate` gives a shorter prompt what it gives it alone."""
        longer, shorter = self._head + self._left, self._right
        gap = len(longer) - len(shorter)
        token_ids = torch.tensor([longer, [0] * gap + shorter], device=self._model.device)
        mask = torch.ones_like(token_ids)
        mask[1, :gap] = 0
        settings = GenerationConfig(
            max_new_tokens=2,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        try:
            with torch.no_grad(), plain_settings(self._model):
                found: Any = self._model.generate(
                    input_ids=token_ids, attention_mask=mask, generation_config=settings
                )
                first: list[int] = found.sequences[:, len(longer)].tolist()
                alone = [
                    self._plain([*ids, first[at]])[-2:] for at, ids in enumerate((longer, shorter))
                ]
        except _REFUSALS:
            return False
        together = torch.stack(tuple(found.logits), dim=1)
        return self._alike(torch.cat(alone), together.flatten(0, 1))

    def _agrees(self, expected: Tensor, found: Callable[[], Tensor]) -> bool:
        try:
            with torch.no_grad():
                return self._alike(expected, found())
        except _REFUSALS:
            return False

    def _alike(self, expected: Tensor, found: Tensor) -> bool:
        """Whether each row of `found` is the same row, up to what another order of sums does."""
        expected, found = expected.double().cpu(), found.double().cpu()
        spread = expected.std(dim=-1).clamp(min=1e-6)
        apart = (found - expected).square().mean(dim=-1).sqrt()
        return bool(torch.isfinite(found).all()) and bool(
            (apart <= _TOLERANCES.get(self._model.dtype, 1e-1) * spread).all()
        )

    def _packed_logits(self, splits: bool, attention: str) -> Tensor:
        """Half of the beginning from a cache, and the rest of it with both ends in one pass."""
        forward = Forward(self._model, splits=splits)
        cache = DynamicCache()
        head = self._logits(forward, self._head[:3], cache=cache)
        token_ids = self._head[3:] + self._left + self._right
        positions = [3, 4, 5, 6, 7, 8, 9, 6, 7, 8]
        owners = [0] * 3 + [1] * 4 + [2] * 3
        seen = tree_mask(
            owners, [[True, False, False], [True, True, False], [True, False, True]], 3
        )
        seen = seen.to(self._model.device)
        mask = as_attention_mask(seen, self._model.dtype, additive=MASKED_ATTENTION[attention])
        rest = self._logits(forward, token_ids, positions, mask, cache)
        return torch.cat((head, rest))

    def _plain(self, token_ids: list[int]) -> Tensor:
        ids = torch.tensor([token_ids], device=self._model.device)
        return self._model(input_ids=ids, use_cache=False).logits[0]

    def _logits(
        self,
        forward: Forward,
        token_ids: list[int],
        positions: list[int] | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        device = self._model.device
        columns = torch.arange(len(token_ids), device=device)
        placed = None if positions is None else torch.tensor([positions], device=device)
        inputs = Inputs(torch.tensor([token_ids], device=device), placed, mask, cache)
        return torch.cat(list(forward.logits(inputs, torch.zeros_like(columns), columns)))


@contextmanager
def _louder(layer: torch.nn.Module | None, factor: float) -> Generator[None]:
    """The layer with its input multiplied."""
    if layer is None:
        raise NotImplementedError

    def multiply(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (cast(Tensor, inputs[0]) * factor, *inputs[1:])

    hook = layer.register_forward_pre_hook(multiply)
    try:
        yield
    finally:
        hook.remove()
