"""A session on a causal model in memory, and the choice of its scoring and generation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from evalution_core import Capability, Model
from evalution_enginekit import (
    PromptQueue,
    TokenEvent,
    Tokenizer,
    TokenScore,
    TokenSession,
    TokenSpan,
)
from evalution_enginekit.runtime import find_changed_options
from evalution_transformers.attached_model import (
    EvalMode,
    eval_mode,
    read_handles,
    refuse_loading_options,
    run_steps,
    unwrap_model,
    wrap_tokenizer,
)
from evalution_transformers.continuous import ContinuousBatching
from evalution_transformers.forward import Forward
from evalution_transformers.generate import FixedBatches
from evalution_transformers.load import CheckpointOptions, find_identity, load_checkpoint
from evalution_transformers.options import ContinuousOptions, ModelOptions
from evalution_transformers.paged import PagedBatching, asks_for_paged, find_manager_obstacle
from evalution_transformers.probe import (
    Architecture,
    find_window,
    probe_architecture,
    read_text_config,
)
from evalution_transformers.score import PaddedScorer, PrefixScorer
from evalution_transformers.upstream import CausalModel

_log = logging.getLogger(__name__)

_SCORING_WINDOW = 256
"""Spans planned together: a prefix that two windows share below the cached one is run twice."""
_BATCH_SIZE = {"cpu": 16}
_BATCH_SIZE_ELSEWHERE = 64
_PASS_TOKENS = {"cpu": 512}
_PASS_TOKENS_ELSEWHERE = 4096
_PRECISE = ("float64", "float32")
_LOADING_OPTIONS = ("dtype", "device", "attn_implementation", "adapter")


class Scorer(Protocol):
    """Scores spans in their order, some after each forward pass."""

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]: ...
    def forget(self) -> None: ...


class Generation(Protocol):
    """Completes prompts."""

    def run(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]: ...
    def forget(self) -> None:
        """Free what can be computed again."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return its part of `describe_execution`."""
        ...

    def pause(self) -> AbstractContextManager[None]:
        """Return a context in which nothing of it touches the model."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to be run, the engine's or the caller's.

    Attributes:
        identity: the files or the Hub's revision that answer; None where neither is known.
        mode: for a model of the caller's, the contexts in which it may be run.
        execution: its own part of `describe_execution`.
        dtype: the precision that its layers compute in, where it isn't that of its weights.
    """

    model: CausalModel
    tokenizer: Tokenizer
    architecture: Architecture
    max_model_len: int
    batch_size: int
    identity: Mapping[str, Any] | None
    mode: EvalMode | None = None
    execution: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dtype: str | None = None


def load_model(options: CheckpointOptions, model: Model) -> LoadedModel:
    """Load a checkpoint and try which forms of forward pass it allows."""
    checkpoint = load_checkpoint(options, model)
    identity = find_identity(model, checkpoint, options.adapter)
    return examine_model(options, checkpoint.model, checkpoint.tokenizer, identity)


def attach_model(
    options: ModelOptions, handles: Mapping[str, Any], model: Model | None
) -> LoadedModel:
    """Take the model and tokenizer of `handles`, which stay the caller's.

    Raises:
        ConfigurationError: a handle is missing or of another kind, or an option of loading is set.
    """
    refuse_loading_options(find_changed_options(options, _LOADING_OPTIONS))
    return examine_handles(options, *read_handles(handles), model or Model())


def examine_handles(
    options: ModelOptions, handle: Any, tokenizer: Any, named: Model
) -> LoadedModel:
    """Try, in eval mode, which forms of forward pass a model of the caller's allows.

    `named` describes it as in `attach`; its `chat_template_kwargs` count.
    """
    model = unwrap_model(handle)
    mode = eval_mode(model)
    with mode():
        return examine_model(options, model, wrap_tokenizer(tokenizer, model, named), None, mode)


def examine_model(
    options: ModelOptions,
    model: CausalModel,
    tokenizer: Tokenizer,
    identity: Mapping[str, Any] | None,
    mode: EvalMode | None = None,
) -> LoadedModel:
    """Try which forms of forward pass a model in memory allows.

    Raises:
        ConfigurationError: it isn't causal, or `max_model_len` is more than it has.
    """
    window = find_window(model, options.max_model_len)
    rows = None if options.batch_size == "auto" else options.batch_size
    return LoadedModel(
        model,
        tokenizer,
        probe_architecture(model, window),
        window,
        rows or _BATCH_SIZE.get(model.device.type, _BATCH_SIZE_ELSEWHERE),
        identity,
        mode,
    )


def make_compat_session(
    options: ModelOptions,
    capabilities: frozenset[Capability],
    loaded: LoadedModel,
) -> TransformersSession:
    """Make a session that generates in fixed batches."""
    return _make_session(options, capabilities, loaded, _fixed_batches(loaded), None)


def make_session(
    options: ContinuousOptions, capabilities: frozenset[Capability], loaded: LoadedModel
) -> TransformersSession:
    """Make a session with continuous batching; `describe_execution` says what it falls back from.

    The batching is upstream's manager's, else that of the forward passes, else fixed batches.
    """
    obstacle = find_manager_obstacle(loaded.model)
    if loaded.mode is not None:
        obstacle = "the model is the caller's"
    asked = asks_for_paged(options)
    flash = str(getattr(loaded.model.config, "_attn_implementation", "")).startswith("flash")
    pays = flash and loaded.model.device.type == "cuda"
    pass_tokens = options.pass_tokens or default_pass_tokens(loaded.model.device)
    if obstacle is None and options.paged is not False and (asked or pays):
        paged = PagedBatching(
            loaded.model,
            rows=loaded.batch_size,
            max_model_len=loaded.max_model_len,
            pass_tokens=pass_tokens,
            options=options,
            others=_fixed_batches(loaded),
        )
        return _make_session(options, capabilities, loaded, paged, None)
    fallback = f"paged attention: {obstacle}" if asked else None
    architecture = loaded.architecture
    if not architecture.shares_prefixes:
        fallback = f"continuous batching: {architecture.obstacle}"
        capabilities -= {Capability.CONTINUOUS_BATCHING}
    if fallback is not None:
        _log.warning("%s falls back, without %s", type(options).__name__, fallback)
    generation: Generation = _fixed_batches(loaded)
    if architecture.shares_prefixes:
        generation = ContinuousBatching(
            Forward(loaded.model, splits=architecture.splits),
            additive_mask=architecture.additive_mask,
            rows=loaded.batch_size,
            pass_tokens=pass_tokens,
            beams=_fixed_batches(loaded),
        )
    return _make_session(options, capabilities, loaded, generation, fallback)


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
    tokens = pass_tokens or default_pass_tokens(forward.device)
    if not architecture.shares_prefixes:
        return PaddedScorer(forward, pass_tokens=tokens, equal_lengths=architecture.equal_lengths)
    return PrefixScorer(
        forward,
        additive_mask=architecture.additive_mask,
        pass_tokens=tokens,
        keeps_prefix=keeps_prefix,
    )


class TransformersSession(TokenSession):
    """Runs any model whose forward pass and `generate` are those of Transformers.

    Args:
        engine: the engine's public name.
        capabilities: those of `generation` and the scorer together.
        model: the model; whoever loaded it decides about its mode and gradients.
        tokenizer: text to ids and back.
        max_model_len: tokens that the model is fed at most.
        batch_size: prompts that are completed side by side.
        scorer: scores spans.
        generation: completes prompts.
        execution: the part of `describe_execution` beyond device, dtype and attention.
        identity: the return value of `identity`.
        mode: for a model of the caller's, the contexts in which it may be run.
        dtype: the precision of the arithmetic, where it isn't that of the model's weights.
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
        execution: Mapping[str, Any],
        identity: Mapping[str, Any] | None,
        mode: EvalMode | None = None,
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
            model_vocabulary=int(read_text_config(model.config).vocab_size),
        )
        self._model: CausalModel | None = model
        self._scorer: Scorer | None = scorer
        self._generation_path: Generation | None = generation
        self._mode = mode
        self._identity = identity
        self._execution: dict[str, Any] = {
            "device": find_device_name(model),
            "dtype": dtype,
            "attention": getattr(model.config, "_attn_implementation", None),
            **execution,
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
        assert self._scorer is not None
        assert self._generation_path is not None
        steps = self._scorer.score(spans)
        return run_steps(steps, self._mode or self._generation_path.pause)

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
        if self._mode is None:
            empty_cache()


def default_pass_tokens(device: torch.device) -> int:
    """Return the tokens of one forward pass that keep a device of this kind busy."""
    return _PASS_TOKENS.get(device.type, _PASS_TOKENS_ELSEWHERE)


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


def _make_session(
    options: ModelOptions,
    capabilities: frozenset[Capability],
    loaded: LoadedModel,
    generation: Generation,
    fallback: str | None,
) -> TransformersSession:
    architecture = loaded.architecture
    quantized: Any = getattr(loaded.model.config, "quantization_config", None)
    method: Any = getattr(quantized, "quant_method", None)
    is_attached = loaded.mode is not None
    return TransformersSession(
        engine=type(options).__name__,
        capabilities=capabilities,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        max_model_len=loaded.max_model_len,
        batch_size=loaded.batch_size,
        scorer=make_scorer(
            loaded.model,
            architecture,
            pass_tokens=options.pass_tokens,
            keeps_prefix=not is_attached,
        ),
        generation=generation,
        execution={
            "fallback": fallback,
            "scoring": "shared prefixes" if architecture.shares_prefixes else "padded rows",
            "scoring_fallback": architecture.obstacle,
            "quantization": None if method is None else str(getattr(method, "value", method)),
            "attached": is_attached,
            **loaded.execution,
        },
        identity=loaded.identity,
        mode=loaded.mode,
        dtype=loaded.dtype,
    )


def _fixed_batches(loaded: LoadedModel) -> FixedBatches:
    return FixedBatches(loaded.model, loaded.batch_size if loaded.architecture.pads else 1)
