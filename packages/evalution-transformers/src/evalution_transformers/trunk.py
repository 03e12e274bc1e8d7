"""The cached beginning that sequences share: extended when it grows, rewound when it doesn't."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from evalution_enginekit.planning import shared_prefix
from evalution_transformers.forward import Forward, Inputs
from evalution_transformers.kv_cache import new_cache


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that one forward pass adds behind `begin` cached ones."""

    begin: int
    inputs: Inputs


class Trunk:
    """Keys and values of one sequence of tokens, in one cache that is rewound and extended."""

    def __init__(self, forward: Forward):
        self._forward = forward
        self._token_ids: list[int] = []
        self._cache = new_cache()

    def __len__(self) -> int:
        return len(self._token_ids)

    def shared_with(self, token_ids: Sequence[int]) -> int:
        """How many tokens at the beginning of `token_ids` are cached."""
        return shared_prefix(self._token_ids, token_ids)

    def clear(self) -> None:
        """Forget everything; also what to do after a forward pass that failed half-way."""
        self._token_ids = []
        self._cache = new_cache()

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        surplus = len(self._token_ids) - length
        if surplus <= 0:
            return
        if length:
            self._cache.crop(-surplus)
            del self._token_ids[length:]
        else:
            self.clear()

    def runs(self, token_ids: Sequence[int], begin: int, at_once: int) -> Iterator[Run]:
        """Rewind to `begin` and add the rest of `token_ids`, in passes that the caller runs.

        The passes are of the same size, at most `at_once` tokens each.
        """
        self.rewind(begin)
        count = -(-(len(token_ids) - begin) // at_once)
        ends = [begin + (len(token_ids) - begin) * at // max(1, count) for at in range(count + 1)]
        for low, high in pairwise(ends):
            piece = list(token_ids[low:high])
            yield Run(low, self._inputs(piece, range(low, high), None))
            self._token_ids += piece

    def branch(
        self,
        token_ids: list[int],
        positions: Sequence[int],
        mask: Tensor | None,
        *,
        keep: bool = False,
    ) -> Inputs:
        """A pass over tokens behind the trunk; call `prune` when it has run.

        With `keep`, their keys and values can be read off the inputs' cache until then.
        """
        if self._token_ids or keep:
            return self._inputs(token_ids, positions, mask)
        return Inputs(*self._tensors(token_ids, positions), mask)

    def prune(self, count: int) -> None:
        """Drop the `count` tokens that a branch put behind the trunk."""
        if self._token_ids:
            self._cache.crop(-count)
        else:
            self.clear()

    def _inputs(
        self, token_ids: list[int], positions: Sequence[int], mask: Tensor | None
    ) -> Inputs:
        return Inputs(*self._tensors(token_ids, positions), mask, self._cache)

    def _tensors(self, token_ids: list[int], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        device = self._forward.device
        return (
            torch.tensor([token_ids], device=device),
            torch.tensor([list(positions)], device=device),
        )
