"""Log-probabilities from rows of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evalution_llama_cpp.context import Logits

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS_AT_ONCE = 64
"""Rows whose weights exist at a time: bounds memory by 64 x vocabulary."""


def token_logprobs(
    logits: Logits, rows: NDArray[np.int64], token_ids: NDArray[np.int64]
) -> tuple[list[float], list[bool]]:
    """Natural-log probability of `token_ids[i]` under row `rows[i]` of `logits` [R, vocabulary].

    Several tokens may ask for one row, whose normaliser is computed once, in float32 with its sum
    in float64. With each comes whether it is greedy: no token has a strictly larger logit.
    """
    top = logits.max(axis=1)
    sums = np.empty(len(logits), np.float64)
    for begin in range(0, len(logits), _ROWS_AT_ONCE):
        part = slice(begin, begin + _ROWS_AT_ONCE)
        weights = np.exp(logits[part] - top[part, None])
        sums[part] = weights.sum(axis=1, dtype=np.float64)
    chosen = logits[rows, token_ids]
    # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
    logprobs = (chosen - top[rows]).astype(np.float64) - np.log(sums)[rows]
    return logprobs.tolist(), (chosen >= top[rows]).tolist()
