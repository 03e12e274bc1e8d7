"""A session of the reference engine: a checkpoint in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit import (
    PromptQueue,
    TokenEvent,
    Tokenizer,
    TokenScore,
    TokenSession,
    TokenSpan,
    model_identity,
)
from evalution_enginekit.distributions import Rows
from evalution_enginekit.model_source import choose_window
from evalution_reference.generate import Generator
from evalution_reference.llama import Llama
from evalution_reference.options import ReferenceOptions
from evalution_reference.score import PrefixScorer

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_BATCH_SIZE = 16
_SCORING_WINDOW = 256
"""Spans planned together; a prefix that two windows share may be run twice."""


class ReferenceSession(TokenSession):
    """A session on one model.

    Args:
        options: the engine's.
        capabilities: the engine's.
        model: the model as it was asked for.
        folder: where its files are.
        llama: the model in memory.
        tokenizer: text to ids and back.

    Raises:
        ConfigurationError: `max_model_len` is beyond the model's own.
    """

    def __init__(
        self,
        options: ReferenceOptions,
        capabilities: frozenset[Capability],
        model: Model,
        folder: Path,
        llama: Llama,
        tokenizer: Tokenizer,
    ):
        rows = options.batch_size if isinstance(options.batch_size, int) else _BATCH_SIZE
        super().__init__(
            engine="Reference",
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=choose_window(
                options.max_model_len, llama.config.max_position_embeddings
            ),
            batch_size=rows,
            scoring_window=_SCORING_WINDOW,
            dtype=llama.dtype.name,
            model_vocabulary=llama.config.vocab_size,
        )
        self._model = model
        self._folder = folder
        self._generator: Generator | None = Generator(llama, rows)
        self._scorer: PrefixScorer | None = PrefixScorer(llama)

    def identity(self) -> dict[str, Any] | None:
        """Return the SHA-256 of the weights, configuration and tokenizer files.

        None with a tokenizer that has no files here: an object of the caller's, or the Hub's.
        """
        return model_identity(self._model, self._folder, _WEIGHTS)

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        assert self._generator is not None
        return self._generator.run(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        assert self._scorer is not None
        return self._scorer.score(spans)

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        assert self._scorer is not None
        return self._scorer.compute_rows(spans)

    def _describe(self) -> dict[str, Any]:
        return {"device": "cpu", "attention": "numpy", "prefix_sharing": True}

    def _release_caches(self) -> None:
        if self._generator is not None and self._scorer is not None:
            self._generator.forget_prefixes()
            self._scorer.forget_prefix()

    def _release(self) -> None:
        self._generator = self._scorer = None
