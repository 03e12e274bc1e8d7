"""A GGUF model in memory, run by tinygrad."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
from evalution_enginekit.gguf.file import GGUFFile
from evalution_enginekit.gguf.source import parts_of
from evalution_tinygrad.decoding import Decoder
from evalution_tinygrad.device import Placement
from evalution_tinygrad.forward import Forward
from evalution_tinygrad.loading import Loaded
from evalution_tinygrad.packing import Packing
from evalution_tinygrad.prefixes import Prefixes
from evalution_tinygrad.scoring import Scorer

T = TypeVar("T")

_SCORING_WINDOW = 256
"""Spans planned together: a prefix that two windows share below its head is run twice."""
_NARROWER = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much runs at once.

    `cache_tokens` is how many tokens prompts and completions that run together may have; None: a
    thousand of each row, and at least one whole window.
    """

    max_model_len: int
    batch_size: int
    pass_tokens: int
    cache_tokens: int | None

    @property
    def widths(self) -> tuple[int, ...]:
        """Shapes of a pass: one token of every row, and up to `pass_tokens` in steps of four."""
        widths = [max(self.pass_tokens, self.batch_size)]
        while widths[-1] > self.batch_size * 2:
            widths.append(max(self.batch_size, widths[-1] // _NARROWER))
        return tuple(sorted({self.batch_size, *widths}))

    @property
    def running_tokens(self) -> int:
        return self.cache_tokens or max(self.max_model_len, 1024 * self.batch_size)


class TinygradSession(TokenSession):
    """Scores and generates on one cache, whose slots sequences with a common beginning share."""

    def __init__(
        self,
        *,
        capabilities: frozenset[Capability],
        model: Model,
        file: GGUFFile,
        tokenizer: Tokenizer,
        loaded: Loaded,
        placement: Placement,
        sizes: Sizes,
        described: Mapping[str, Any],
    ):
        super().__init__(
            engine="Tinygrad",
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=sizes.max_model_len,
            batch_size=sizes.batch_size,
            scoring_window=_SCORING_WINDOW,
            # Whatever the weights are held in, tinygrad's transformer computes in float32.
            dtype="float32",
        )
        self._model = model
        self._file = file
        self._placement = placement
        self._described: dict[str, Any] = {
            "device": placement.target,
            "batching": "continuous",
            "attention": "packed rows",
            "prefix_sharing": True,
            "weight_type": loaded.weight_type,
            "quantization": file.weight_type,
            "jit": placement.jit,
            "jitbeam": placement.beam,
            "pass_tokens": list(sizes.widths),
            **described,
        }
        forward = Forward(loaded.transformer, loaded.rotary)
        packing = Packing(forward, sizes.widths)
        self._forward: Forward | None = forward
        prefixes = Prefixes(forward.cache)
        self._prefixes: Prefixes | None = prefixes
        self._scorer: Scorer | None = Scorer(forward, packing, prefixes)
        self._decoder: Decoder | None = Decoder(
            forward,
            packing,
            prefixes,
            rows=sizes.batch_size,
            cache_tokens=sizes.running_tokens,
        )

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of the GGUF file, and of the tokenizer's files where there are any.

        None with a tokenizer that has no files here: an object of the caller's, or the Hub's.
        """
        names = [part.name for part in parts_of(self._file.path)]
        return model_identity(self._model, self._file.path.parent, names)

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        assert self._decoder is not None
        return self._stepped(self._decoder.run(feed))

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        assert self._scorer is not None
        return self._stepped(self._scorer.score(spans))

    def _describe(self) -> dict[str, Any]:
        return self._described

    def _release_caches(self) -> None:
        assert self._prefixes is not None
        self._prefixes.clear()

    def _release(self) -> None:
        # Whatever leads to the model: a closed session may be held for long.
        self._forward = self._prefixes = self._scorer = self._decoder = None
        # tinygrad's graphs refer to themselves, so their buffers wait for the cycles' collection.
        gc.collect()
        with self._placement.entered():
            self._placement.free_memory()

    def _stepped(self, steps: Iterator[T]) -> Iterator[T]:
        """Each step by itself in the session's settings: between two, tinygrad is anyone's."""
        while True:
            with self._placement.entered():
                found = next(steps, None)
            if found is None:
                return
            yield found
