"""A session of the tinygrad engine: a GGUF model in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from evalution_core import Capability, Model
from evalution_enginekit import (
    PromptQueue,
    TokenEvent,
    TokenScore,
    TokenSession,
    TokenSpan,
    model_identity,
)
from evalution_enginekit.distributions import Rows
from evalution_enginekit.gguf.file import list_parts
from evalution_enginekit.gguf.tokenizer import find_named_ends
from evalution_tinygrad.device import Placement
from evalution_tinygrad.generate import Generator
from evalution_tinygrad.kv_cache import Prefixes
from evalution_tinygrad.load import LoadedModel
from evalution_tinygrad.model import Forward, Packing
from evalution_tinygrad.options import TinygradOptions
from evalution_tinygrad.score import Scorer

T = TypeVar("T")

_SCORING_WINDOW = 256
"""Spans planned together; a prefix that two windows share may be run twice."""


class TinygradSession(TokenSession):
    """Scores and generates on one cache, whose slots sequences with a common prefix share.

    Args:
        options: the engine's.
        capabilities: the engine's.
        model: the model as it was asked for.
        loaded: its weights and tokenizer.
        placement: the device.
        version: tinygrad's version.
    """

    def __init__(
        self,
        options: TinygradOptions,
        capabilities: frozenset[Capability],
        model: Model,
        loaded: LoadedModel,
        placement: Placement,
        version: str,
    ):
        super().__init__(
            engine="Tinygrad",
            capabilities=capabilities,
            tokenizer=loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            batch_size=options.rows,
            scoring_window=_SCORING_WINDOW,
            # The self check scores the same weights in two ways, whatever they were rounded to.
            dtype="float32",
            model_vocabulary=int(loaded.weights.transformer.token_embd.weight.shape[0]),
        )
        self._model = model
        self._file = loaded.file
        self._placement = placement
        self._description: dict[str, Any] = {
            "device": placement.target,
            "batching": "continuous",
            "attention": "packed rows",
            "prefix_sharing": True,
            "dtype": loaded.dtype,
            "weight_type": loaded.weights.dtype,
            "ends_by_name": find_named_ends(loaded.file) if options.ends_by_name else {},
            "quantization": loaded.file.weight_type,
            "jit": placement.jit,
            "jitbeam": placement.beam,
            "pass_tokens": list(options.widths),
            "tinygrad": version,
        }
        forward = Forward(loaded.weights.transformer, loaded.weights.rotary)
        packing = Packing(forward, options.widths)
        prefixes = Prefixes(forward.cache)
        self._forward: Forward | None = forward
        self._prefixes: Prefixes | None = prefixes
        self._scorer: Scorer | None = Scorer(forward, packing, prefixes)
        self._generator: Generator | None = Generator(
            forward,
            packing,
            prefixes,
            rows=options.rows,
            cache_tokens=options.count_running_tokens(loaded.max_model_len),
        )

    def identity(self) -> dict[str, Any] | None:
        """Return the SHA-256 of the GGUF file, and of the tokenizer's files if there are any.

        None with a tokenizer that has no files here: an object of the caller's, or the Hub's.
        """
        names = [part.name for part in list_parts(self._file.path)]
        return model_identity(self._model, self._file.path.parent, names)

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        assert self._generator is not None
        return self._run_steps(self._generator.run(feed))

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        assert self._scorer is not None
        return self._run_steps(self._scorer.score(spans))

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        assert self._scorer is not None
        return self._run_steps(self._scorer.compute_rows(spans))

    def _describe(self) -> dict[str, Any]:
        return self._description

    def _release_caches(self) -> None:
        assert self._prefixes is not None
        self._prefixes.clear()

    def _release(self) -> None:
        # Everything that refers to the model: a closed session may be kept for long.
        self._forward = self._prefixes = self._scorer = self._generator = None
        # tinygrad's graphs refer to themselves, so their buffers wait for the cycles' collection.
        gc.collect()
        with self._placement.activate():
            self._placement.free_memory()

    def _run_steps(self, steps: Iterator[T]) -> Iterator[T]:
        """Run each step in the session's settings; between two steps others may use tinygrad."""
        while True:
            with self._placement.activate():
                found = next(steps, None)
            if found is None:
                return
            yield found
