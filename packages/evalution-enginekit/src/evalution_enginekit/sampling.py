"""Choose and score tokens by their logits, for engines that have them as NumPy arrays.

Needs NumPy, which such an engine brings along.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from evalution_core import EngineRuntimeError
from evalution_enginekit.distributions import find_top
from evalution_enginekit.generation import TokenEvent, TokenPrompt
from evalution_enginekit.planning import check_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray


_VALUES_AT_ONCE = 1 << 18
"""Weights that exist at a time, in whole rows: few enough for a processor's cache."""


class TokenChoice:
    """Choice of one prompt's tokens, with random numbers of its own.

    The same seed gives the same numbers, whatever else is in the batch.
    """

    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        self._generator = np.random.default_rng(prompt.seed) if prompt.do_sample else None
        self._left = prompt.max_new_tokens
        self.is_done = False
        """True once a token was a stop id or the last one allowed, or there was an error."""

    def take(self, logits: NDArray[np.floating[Any]]) -> TokenEvent:
        """The next token from its logits [vocabulary], as `next_token` chooses it.

        With the log-probabilities that the prompt asks for, computed in float64. Logits that give
        none end the prompt: the event has the error, and a token that means nothing.
        """
        prompt = self._prompt
        self._left -= 1
        try:
            token_id = next_token(
                logits,
                do_sample=prompt.do_sample,
                temperature=prompt.temperature,
                top_p=prompt.top_p,
                top_k=prompt.top_k,
                generator=self._generator,
            )
        except EngineRuntimeError as error:
            self.is_done = True
            # Without its frames, which hold the logits.
            return TokenEvent(prompt.key, [0], error=error.with_traceback(None))
        self.is_done = token_id in prompt.stop_ids or self._left <= 0
        if prompt.logprobs is None:
            return TokenEvent(prompt.key, [token_id])
        shifted = logits.astype(np.float64)
        shifted -= shifted.max()
        logprobs = shifted - np.log(np.exp(shifted).sum())
        top = find_top(logprobs, prompt.logprobs) if prompt.logprobs else {}
        return TokenEvent(prompt.key, [token_id], [float(logprobs[token_id])], [top])


def next_token(
    logits: NDArray[np.floating[Any]],
    *,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    generator: np.random.Generator | None = None,
) -> int:
    """Return the id of the next token, given the `logits` [vocab] of its position.

    Without `do_sample` it is the lowest id among those with the largest logit, whatever the other
    settings. With it, the logits pass temperature, `top_k` and `top_p` in the order of
    Transformers: `top_k` keeps ties with the k-th largest, `top_p` keeps the smallest set of
    likeliest tokens whose probabilities reach `top_p`, and at least one token. `top_k=0` and
    `top_p=1` keep all. `temperature=0` is the limit, greedy.

    The sample is the token that wins a race: each waits for an exponential time of `generator`,
    divided by its probability (Gumbel's trick). Rounding of the logits then changes a sample only
    where two tokens come in at the same time; a draw from the sums of sorted probabilities moves
    with every one of them.

    The settings are those of a valid request; `generator` is needed with `do_sample` alone.

    Raises:
        WrongScoresError: a logit is NaN, or the largest is infinite.
    """
    likeliest = int(logits.argmax())
    top = float(logits[likeliest])  # NaN where any of them is
    if not math.isfinite(top):
        check_logprobs([top - top])
    if not do_sample or temperature == 0:
        return likeliest
    assert generator is not None
    times = generator.standard_exponential(len(logits))
    # The top logit becomes 0 before the division, so that a tiny temperature can't overflow it.
    with np.errstate(over="ignore", divide="ignore"):
        scaled = (logits.astype(np.float64) - top) / temperature
        leads = scaled - np.log(times)
    if top_k == 0 and top_p >= 1:
        return int(leads.argmax())
    token_ids = _find_candidates(logits, scaled, top_p, top_k)
    return int(token_ids[leads[token_ids].argmax()])


def _find_candidates(
    logits: NDArray[np.floating[Any]], scaled: NDArray[np.float64], top_p: float, top_k: int
) -> NDArray[np.intp]:
    """Return the ids that may be drawn, likeliest first."""
    token_ids = np.arange(len(logits))
    # Ties are those of the logits: two that differ may be equal once the top one is subtracted.
    if 0 < top_k < len(logits):
        token_ids = np.flatnonzero(logits >= np.partition(logits, -top_k)[-top_k])
    token_ids = token_ids[np.argsort(-logits[token_ids], kind="stable")]
    if top_p < 1:
        probabilities = np.exp(scaled[token_ids])
        mass_before = np.cumsum(probabilities) - probabilities
        kept = max(1, int(np.count_nonzero(mass_before < top_p * probabilities.sum())))
        token_ids = token_ids[:kept]
    return token_ids


def token_logprobs(
    logits: NDArray[np.floating[Any]],
    token_ids: NDArray[np.integer[Any]],
    rows: NDArray[np.integer[Any]] | None = None,
) -> tuple[list[float], list[bool]]:
    """Score `token_ids[i]` under row `rows[i]` of `logits` [R, vocab]; without `rows`, under row i.

    Returns natural-log probabilities, computed in the precision of `logits` but at least float32,
    with normalisers summed in float64, and for each token whether it is greedy: no token has a
    strictly larger logit. The normaliser of a row that several tokens read is computed once.
    """
    if logits.dtype.itemsize < 4:
        logits = logits.astype(np.float32)
    rows = np.arange(len(token_ids)) if rows is None else rows
    top = logits.max(axis=-1)
    sums = np.empty(len(logits), np.float64)
    count = max(1, _VALUES_AT_ONCE // logits.shape[-1])
    for begin in range(0, len(logits), count):
        part = slice(begin, begin + count)
        weights = logits[part] - top[part, None]
        sums[part] = np.exp(weights, out=weights).sum(axis=-1, dtype=np.float64)
    chosen = logits[rows, token_ids]
    # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
    logprobs = (chosen - top[rows]).astype(np.float64) - np.log(sums)[rows]
    return logprobs.tolist(), (chosen >= top[rows]).tolist()
