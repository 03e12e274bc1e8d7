"""Tokens that lm-evaluation-harness feeds and scores, by its own code, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.models.huggingface import HFLM

Ids = list[int]


class TokensOnly(HFLM):
    """lm-eval's Hugging Face model without weights: it records the ids that it would work on."""

    def __init__(self, tokenizer: Any, max_length: int = 1 << 20):
        TemplateLM.__init__(self)
        self.backend = "causal"
        self.tokenizer = tokenizer
        self.add_bos_token = None
        self.custom_prefix_token_id = None
        self.enable_thinking = False
        self.logits_cache = False
        self.softmax_dtype = torch.float32
        self._max_length = max_length
        self._rank = 0
        self._world_size = 1
        self._device = torch.device("cpu")
        self.batch_size_per_gpu = 64
        self._seen: list[tuple[Any, Ids, Ids]] = []
        self._fed: list[Ids] = []

    def pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Ids of both sides, as `loglikelihood` passes them on."""
        self._seen.clear()
        self.loglikelihood([SimpleNamespace(args=(context, continuation))], disable_tqdm=True)
        ((_, context_ids, continuation_ids),) = self._seen
        return list(context_ids), list(continuation_ids)

    def windows(self, text: str) -> list[tuple[Ids, Ids]]:
        """Context and scored ids of each window, as `loglikelihood_rolling` passes them on."""
        self._seen.clear()
        self.loglikelihood_rolling([SimpleNamespace(args=(text,))], disable_tqdm=True)
        return [(list(context), list(scored)) for _, context, scored in self._seen]

    def fed(self, context_ids: Ids, continuation_ids: Ids) -> Ids:
        """The ids that reach the model, after the cut from the left.

        Raises:
            AssertionError: a side has no token, or the continuation doesn't fit.
        """
        self._fed.clear()
        pair = (("", ""), context_ids, continuation_ids)
        HFLM._loglikelihood_tokens(self, [pair], disable_tqdm=True)
        (fed,) = self._fed
        return fed

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Ids, Ids]], **_: Any
    ) -> list[tuple[float, bool]]:
        self._seen.extend(requests)
        return [(0.0, True)] * len(requests)

    def _model_call(self, inps: torch.Tensor, **_: Any) -> torch.Tensor:
        self._fed.extend(inps.tolist())
        return torch.zeros(1, 1, 1).expand(*inps.shape, len(self.tokenizer))
