"""A checkpoint in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit import (
    TokenEvent,
    TokenFeed,
    Tokenizer,
    TokenScore,
    TokenSession,
    TokenSpan,
    model_identity,
)
from evalution_reference.decoding import Decoder
from evalution_reference.llama import Llama
from evalution_reference.scoring import PrefixScorer

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_SCORING_WINDOW = 256
"""Spans planned together: a prefix that two windows share below its head is run twice."""


class ReferenceSession(TokenSession):
    def __init__(
        self,
        *,
        model: Model,
        llama: Llama,
        tokenizer: Tokenizer,
        folder: Path,
        max_model_len: int,
        batch_size: int,
        capabilities: frozenset[Capability],
    ):
        super().__init__(
            engine="Reference",
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=batch_size,
            scoring_window=_SCORING_WINDOW,
            dtype=llama.dtype.name,
        )
        self._model = model
        self._folder = folder
        self._decoder: Decoder | None = Decoder(llama, batch_size)
        self._scorer: PrefixScorer | None = PrefixScorer(llama)

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of the weights, configuration and tokenizer files.

        None with a tokenizer that has no files here: an object of the caller's, or the Hub's.
        """
        return model_identity(self._model, self._folder, _WEIGHTS)

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        assert self._decoder is not None
        return self._decoder.run(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        assert self._scorer is not None
        return self._scorer.score(spans)

    def _describe(self) -> dict[str, Any]:
        return {"device": "cpu", "attention": "numpy", "prefix_sharing": True}

    def _release_caches(self) -> None:
        if self._decoder is not None and self._scorer is not None:
            self._decoder.forget_prefixes()
            self._scorer.forget_head()

    def _release(self) -> None:
        self._decoder = self._scorer = None
