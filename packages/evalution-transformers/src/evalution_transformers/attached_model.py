"""A model that belongs to the caller: taken out of its handles, and the same after each step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import torch

from evalution_core import ConfigurationError, Model
from evalution_enginekit import Tokenizer
from evalution_enginekit.tokenizer import find_given_tokenizer, parse_eos_ids
from evalution_transformers.upstream import CausalModel

T = TypeVar("T")
EvalMode = Callable[[], AbstractContextManager[None]]
"""Returns a context in which a model may be run."""


def read_handles(handles: object) -> tuple[Any, Any]:
    """Return the model and the tokenizer among the handles of `attach`.

    Raises:
        ConfigurationError: `handles` is no mapping, or lacks one of them.
    """
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


def refuse_loading_options(changed: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if options of loading are set for a model in memory.

    Args:
        changed: those options of loading that aren't at their defaults.
    """
    if changed:
        raise ConfigurationError(
            f"{', '.join(changed)} can't be set for a model that is loaded already: attach takes "
            f"it as it is"
        )


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


def wrap_tokenizer(given: Any, model: CausalModel, template: Model) -> Tokenizer:
    """Return a tokenizer object of the caller's as the kit's.

    Args:
        given: a tokenizer of Transformers or of the kit.
        model: its generation settings declare which tokens end a generation.
        template: its `chat_template_kwargs` are variables of the chat template.

    Raises:
        ConfigurationError: it is of another kind, or has no chat template for the variables.
    """
    is_transformers = hasattr(given, "encode") and hasattr(given, "added_tokens_decoder")
    if not (is_transformers or hasattr(given, "leading_ids")):
        raise ConfigurationError(
            f"attach takes a tokenizer of Transformers or of the kit, got {type(given).__name__}"
        )
    return find_given_tokenizer(template, given, lambda: read_declared_eos(model))


def read_declared_eos(model: CausalModel) -> frozenset[int]:
    """Return the ids of the tokens that end a generation by the model's generation settings."""
    return parse_eos_ids(getattr(model.generation_config, "eos_token_id", None))


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
            with torch.autocast(model.device.type, enabled=False):
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
