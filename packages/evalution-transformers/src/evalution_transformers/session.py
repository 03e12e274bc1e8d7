"""A session on a causal model in memory, and the choice of its scoring and generation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, TypeVar

import torch

from evalution_core import Capability
from evalution_enginekit import PromptQueue, TokenEvent, TokenScore, TokenSession, TokenSpan
from evalution_enginekit.distributions import Rows
from evalution_transformers.attached_model import run_steps
from evalution_transformers.continuous import ContinuousBatching
from evalution_transformers.forward import Forward
from evalution_transformers.generate import FixedBatches, Generation
from evalution_transformers.linear import find_product, has_slow_linear
from evalution_transformers.load import LoadedModel
from evalution_transformers.options import ContinuousOptions, ModelOptions
from evalution_transformers.paged import PagedBatching, asks_for_paged, find_manager_obstacle
from evalution_transformers.probe import (
    Architecture,
    find_window,
    probe_architecture,
    read_text_config,
)
from evalution_transformers.runtime import CUDNN_ATTENTION
from evalution_transformers.score import PaddedScorer, PrefixScorer
from evalution_transformers.scoring_passes import Scorer
from evalution_transformers.upstream import CausalModel

_log = logging.getLogger(__name__)

_SCORING_WINDOW = 256
"""Spans planned together: a prefix that two windows share below the cached one is run twice."""
_PRECISE = ("float64", "float32")

T = TypeVar("T")


def make_session(
    options: ModelOptions, capabilities: frozenset[Capability], loaded: LoadedModel
) -> TransformersSession:
    """Try which forms of forward pass the model allows, and make the fastest session on it.

    Raises:
        ConfigurationError: it isn't causal, or `max_model_len` is more than it has.
    """
    with ExitStack() as stack:
        # A caller's model has its own, in `loaded.mode`: a loop that trains keeps what it has set.
        if loaded.mode is None:
            stack.enter_context(CUDNN_ATTENTION.avoid())
        session = _make_session(options, capabilities, loaded)
        session.settings = stack.pop_all()
    return session


def _make_session(
    options: ModelOptions, capabilities: frozenset[Capability], loaded: LoadedModel
) -> TransformersSession:
    model = loaded.model
    window = find_window(model, options.max_model_len)
    with nullcontext() if loaded.mode is None else loaded.mode():
        architecture = probe_architecture(model, window)
    asked = options.batch_size if isinstance(options.batch_size, int) else None
    rows = asked or (16 if model.device.type == "cpu" else 64)
    generation, fallback = _choose_generation(options, loaded, architecture, rows, window)
    if isinstance(generation, FixedBatches):
        capabilities -= {Capability.CONTINUOUS_BATCHING}
    if fallback is not None:
        _log.warning("%s falls back, without %s", type(options).__name__, fallback)
    return TransformersSession(
        type(options).__name__,
        capabilities,
        loaded,
        max_model_len=window,
        batch_size=rows,
        scorer=make_scorer(
            model,
            architecture,
            pass_tokens=options.pass_tokens,
            keeps_prefix=loaded.mode is None,
        ),
        generation=generation,
        execution={
            "fallback": fallback,
            "scoring": "shared prefixes" if architecture.shares_prefixes else "padded rows",
            "scoring_fallback": architecture.obstacle,
            "quantization": _read_quantization(model),
            "linear_layers": "oneDNN" if has_slow_linear(model) and find_product() else None,
            "attached": loaded.mode is not None,
        },
    )


def _choose_generation(
    options: ModelOptions, loaded: LoadedModel, architecture: Architecture, rows: int, window: int
) -> tuple[Generation, str | None]:
    """Return the fastest way to complete prompts, and what was asked for but can't be had here.

    For continuous batching that is upstream's manager, else the forward passes, else fixed batches.
    """
    model = loaded.model
    batches = FixedBatches(model, rows if architecture.pads else 1)
    if not isinstance(options, ContinuousOptions):
        return batches, None
    obstacle = "the model is the caller's" if loaded.mode else find_manager_obstacle(model)
    asked = asks_for_paged(options)
    flash = str(getattr(model.config, "_attn_implementation", "")).startswith("flash")
    pays = flash and model.device.type == "cuda"
    pass_tokens = options.pass_tokens or default_pass_tokens(model.device)
    if obstacle is None and options.paged is not False and (asked or pays):
        paged = PagedBatching(
            model,
            rows=rows,
            max_model_len=window,
            pass_tokens=pass_tokens,
            options=options,
            others=batches,
        )
        return paged, None
    if not architecture.shares_prefixes:
        return batches, f"continuous batching: {architecture.obstacle}"
    continuous = ContinuousBatching(
        Forward(model, splits=architecture.splits),
        rows=rows,
        pass_tokens=pass_tokens,
        beams=batches,
        keeps_prefix=loaded.mode is None,
    )
    return continuous, f"paged attention: {obstacle}" if asked else None


def make_scorer(
    model: CausalModel,
    architecture: Architecture,
    *,
    pass_tokens: int | None = None,
    keeps_prefix: bool = True,
) -> Scorer:
    """Return the fastest scorer that is right for the model.

    Args:
        model: the model.
        architecture: the forms of forward pass that it allows.
        pass_tokens: tokens of one forward pass; None: by the device.
        keeps_prefix: False for a model whose weights may change between two calls.
    """
    forward = Forward(model, splits=architecture.splits)
    tokens = pass_tokens or default_pass_tokens(forward.device, in_rows=True)
    if not architecture.shares_prefixes:
        return PaddedScorer(forward, pass_tokens=tokens, equal_lengths=architecture.equal_lengths)
    return PrefixScorer(forward, pass_tokens=tokens, keeps_prefix=keeps_prefix)


class TransformersSession(TokenSession):
    """Runs any model whose forward pass and `generate` are those of Transformers.

    Args:
        engine: the engine's public name.
        capabilities: those of `generation` and the scorer together.
        loaded: the model; whoever loaded it decides about its gradients.
        max_model_len: tokens that the model is fed at most.
        batch_size: prompts that are completed side by side.
        scorer: scores spans.
        generation: completes prompts.
        execution: the part of `describe_execution` beyond device, dtype and attention.
    """

    def __init__(
        self,
        engine: str,
        capabilities: frozenset[Capability],
        loaded: LoadedModel,
        *,
        max_model_len: int,
        batch_size: int,
        scorer: Scorer,
        generation: Generation,
        execution: Mapping[str, Any],
    ):
        model = loaded.model
        dtype = loaded.dtype or str(model.dtype).removeprefix("torch.")
        super().__init__(
            engine=engine,
            capabilities=capabilities,
            tokenizer=loaded.tokenizer,
            max_model_len=max_model_len,
            batch_size=batch_size,
            scoring_window=_SCORING_WINDOW,
            # Upstream's norms, rotary embeddings and `generate` compute in float32 at most.
            dtype="float32" if dtype in _PRECISE else dtype,
            model_vocabulary=int(read_text_config(model.config).vocab_size),
        )
        self.settings = ExitStack()
        """Settings of the process that end with the session."""
        self._model: CausalModel | None = model
        self._scorer: Scorer | None = scorer
        self._generation_path: Generation | None = generation
        self._mode = loaded.mode
        self._identity = loaded.identity
        self._execution: dict[str, Any] = {
            "device": find_device_name(model),
            "dtype": dtype,
            "attention": getattr(model.config, "_attn_implementation", None),
            **execution,
            **loaded.execution,
        }

    def identity(self) -> dict[str, Any] | None:
        """Return SHA-256 hashes of the files that answer, or the Hub's revision.

        None for a model of the caller's.
        """
        return None if self._identity is None else dict(self._identity)

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        assert self._generation_path is not None
        steps = self._generation_path.run(feed)
        return steps if self._mode is None else run_steps(steps, self._mode)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        return self._run_scorer(lambda scorer: scorer.score(spans))

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        return self._run_scorer(lambda scorer: scorer.compute_rows(spans))

    def _run_scorer(self, begin: Callable[[Scorer], Iterator[T]]) -> Iterator[T]:
        assert self._scorer is not None
        assert self._generation_path is not None
        return run_steps(begin(self._scorer), self._mode or self._generation_path.pause)

    def _describe(self) -> dict[str, Any]:
        if self._generation_path is not None:
            self._execution |= self._generation_path.describe()
        return self._execution

    def _release_caches(self) -> None:
        if self._scorer is not None and self._generation_path is not None:
            self._scorer.forget()
            self._generation_path.forget()
        if self._mode is None:
            empty_cache()

    def _release(self) -> None:
        if self._generation_path is not None:
            self._execution |= self._generation_path.describe()
            self._generation_path.forget()
        self._model = self._scorer = self._generation_path = None
        self.settings.close()
        if self._mode is None:
            empty_cache()


def default_pass_tokens(device: torch.device, *, in_rows: bool = False) -> int:
    """Return the tokens of one forward pass that keep a device of this kind busy.

    More where they stand in rows, so that attention doesn't grow by their square.
    """
    if device.type == "cpu":
        return 512
    return 8192 if in_rows else 4096


def find_device_name(model: CausalModel) -> str:
    """Return the model's device, or all of them where its layers are spread."""
    placed: Mapping[str, Any] | None = getattr(model, "hf_device_map", None)
    found = {str(torch.device(device)) for device in (placed or {}).values()}
    return ", ".join(sorted(found)) if len(found) > 1 else str(model.device)


def empty_cache() -> None:
    """Return memory that torch keeps for later to the device."""
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        module = torch.get_device_module(device)
        if hasattr(module, "empty_cache"):
            module.empty_cache()


def _read_quantization(model: CausalModel) -> str | None:
    quantized: Any = getattr(model.config, "quantization_config", None)
    method: Any = getattr(quantized, "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))
