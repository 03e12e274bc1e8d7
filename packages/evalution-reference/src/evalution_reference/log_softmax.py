"""Log-probabilities of given tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def token_logprobs(
    logits: NDArray[np.floating[Any]], targets: NDArray[np.integer[Any]]
) -> tuple[list[float], list[bool]]:
    """Score the token `targets[r]` under row r of `logits` [R, vocab], for each of the R rows.

    Returns natural-log probabilities, computed in the precision of `logits` but at least float32,
    and for each row whether the target is greedy: whether no token has a strictly larger logit.
    """
    if logits.dtype.itemsize < 4:
        logits = logits.astype(np.float32)
    chosen = logits[np.arange(len(targets)), targets]
    top = logits.max(axis=-1)
    weights = np.exp(logits - top[:, None])
    # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
    logprobs = (chosen - top) - np.log(weights.sum(axis=-1))
    return logprobs.astype(np.float64).tolist(), (chosen >= top).tolist()
