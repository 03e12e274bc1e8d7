"""Prompts and groups of spans as TensorRT-LLM's sampling parameters."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from evalution_core import EvalutionError, InvalidRequestError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenPrompt
from evalution_tensorrt_llm.releases import Reading
from evalution_tensorrt_llm.upstream import MakesParameters

_NO_END = -1
"""Upstream's own sign for a request without an end token. Its `ignore_eos` isn't used, because
releases of 1.3 then ignore `stop_token_ids` too."""
_PADDING = 0
"""Fills up beams, which there are none of; without it the padding would be `_NO_END`."""


class Parameters:
    """Makes `SamplingParams`.

    Args:
        module: the runtime.
        reading: what scores are read from.
        vocabulary: how many tokens can be ranked; None if unknown.
    """

    def __init__(self, module: ModuleType, reading: Reading, vocabulary: int | None):
        self._make: MakesParameters = module.SamplingParams
        self._reading = reading
        self._vocabulary = vocabulary
        self.request_error: type[Exception] = module.executor.utils.RequestError
        """What TensorRT-LLM raises where a request fails alone."""
        self.refusals: tuple[type[Exception], ...] = (self.request_error, ValueError)
        """What it raises over one request that it can't serve."""

    def generation(self, prompt: TokenPrompt) -> Any:
        """To generate until one of the prompt's own stop ids, or its limit.

        Raises:
            InvalidRequestError: TensorRT-LLM doesn't take such values.
        """
        sampling: dict[str, Any] = {}
        if prompt.do_sample:
            sampling = {
                "temperature": prompt.temperature,
                "top_p": prompt.top_p,
                "top_k": prompt.top_k,
            }
        try:
            return self._make(
                end_id=_NO_END,
                pad_id=_PADDING,
                max_tokens=prompt.max_new_tokens,
                stop_token_ids=sorted(prompt.stop_ids),
                # Otherwise the stop's own id is cut off, while its log-probability stays.
                include_stop_str_in_output=True,
                logprobs=self._ranked(prompt.logprobs),
                detokenize=False,
                **sampling,
            )
        except self.refusals as error:
            raise self.refused(error) from error

    def scoring(self) -> Any:
        """To generate one token, with all that scores are read from."""
        rows: dict[str, Any] = {"return_context_logits": True}
        if self._reading is Reading.PROMPT_LOGPROBS:
            # One, since releases of 1.2 took none for a request without log-probabilities.
            rows = {"prompt_logprobs": 1}
        return self._make(end_id=_NO_END, pad_id=_PADDING, max_tokens=1, detokenize=False, **rows)

    def refused(self, error: Exception) -> EvalutionError:
        return InvalidRequestError(f"TensorRT-LLM refuses the request: {scrub(str(error))}")

    def _ranked(self, wanted: int | None) -> int | None:
        if wanted is None:
            return None
        return max(1, wanted if self._vocabulary is None else min(wanted, self._vocabulary))
