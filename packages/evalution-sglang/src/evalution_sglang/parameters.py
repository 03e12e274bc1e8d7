"""Prompts and groups of spans as the arguments of SGLang's `async_generate`."""

from __future__ import annotations

import secrets
from typing import Any

from evalution_enginekit import TokenPrompt
from evalution_enginekit.serving import SpanGroup

_SEEDS = 1 << 63
_TOLD_TOGETHER = 8
"""Tokens of one update; a prompt that a string can stop is told of each one."""


class Parameters:
    """Makes the arguments of requests.

    Args:
        vocabulary: how many tokens can be ranked.
        seeds: requests are sampled by seeds of their own.
    """

    def __init__(self, *, vocabulary: int, seeds: bool):
        self._vocabulary = vocabulary
        self._seeds = seeds

    def generation(self, prompt: TokenPrompt) -> dict[str, Any]:
        """To generate until one of the prompt's own stop ids, or its limit."""
        sampling: dict[str, Any] = {
            "max_new_tokens": prompt.max_new_tokens,
            "temperature": prompt.temperature if prompt.do_sample else 0.0,
            "top_p": prompt.top_p,
            "top_k": prompt.top_k or -1,
            "stop_token_ids": sorted(prompt.stop_ids),
            # Upstream then looks at no stop id at all, so that it is said where there is none.
            "ignore_eos": not prompt.stop_ids,
            "stream_interval": 1 if prompt.stop else _TOLD_TOGETHER,
        }
        if self._seeds and prompt.do_sample:
            # Without one, upstream takes the same for every request.
            seed = secrets.randbits(63) if prompt.seed is None else prompt.seed
            sampling["sampling_seed"] = seed % _SEEDS
        found: dict[str, Any] = {
            "input_ids": list(prompt.token_ids),
            "sampling_params": sampling,
            "stream": True,
        }
        if prompt.logprobs is not None:
            found["return_logprob"] = True
            found["top_logprobs_num"] = min(prompt.logprobs, self._vocabulary)
        return found

    def scoring(self, group: SpanGroup) -> dict[str, Any]:
        """To generate one token, with all that the scores of `group` are read from.

        Log-probabilities start one token before the first that is scored, since the entry at the
        start has none; what is before that may come out of the cache.
        """
        return {
            "input_ids": list(group.fed),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": group.start - 1 if group.inner else len(group.fed),
            # The likeliest token comes along: only its value tells whether there is a tie.
            "top_logprobs_num": 1,
            "token_ids_logprob": group.listed,
        }
