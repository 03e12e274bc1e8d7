"""A GGUF model in llama.cpp: one context for scoring and for generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalution_core import Capability
from evalution_enginekit import (
    TokenEvent,
    TokenFeed,
    Tokenizer,
    TokenScore,
    TokenSession,
    TokenSpan,
)
from evalution_llama_cpp.cache_ledger import CacheLedger
from evalution_llama_cpp.context import Context
from evalution_llama_cpp.generating import Generator
from evalution_llama_cpp.scoring import TrieScorer
from evalution_llama_cpp.weights import Weights

_SCORING_WINDOW = 256
"""Spans planned together: a prefix that two windows share below its head is decoded twice."""


class LlamaCppSession(TokenSession):
    """A session on a loaded model.

    Args:
        capabilities: all of the engine's, or without refill for fixed batches.
        weights: the model; the session frees it.
        context: its context; the session frees it.
        cells: tokens that the context's cache may hold.
        tokenizer: text to ids and back.
        max_model_len: tokens that the model is fed at most.
        batch_size: prompts that are completed side by side.
        dtype: arithmetic and cache, for the self check's tolerance.
        described: what `describe_execution` tells besides.
        identified: what `identity` tells.
    """

    def __init__(
        self,
        *,
        capabilities: frozenset[Capability],
        weights: Weights,
        context: Context,
        cells: int,
        tokenizer: Tokenizer,
        max_model_len: int,
        batch_size: int,
        dtype: str,
        described: Mapping[str, Any],
        identified: Mapping[str, Any] | None,
    ):
        super().__init__(
            engine="LlamaCpp",
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=batch_size,
            scoring_window=_SCORING_WINDOW,
            dtype=dtype,
        )
        self._weights = weights
        self._context = context
        self._described = dict(described)
        self._identified = identified
        self._ledger = CacheLedger(context, cells)
        self._scorer = TrieScorer(context, self._ledger, self._give_way)
        self._generator = Generator(
            context,
            self._ledger,
            slots=batch_size,
            refill=Capability.CONTINUOUS_BATCHING in capabilities,
            head=lambda: self._scorer.head,
            forget_head=self._scorer.forget_head,
        )

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of the GGUF file, or of all its parts, and of a tokenizer that lies elsewhere.

        None with a tokenizer that has no files here: an object of the caller's, or the Hub's.
        """
        return None if self._identified is None else dict(self._identified)

    @property
    def ledger(self) -> CacheLedger:
        """The books of the KV cache, to be looked at between two steps or when nothing runs."""
        return self._ledger

    @property
    def decoded_tokens(self) -> int:
        """Tokens that llama.cpp was given to decode so far."""
        return self._scorer.decoded_tokens + self._generator.decoded_tokens

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        return self._generator.run(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        return self._scorer.score(spans)

    def _give_way(self, wanted: Any) -> None:
        self._generator.give_way(wanted)

    def _describe(self) -> dict[str, Any]:
        return self._described

    def _release_caches(self) -> None:
        self._scorer.forget_head()

    def _release(self) -> None:
        self._context.free()
        self._weights.free()
