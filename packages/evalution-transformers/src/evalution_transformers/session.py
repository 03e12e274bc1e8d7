"""A causal model in memory: scoring on its own forward passes, generation by one of two paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from evalution_core import Capability
from evalution_enginekit import (
    TokenEvent,
    TokenFeed,
    Tokenizer,
    TokenScore,
    TokenSession,
    TokenSpan,
)
from evalution_transformers.architecture import Architecture, text_config
from evalution_transformers.forward import CausalModel, Forward
from evalution_transformers.lending import Lending, within
from evalution_transformers.padding import PaddedScorer
from evalution_transformers.scoring import PackedScorer

_SCORING_WINDOW = 256
"""Spans planned together: a prefix that two windows share below its trunk is run twice."""
_PASS_TOKENS = {"cpu": 512}
_PASS_TOKENS_ELSEWHERE = 4096
_PRECISE = ("float64", "float32")


class Scorer(Protocol):
    """Scores of spans, in their order, after each forward pass."""

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]: ...
    def forget(self) -> None: ...


class Generation(Protocol):
    """How prompts are completed."""

    def run(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]: ...
    def forget(self) -> None:
        """Free what can be computed again."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its part of `describe_execution`."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A context in which nothing of it touches the model."""
        ...


def scorer_of(
    model: CausalModel,
    architecture: Architecture,
    *,
    pass_tokens: int | None = None,
    keeps_trunk: bool = True,
) -> Scorer:
    """The fastest scorer that is right for the model.

    `pass_tokens` is how many tokens one forward pass takes, None for what suits the device;
    `keeps_trunk=False` is for a model whose weights may change between two calls.
    """
    forward = Forward(model, splits=architecture.splits)
    tokens = pass_tokens or suiting_pass_tokens(forward.device)
    if not architecture.packs:
        return PaddedScorer(forward, pass_tokens=tokens, alike=architecture.alike)
    return PackedScorer(
        forward,
        additive_mask=architecture.additive_mask,
        pass_tokens=tokens,
        keeps_trunk=keeps_trunk,
    )


def suiting_pass_tokens(device: torch.device) -> int:
    """Tokens of one forward pass that keep a device of this kind busy."""
    return _PASS_TOKENS.get(device.type, _PASS_TOKENS_ELSEWHERE)


class TransformersSession(TokenSession):
    """A session on any model that answers as those of Transformers do.

    Args:
        engine: the engine's public name.
        capabilities: what `generation` and the scorer can do.
        model: the model; whoever loaded it decides about its mode and gradients.
        tokenizer: text to ids and back.
        max_model_len: tokens that the model is fed at most.
        batch_size: prompts that are completed side by side.
        scorer: None where the session doesn't score.
        generation: how prompts are completed.
        described: what `describe_execution` tells besides device, dtype and attention.
        identified: what `identity` tells.
        lent: for a model of the caller's, the contexts in which it may be run.
        dtype: the arithmetic's, where it isn't that of the model's weights.
    """

    def __init__(
        self,
        *,
        engine: str,
        capabilities: frozenset[Capability],
        model: CausalModel,
        tokenizer: Tokenizer,
        max_model_len: int,
        batch_size: int,
        scorer: Scorer,
        generation: Generation,
        described: Mapping[str, Any],
        identified: Mapping[str, Any] | None,
        lent: Lending | None = None,
        dtype: str | None = None,
    ):
        dtype = dtype or str(model.dtype).removeprefix("torch.")
        super().__init__(
            engine=engine,
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=batch_size,
            scoring_window=_SCORING_WINDOW,
            # Upstream's norms, rotary embeddings and `generate` compute in float32 at most.
            dtype="float32" if dtype in _PRECISE else dtype,
            model_vocabulary=int(text_config(model.config).vocab_size),
        )
        self._model: CausalModel | None = model
        self._scorer: Scorer | None = scorer
        self._generation_path: Generation | None = generation
        self._lent = lent
        self._identified = identified
        self._execution: dict[str, Any] = {
            "device": device_name(model),
            "dtype": dtype,
            "attention": getattr(model.config, "_attn_implementation", None),
            **described,
        }

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of each file that answers, or the Hub's revision; None for a model in memory."""
        return None if self._identified is None else dict(self._identified)

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        assert self._generation_path is not None
        steps = self._generation_path.run(feed)
        return steps if self._lent is None else within(steps, self._lent)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        assert self._scorer is not None
        assert self._generation_path is not None
        steps = self._scorer.score(spans)
        return within(steps, self._lent or self._generation_path.paused)

    def _describe(self) -> dict[str, Any]:
        if self._generation_path is not None:
            self._execution |= self._generation_path.describe()
        return self._execution

    def _release_caches(self) -> None:
        if self._scorer is not None and self._generation_path is not None:
            self._scorer.forget()
            self._generation_path.forget()
        if self._lent is None:
            empty_cache()

    def _release(self) -> None:
        if self._generation_path is not None:
            self._execution |= self._generation_path.describe()
            self._generation_path.forget()
        self._model = self._scorer = self._generation_path = None
        if self._lent is None:
            empty_cache()


def device_name(model: CausalModel) -> str:
    """The model's device, or all of them where its layers are spread."""
    placed: Mapping[str, Any] | None = getattr(model, "hf_device_map", None)
    found = {str(torch.device(device)) for device in (placed or {}).values()}
    return ", ".join(sorted(found)) if len(found) > 1 else str(model.device)


def empty_cache() -> None:
    """Give memory that torch keeps for later back to the device."""
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        module = torch.get_device_module(device)
        if hasattr(module, "empty_cache"):
            module.empty_cache()
