"""Choosing the next token of one sequence from its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evalution_enginekit import TokenPrompt
from evalution_llama_cpp.context import Logits

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Choice:
    """How one prompt's tokens are chosen, with random numbers of its own.

    The same seed gives the same numbers, whatever else is in the batch.
    """

    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        samples = prompt.do_sample and prompt.temperature > 0
        self._generator = np.random.default_rng(prompt.seed) if samples else None

    def draw(self, logits: Logits) -> int:
        """A token id of `logits` [vocabulary]: the first of the largest, or a sample.

        The logits pass temperature, `top_k` and `top_p` in the order of Transformers: `top_k` keeps
        ties with the k-th largest, `top_p` the smallest set of likeliest tokens that reach it.
        """
        if self._generator is None:
            return int(logits.argmax())
        token_ids, probabilities = self._candidates(logits)
        cumulative = np.cumsum(probabilities)
        # random() is at most 1 - 2**-53: its product with a total always rounds to below the total.
        threshold = self._generator.random() * float(cumulative[-1])
        return int(token_ids[np.searchsorted(cumulative, threshold, side="right")])

    def _candidates(self, logits: Logits) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The ids that may be drawn, likeliest first, with their unnormalised probabilities."""
        prompt = self._prompt
        # The top logit becomes 0 before the division, so that a tiny temperature can't overflow it.
        with np.errstate(over="ignore"):
            scaled = (logits.astype(np.float64) - float(logits.max())) / prompt.temperature
        token_ids = np.argsort(-scaled, kind="stable")
        scaled = scaled[token_ids]
        if 0 < prompt.top_k < len(scaled):
            scaled = scaled[scaled >= scaled[prompt.top_k - 1]]
        probabilities = np.exp(scaled)
        if prompt.top_p < 1:
            before = np.cumsum(probabilities) - probabilities
            kept = int(np.count_nonzero(before < prompt.top_p * probabilities.sum()))
            probabilities = probabilities[: max(1, kept)]
        return token_ids[: len(probabilities)], probabilities
