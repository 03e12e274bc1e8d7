"""From an engine's options and a model to a session; imported once a session is asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch

from evalution_core import Capability, ConfigurationError, Model
from evalution_enginekit import Tokenizer
from evalution_enginekit.tokenizer_files import given_tokenizer
from evalution_transformers.architecture import Architecture, examine, window_of
from evalution_transformers.fixed_batches import FixedBatches
from evalution_transformers.forward import CausalModel, Forward
from evalution_transformers.identity import identity_of
from evalution_transformers.lending import Lending, lending
from evalution_transformers.loading import Checkpoint, Placement, declared_eos, load_checkpoint
from evalution_transformers.paged import PagedBatching, check_knobs, manager_problem
from evalution_transformers.refilled_rows import RefilledRows
from evalution_transformers.session import (
    Generation,
    TransformersSession,
    scorer_of,
    suiting_pass_tokens,
)

_log = logging.getLogger(__name__)

_BATCH_SIZE = {"cpu": 16}
_BATCH_SIZE_ELSEWHERE = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What both engines' options say in common."""

    engine: str
    capabilities: frozenset[Capability]
    placement: Placement
    max_model_len: int | None
    batch_size: int | None
    pass_tokens: int | None


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model that is ready to be run, whoever it belongs to."""

    model: CausalModel
    tokenizer: Tokenizer
    architecture: Architecture
    max_model_len: int
    batch_size: int
    identified: Mapping[str, Any] | None
    lent: Lending | None
    described: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What `describe_execution` tells of it besides what it tells of any model."""
    arithmetic: str | None = None
    """The dtype that its layers compute in, where it isn't that of the model's weights."""


def loaded(options: Options, model: Model) -> Runnable:
    """A checkpoint in memory, examined."""
    checkpoint = load_checkpoint(model, options.placement, options.engine)
    identified = identity_of(model, checkpoint, options.placement.adapter)
    return prepared(options, checkpoint, identified)


def prepared(
    options: Options, checkpoint: Checkpoint, identified: Mapping[str, Any] | None
) -> Runnable:
    """A checkpoint that some loader has put into memory, examined.

    `identified` is what the session's `identity` will tell.
    """
    return _runnable(options, checkpoint.model, checkpoint.tokenizer, identified, None)


def borrowed(options: Options, handles: Mapping[str, Any], named: Model | None = None) -> Runnable:
    """The caller's own model and tokenizer, examined in eval mode.

    `named` is what `attach` was told of them; its `chat_template_kwargs` count.

    Raises:
        ConfigurationError: a handle is missing, or isn't what Transformers would give, or the
            tokenizer has no chat template for the variables.
    """
    found: Any = handles
    names = ("model", "tokenizer")
    is_mapping = isinstance(found, Mapping)
    missing = [name for name in names if not is_mapping or name not in handles]
    if missing:
        came = (
            f"it has: {', '.join(map(str, handles)) or 'nothing'}"
            if is_mapping
            else (f"got a {type(handles).__name__}")
        )
        raise ConfigurationError(
            f"attach needs a mapping with model and tokenizer; {' and '.join(missing)} missing; "
            f"{came}"
        )
    model = _unwrapped(handles["model"])
    lent = lending(model)
    with lent():
        tokenizer = _tokenizer(handles["tokenizer"], model, named or Model())
        return _runnable(options, model, tokenizer, None, lent)


def session_of(
    options: Options, runnable: Runnable, generation: Generation, fallback: str | None = None
) -> TransformersSession:
    """A session that completes prompts by `generation`."""
    architecture = runnable.architecture
    quantized: Any = getattr(runnable.model.config, "quantization_config", None)
    method: Any = getattr(quantized, "quant_method", None)
    described = {
        "fallback": fallback,
        "scoring": "shared prefixes" if architecture.packs else "padded rows",
        "scoring_fallback": architecture.why_not,
        "quantization": None if method is None else str(getattr(method, "value", method)),
        "attached": runnable.lent is not None,
        **runnable.described,
    }
    return TransformersSession(
        engine=options.engine,
        capabilities=options.capabilities,
        model=runnable.model,
        tokenizer=runnable.tokenizer,
        max_model_len=runnable.max_model_len,
        batch_size=runnable.batch_size,
        scorer=scorer_of(
            runnable.model,
            architecture,
            pass_tokens=options.pass_tokens,
            keeps_trunk=runnable.lent is None,
        ),
        generation=generation,
        described=described,
        identified=runnable.identified,
        lent=runnable.lent,
        dtype=runnable.arithmetic,
    )


def fixed_batches(runnable: Runnable) -> FixedBatches:
    """Generation by upstream's `generate`, which any causal model has."""
    return FixedBatches(runnable.model, runnable.batch_size if runnable.architecture.pads else 1)


@dataclass(frozen=True, slots=True)
class PagedWishes:
    """Whether upstream's manager is wanted (None: where it pays), and how."""

    wanted: bool | None
    knobs: Mapping[str, Any]
    cache_tokens: int | None


KNOBS = (
    "manual_eviction",
    "allow_block_sharing",
    "max_batch_tokens",
    "max_blocks_per_request",
    "use_async_batching",
    "use_cuda_graph",
    "q_padding_interval_size",
    "kv_padding_interval_size",
    "max_cached_graphs",
)
"""Options of an engine that are settings of upstream's manager."""


def paged_wishes(
    wanted: bool | None, knobs: Mapping[str, Any], cache_tokens: int | None
) -> PagedWishes:
    """What options ask of upstream's manager; a knob that is None is left at its default.

    Raises:
        ConfigurationError: the installed version lacks a knob, or the manager is kept off.
    """
    given = {name: value for name, value in knobs.items() if value is not None}
    names = [*given, *(["cache_tokens"] if cache_tokens is not None else [])]
    if names and wanted is False:
        raise ConfigurationError(
            f"{', '.join(names)}: for upstream's manager alone, and paged=False keeps it off"
        )
    check_knobs(knobs)
    return PagedWishes(wanted, given, cache_tokens)


def continuous_session(
    options: Options, runnable: Runnable, wishes: PagedWishes
) -> TransformersSession:
    """A session that refills its rows: by upstream's manager, by itself, or else in batches."""
    problem = manager_problem(runnable.model)
    if runnable.lent is not None:
        problem = "the model is the caller's"
    asked = bool(wishes.wanted or wishes.knobs)
    flash = str(getattr(runnable.model.config, "_attn_implementation", "")).startswith("flash")
    pays = flash and runnable.model.device.type == "cuda"
    if problem is None and wishes.wanted is not False and (asked or pays):
        paged = PagedBatching(
            runnable.model,
            rows=runnable.batch_size,
            max_model_len=runnable.max_model_len,
            pass_tokens=options.pass_tokens or suiting_pass_tokens(runnable.model.device),
            knobs=wishes.knobs,
            others=fixed_batches(runnable),
            cache_tokens=wishes.cache_tokens,
        )
        return session_of(options, runnable, paged)
    fallback = f"paged attention: {problem}" if asked else None
    if not runnable.architecture.packs:
        fallback = f"continuous batching: {runnable.architecture.why_not}"
        options = replace(
            options, capabilities=options.capabilities - {Capability.CONTINUOUS_BATCHING}
        )
    if fallback is not None:
        _log.warning("%s falls back, without %s", options.engine, fallback)
    if not runnable.architecture.packs:
        return session_of(options, runnable, fixed_batches(runnable), fallback)
    return session_of(options, runnable, _refilled_rows(options, runnable), fallback)


def _refilled_rows(options: Options, runnable: Runnable) -> RefilledRows:
    forward = Forward(runnable.model, splits=runnable.architecture.splits)
    return RefilledRows(
        forward,
        additive_mask=runnable.architecture.additive_mask,
        rows=runnable.batch_size,
        pass_tokens=options.pass_tokens or suiting_pass_tokens(forward.device),
        beams=fixed_batches(runnable),
    )


def _runnable(
    options: Options,
    model: CausalModel,
    tokenizer: Tokenizer,
    identified: Mapping[str, Any] | None,
    lent: Lending | None,
) -> Runnable:
    window = window_of(model, options.max_model_len)
    device = model.device.type
    return Runnable(
        model,
        tokenizer,
        examine(model, window),
        window,
        options.batch_size or _BATCH_SIZE.get(device, _BATCH_SIZE_ELSEWHERE),
        identified,
        lent,
    )


def _tokenizer(given: Any, model: CausalModel, named: Model) -> Tokenizer:
    of_transformers = hasattr(given, "encode") and hasattr(given, "added_tokens_decoder")
    if not (of_transformers or hasattr(given, "leading_ids")):
        raise ConfigurationError(
            f"attach takes a tokenizer of Transformers or of the kit, got {type(given).__name__}"
        )
    return given_tokenizer(named, given, lambda: declared_eos(model))


def _unwrapped(handle: Any) -> CausalModel:
    """The model itself, out of an adapter that works inside of its layers, and uncompiled."""
    handle = getattr(handle, "_orig_mod", handle)
    adapted = getattr(handle, "get_base_model", None)
    if callable(adapted):
        settings: Any = getattr(handle, "active_peft_config", None)
        if not getattr(settings, "is_prompt_learning", False):
            handle = adapted()
    wanted = ("config", "generation_config", "base_model", "generate", "get_output_embeddings")
    lacking = [name for name in wanted if not hasattr(handle, name)]
    if lacking or not isinstance(handle, torch.nn.Module):
        raise ConfigurationError(
            f"attach takes a causal model of Transformers, got {type(handle).__name__}; a wrapped "
            f"one (DataParallel, an accelerator's) must be unwrapped first"
        )
    return cast(CausalModel, handle)
