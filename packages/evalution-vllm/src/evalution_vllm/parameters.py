"""Prompts and groups of spans as vLLM's sampling parameters."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from evalution_core import EvalutionError, InvalidRequestError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenPrompt
from evalution_enginekit.serving import SpanGroup
from evalution_vllm.upstream import MakesParameters

LISTED_LIMIT = 128
"""How many tokens a request of vLLM 0.32 and 0.33 can list."""


_SEEDS = 1 << 63
_TOLD_TOGETHER = 8
"""Tokens of one update; a prompt that a string can stop is told of each one."""


class Parameters:
    """Makes `SamplingParams`.

    Args:
        vllm: the runtime.
        streams: tokens are told as they come; False: all of them at the end.
    """

    def __init__(self, vllm: ModuleType, *, streams: bool = True):
        kinds = vllm.sampling_params.RequestOutputKind
        self._make: MakesParameters = vllm.SamplingParams
        self._at_once: Any = kinds.FINAL_ONLY
        self._as_they_come: Any = kinds.DELTA if streams else kinds.FINAL_ONLY
        self.refusals: tuple[type[Exception], ...] = (
            vllm.exceptions.VLLMClientError,
            ValueError,
        )
        """What vLLM raises over one request that it can't serve."""

    def generation(self, prompt: TokenPrompt, vocabulary: int) -> Any:
        """To generate until one of the prompt's own stop ids, or its limit.

        Raises:
            InvalidRequestError: vLLM doesn't take such values.
        """
        wanted = prompt.logprobs
        try:
            return self._make(
                max_tokens=prompt.max_new_tokens,
                temperature=prompt.temperature if prompt.do_sample else 0.0,
                top_p=prompt.top_p,
                top_k=prompt.top_k,
                # The runtime's generators take 64 bits, and a longer number would end its core.
                seed=None if prompt.seed is None else prompt.seed % _SEEDS,
                stop_token_ids=sorted(prompt.stop_ids),
                ignore_eos=True,
                logprobs=None if wanted is None else min(wanted, vocabulary),
                flat_logprobs=True,
                detokenize=False,
                output_kind=self._as_they_come,
                stream_interval=None if prompt.stop else _TOLD_TOGETHER,
            )
        except self.refusals as error:
            raise self.refused(error) from error

    def scoring(self, group: SpanGroup, *, reads_cache: bool) -> Any:
        """To generate one token, with all that the scores of `group` are read from.

        `reads_cache` lets prompt log-probabilities start behind what the prefix cache has.
        """
        inner: dict[str, Any] = {}
        if group.inner:
            # The likeliest token comes along, because vLLM counts a tie as a lower rank.
            inner = {"prompt_logprobs": 1, "skip_reading_prefix_cache": not reads_cache}
        return self._make(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            logprob_token_ids=group.listed,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._at_once,
            **inner,
        )

    def refused(self, error: Exception) -> EvalutionError:
        return InvalidRequestError(f"vLLM refuses the request: {scrub(str(error))}")
