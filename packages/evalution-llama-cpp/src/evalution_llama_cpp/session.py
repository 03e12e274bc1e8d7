"""A session of the llama.cpp engine: one context for scoring and generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evalution_core import Capability
from evalution_enginekit import PromptQueue, TokenEvent, TokenScore, TokenSession, TokenSpan
from evalution_enginekit.distributions import Rows
from evalution_enginekit.model_source import choose_window
from evalution_llama_cpp.arguments import choose_cache_types, find_dtype, make_context_params
from evalution_llama_cpp.context import Context, KVCacheBudget
from evalution_llama_cpp.generate import Generator
from evalution_llama_cpp.load import LoadedModel
from evalution_llama_cpp.options import LlamaCppOptions
from evalution_llama_cpp.score import PrefixScorer

_SCORING_SEQUENCES = 48
"""Sequences for scoring, in addition to those that generate."""
_SCORING_WINDOW = 256
"""Spans planned together; a prefix that two windows share may be decoded twice."""


class LlamaCppSession(TokenSession):
    """A session on a loaded model, which it frees.

    Args:
        options: the engine's.
        capabilities: those of the engine with these options.
        loaded: the model.

    Raises:
        ConfigurationError: `max_model_len` doesn't fit the cache, or llama.cpp can't make the
            context.
    """

    def __init__(
        self,
        options: LlamaCppOptions,
        capabilities: frozenset[Capability],
        loaded: LoadedModel,
    ):
        trained = loaded.weights.trained_length
        cells = options.n_ctx or trained
        cache = choose_cache_types(options, loaded.device, loaded.file.weight_type)
        super().__init__(
            engine="LlamaCpp",
            capabilities=capabilities,
            tokenizer=loaded.tokenizer,
            max_model_len=choose_window(
                options.max_model_len or min(cells, trained), cells, limit="the n_ctx of"
            ),
            batch_size=options.rows,
            scoring_window=_SCORING_WINDOW,
            dtype=find_dtype(loaded.file.weight_type, options, cache, loaded.device),
            model_vocabulary=loaded.weights.vocabulary_size,
        )
        self._loaded = loaded
        library = loaded.weights.library
        sequences = min(options.rows + _SCORING_SEQUENCES, library.llama_max_parallel_sequences())
        self._context = Context(
            loaded.weights,
            make_context_params(
                library, options, loaded.device, cache, n_ctx=cells, sequences=sequences
            ),
        )
        self._description = _describe_options(options, loaded) | {
            "kv_cache": {"k": cache.k, "v": cache.v, "cells": cells},
            "sequences": self._context.sequences,
            "n_batch": self._context.batch.capacity,
        }
        self._budget = KVCacheBudget(self._context, cells)
        self._scorer = PrefixScorer(
            self._context, self._budget, lambda wanted: self._generator.make_room(wanted)
        )
        self._generator = Generator(
            self._context,
            self._budget,
            slots=options.rows,
            continuous=Capability.CONTINUOUS_BATCHING in capabilities,
            prefix=lambda: self._scorer.prefix,
            forget_prefix=self._scorer.forget_prefix,
        )

    def identity(self) -> dict[str, Any] | None:
        """Return the SHA-256 of the GGUF file, or of its parts, and of a tokenizer elsewhere.

        None with a tokenizer that has no files here: an object of the caller's, or the Hub's.
        """
        found = self._loaded.identity
        return None if found is None else dict(found)

    @property
    def budget(self) -> KVCacheBudget:
        """The budget of the KV cache, to be read between two steps or when nothing runs."""
        return self._budget

    @property
    def decoded_tokens(self) -> int:
        """Tokens that llama.cpp has decoded so far."""
        return self._scorer.decoded_tokens + self._generator.decoded_tokens

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return self._generator.run(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        return self._scorer.score(spans)

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        return self._scorer.compute_rows(spans)

    def _describe(self) -> dict[str, Any]:
        return self._description

    def _release_caches(self) -> None:
        self._scorer.forget_prefix()

    def _release(self) -> None:
        self._context.free()
        self._loaded.weights.free()


def _describe_options(options: LlamaCppOptions, loaded: LoadedModel) -> dict[str, Any]:
    device = loaded.device
    layers = options.n_gpu_layers if device.offloads else 0
    return {
        "device": device.name,
        "fallback": device.fallback,
        "device_fallback": device.fallback,
        "requested_device": options.device,
        "n_gpu_layers": "all" if layers is None else layers,
        "weights": loaded.file.weight_type,
        "ends_by_name": loaded.named_ends,
        "attention": {None: "llama.cpp's choice", True: "flash", False: "eager"}[
            options.flash_attn
        ],
        "prefix_sharing": True,
    }
