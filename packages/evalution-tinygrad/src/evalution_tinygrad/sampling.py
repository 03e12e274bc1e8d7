"""Choosing the next token of one sequence from its logits."""

from __future__ import annotations

import numpy as np

from evalution_enginekit import TokenPrompt
from evalution_tinygrad.rotary import Floats


class Choice:
    """How one prompt's tokens are chosen, with random numbers of its own.

    The same seed gives the same numbers, whatever else runs beside it.
    """

    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        drawn = prompt.do_sample and prompt.temperature > 0
        self._generator = np.random.default_rng(prompt.seed) if drawn else None

    def draw(self, logits: Floats) -> int:
        """A token id of `logits` [vocabulary]: the first of the largest, or a sample.

        The logits pass temperature, `top_k` and `top_p` in the order of Transformers: `top_k` keeps
        ties with the k-th largest, `top_p` the smallest set of likeliest tokens that reach it.
        """
        if self._generator is None:
            return int(logits.argmax())
        prompt = self._prompt
        # The top logit becomes 0 before the division, so that a tiny temperature can't overflow it.
        with np.errstate(over="ignore"):
            scaled = (logits.astype(np.float64) - float(logits.max())) / prompt.temperature
        token_ids = np.argsort(-scaled, kind="stable")
        scaled = scaled[token_ids]
        if 0 < prompt.top_k < len(scaled):
            scaled = scaled[scaled >= scaled[prompt.top_k - 1]]
        weights = np.exp(scaled)
        cumulative = np.cumsum(weights)
        if prompt.top_p < 1:
            kept = int(np.count_nonzero(cumulative - weights < prompt.top_p * cumulative[-1]))
            cumulative = cumulative[: max(1, kept)]
        # random() is below 1, and its product with a total rounds to below the total.
        threshold = self._generator.random() * float(cumulative[-1])
        return int(token_ids[np.searchsorted(cumulative, threshold, side="right")])


def top_logprobs(logits: Floats, token_id: int, count: int) -> tuple[float, dict[int, float]]:
    """The log-probability of a token and the `count` likeliest, from `logits` [vocabulary]."""
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    likeliest = np.argsort(-logprobs, kind="stable")[:count]
    return float(logprobs[token_id]), {int(at): float(logprobs[at]) for at in likeliest}
