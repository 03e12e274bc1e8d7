"""A checkpoint in memory: scoring over a trie of prefixes, generation with refilled slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalution_core import Capability
from evalution_enginekit import (
    Segment,
    TokenEvent,
    TokenFeed,
    Tokenizer,
    TokenScore,
    TokenSession,
    TokenSpan,
    files_identity,
    plan_scoring,
)
from evalution_enginekit.prefix_trie import shared_prefix
from evalution_reference.decoding import Decoder
from evalution_reference.kv_cache import KVCache
from evalution_reference.llama import Llama
from evalution_reference.log_softmax import token_logprobs

_ROWS_AT_ONCE = 256
"""Rows of logits that exist at a time while scoring: bounds memory by 256 x vocabulary."""


class ReferenceSession(TokenSession):
    def __init__(
        self,
        *,
        model: Llama,
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
            dtype=model.dtype.name,
        )
        self._folder = folder
        self._model: Llama | None = model
        self._decoder: Decoder | None = Decoder(model, batch_size)
        self._path: list[int] = []
        self._cache: KVCache | None = None

    def identity(self) -> dict[str, Any]:
        """SHA-256 of the weights, configuration and tokenizer files."""
        kinds = ("*.safetensors", "*.json", "*.jinja")
        return files_identity(file for kind in kinds for file in self._folder.glob(kind))

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        assert self._decoder is not None
        return self._decoder.run(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> list[TokenScore]:
        logprobs = [[0.0] * (len(span.token_ids) - span.start) for span in spans]
        greedy = [True] * len(spans)
        for segment in plan_scoring(spans).segments:
            found = self._score_segment(segment)
            for target, (logprob, is_greedy) in zip(segment.targets, found, strict=True):
                logprobs[target.span][target.slot] = logprob
                greedy[target.span] &= is_greedy
        return [TokenScore(*score) for score in zip(logprobs, greedy, strict=True)]

    def _score_segment(self, segment: Segment) -> Iterator[tuple[float, bool]]:
        """The log-probability and greediness of each target, after one forward of the segment.

        What the cache holds of it from an earlier call, such as a few-shot head, isn't run again
        unless rows of it are wanted.
        """
        assert self._model is not None
        if self._cache is None:
            self._path, self._cache = [], self._model.new_cache()
        first_row = min((target.position for target in segment.targets), default=None)
        held = shared_prefix(self._path[segment.depth :], segment.token_ids)
        if first_row is not None:
            held = min(held, first_row - segment.depth)
        begin = segment.depth + held
        run = segment.token_ids[held:]
        self._cache.truncate(begin)
        self._path = self._path[:begin]
        if not run:
            return
        hidden = self._model.hidden_states(np.array(run), self._cache)
        self._path.extend(run)
        for at in range(0, len(segment.targets), _ROWS_AT_ONCE):
            targets = segment.targets[at : at + _ROWS_AT_ONCE]
            rows = [target.position - begin for target in targets]
            wanted, inverse = np.unique(rows, return_inverse=True)
            logits = self._model.logits(hidden[wanted])[inverse]
            ids = np.array([target.token_id for target in targets])
            yield from zip(*token_logprobs(logits, ids), strict=True)

    def _describe(self) -> dict[str, Any]:
        return {"device": "cpu", "attention": "numpy", "prefix_sharing": True}

    def _release_caches(self) -> None:
        self._path, self._cache = [], None
        if self._decoder is not None:
            self._decoder.forget_prefixes()

    def _release(self) -> None:
        self._release_caches()
        self._model = self._decoder = None
