"""A model that belongs to the caller: taken out of its handles, and the same after each step."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from evalution_core import ConfigurationError, Model
from evalution_enginekit.runtime import find_changed_options
from evalution_enginekit.tokenizer import find_given_tokenizer
from evalution_transformers.load import EvalMode, LoadedModel, read_declared_eos
from evalution_transformers.options import ModelOptions
from evalution_transformers.runtime import CUDNN_ATTENTION
from evalution_transformers.upstream import CausalModel

LOADING_OPTIONS = ("dtype", "device", "attn_implementation", "adapter")

T = TypeVar("T")


def read_handles(options: ModelOptions, handles: object, loading: Sequence[str]) -> tuple[Any, Any]:
    """Return the model and the tokenizer among the handles of `attach`.

    Raises:
        ConfigurationError: `handles` is no mapping, or lacks one of them, or one of the options
            `loading`, which a model in memory can't follow, isn't at its default.
    """
    if changed := find_changed_options(options, loading):
        raise ConfigurationError(
            f"{', '.join(changed)} can't be set for a model that is loaded already: attach takes "
            f"it as it is"
        )
    if not isinstance(handles, Mapping):
        raise ConfigurationError(
            f"attach needs a mapping with model and tokenizer; got a {type(handles).__name__}"
        )
    given = cast("Mapping[str, Any]", handles)
    missing = [name for name in ("model", "tokenizer") if name not in given]
    if missing:
        raise ConfigurationError(
            f"attach needs a mapping with model and tokenizer; {' and '.join(missing)} missing; "
            f"it has: {', '.join(map(str, given)) or 'nothing'}"
        )
    return given["model"], given["tokenizer"]


def borrow_model(handle: Any, tokenizer: Any, template: Model | None) -> LoadedModel:
    """Return a model of the caller's, to be run in its `eval_mode`.

    Args:
        handle: a causal model of Transformers, or one that is compiled or has an adapter.
        tokenizer: one of Transformers or of the kit.
        template: its `chat_template_kwargs` are variables of the chat template.

    Raises:
        ConfigurationError: either is of another kind, or there is no chat template for variables.
    """
    model = unwrap_model(handle)
    is_transformers = hasattr(tokenizer, "encode") and hasattr(tokenizer, "added_tokens_decoder")
    if not (is_transformers or hasattr(tokenizer, "leading_ids")):
        raise ConfigurationError(
            f"attach takes a tokenizer of Transformers or of the kit, got "
            f"{type(tokenizer).__name__}"
        )
    found = find_given_tokenizer(template or Model(), tokenizer, read_declared_eos(model))
    return LoadedModel(model, found, None, eval_mode(model))


def unwrap_model(handle: Any) -> CausalModel:
    """Return the model itself, out of an adapter that works inside of its layers, uncompiled.

    Raises:
        ConfigurationError: it is no causal model of Transformers.
    """
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
    return cast("CausalModel", handle)


def eval_mode(model: CausalModel) -> EvalMode:
    """Return a maker of contexts in which `model` is in eval mode, without autocast.

    After each, the modules that were training do so again, and the model has its caller's
    generation settings.
    """
    modules = cast("torch.nn.Module", model)

    @contextmanager
    def enter() -> Generator[None]:
        training = [module for module in modules.modules() if module.training]
        settings = model.generation_config
        for module in training:
            module.training = False
        try:
            # A loop that trains under autocast may attach in it; answers are the weights' own.
            with torch.autocast(model.device.type, enabled=False), CUDNN_ATTENTION.avoid():
                yield
        finally:
            model.generation_config = settings
            for module in training:
                module.training = True

    return enter


def run_steps(steps: Iterator[T], mode: EvalMode) -> Iterator[T]:
    """Advance `steps`, each step in a context of its own: the model is untouched in between."""
    end = object()
    try:
        while True:
            with mode():
                step = next(steps, end)
            if step is end:
                return
            yield cast("T", step)
    finally:
        if isinstance(steps, Generator):
            with mode():
                steps.close()
