"""What a server tells of a prompt's tokens, brought into one form."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalution_enginekit import WrongScoresError

_ABOVE_ZERO = 1e-6
"""Rounding may lift the log-probability of a sure token this far."""
_TIE = 1e-9

TopRow = list[tuple[int, float]] | None


def aligned_logprobs(listed: Sequence[float | None] | None, length: int, start: int) -> list[float]:
    """Log-probabilities of the tokens from `start` on, at least 1, of a prompt of `length`.

    The protocol lists one for each token, the first being None; SkyRL 0.3.0 leaves that one out.

    Raises:
        WrongScoresError: there are others than these, or one is missing or no log-probability.
    """
    if listed is None:
        raise WrongScoresError("the server told no prompt log-probabilities")
    if len(listed) not in (length, length - 1):
        raise WrongScoresError(
            f"the server told {len(listed)} log-probabilities of a prompt of {length} tokens, "
            f"which are neither {length} nor {length - 1}: which is whose can't be known"
        )
    first = length - len(listed)
    found: list[float] = []
    for place, value in enumerate(listed[start - first :], start=start):
        if value is None or not math.isfinite(value) or value > _ABOVE_ZERO:
            raise WrongScoresError(
                f"the server told {value!r} as log-probability of prompt token {place} of {length}"
            )
        found.append(float(value))
    return found


def are_greedy(
    logprobs: Sequence[float], rows: Sequence[TopRow] | None, length: int
) -> bool | None:
    """Whether no listed token is more likely than the prompt's own, by value; None if unlisted.

    Args:
        logprobs: of the last tokens of the prompt.
        rows: what `topk_prompt_logprobs` has, aligned as the log-probabilities may be.
        length: of the prompt.
    """
    if rows is None or len(rows) not in (length, length - 1):
        return None
    last = rows[len(rows) - len(logprobs) :]
    if not all(last):
        return None
    best = [max(value for _, value in row) for row in last if row]
    return all(
        own >= top - _TIE * max(1.0, abs(own)) for own, top in zip(logprobs, best, strict=True)
    )
