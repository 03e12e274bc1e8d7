"""Which token sees which, where the branches of a trie stand side by side in one row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASKED_ATTENTION = {"sdpa": False, "eager": True}
"""Attention that takes any mask from its caller; True: as numbers that are added to its scores."""


def tree_mask(owners: Sequence[int], ancestors: Sequence[Sequence[bool]], behind: int) -> Tensor:
    """Booleans [1, 1, tokens, behind + tokens]: the trunk, own ancestors, and what is before.

    `owners[t]` is the branch of token t; `ancestors[i][j]` says that branch i is or continues j.
    """
    owner = torch.tensor(owners)
    seen = torch.tensor(ancestors)[owner][:, owner].tril_()
    trunk = seen.new_ones(len(owners), behind)
    return torch.cat((trunk, seen), dim=1)[None, None]


def as_attention_mask(seen: Tensor, dtype: torch.dtype, *, additive: bool) -> Tensor:
    """The mask in the form that the attention takes."""
    if not additive:
        return seen
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
