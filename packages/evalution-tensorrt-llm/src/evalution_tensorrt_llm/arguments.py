"""The arguments of `tensorrt_llm.LLM`, from options and model, checked against the release."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

from evalution_core import ConfigurationError, Model
from evalution_enginekit.runtime import (
    SET_BY_THE_ENGINE,
    collect_arguments,
    find_changed_options,
    refuse_unknown,
)
from evalution_tensorrt_llm.options import TensorRTLLMOptions
from evalution_tensorrt_llm.runtime import describe_version

_CACHE = "kv_cache_config"
_CACHE_NAMED = {
    "free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "dtype": "kv_cache_dtype",
    "enable_block_reuse": "enable_block_reuse",
}
_OWN = ("continuous_batching", "runtime_backend", *_CACHE_NAMED.values())
"""Options that are no arguments of `LLM`, or become such in another way."""
_OTHER_PLACES = {
    "model": "model.path",
    "tokenizer": "model.tokenizer_path",
    "tokenizer_revision": "model.tokenizer_kwargs",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "max_seq_len": "the engine's max_model_len",
    "backend": "the engine's runtime_backend",
}
_FIXED = ("skip_tokenizer_init", "max_input_len", "max_beam_width", "num_postprocess_workers")
"""Arguments that the session relies on: ids, not text; one beam; results of the executor itself."""
_REFUSED = {
    **{name: f"set {place}" for name, place in _OTHER_PLACES.items()},
    **dict.fromkeys(_FIXED, SET_BY_THE_ENGINE),
}
_STEP_TOKENS = 8192
"""Upstream's `max_num_tokens`, which has to hold a whole prompt."""


def make_arguments(
    options: TensorRTLLMOptions, model: Model, path: str, module: ModuleType, *, sequence: int
) -> dict[str, Any]:
    """Return the arguments of `LLM` that let it run sequences of up to `sequence` tokens.

    Raises:
        ConfigurationError: an argument is set twice, has another place, doesn't exist, or
            contradicts the length.
    """
    declared = module.llmapi.llm_args
    release = describe_version()
    given = collect_arguments(
        options,
        model,
        "llm_kwargs",
        own=_OWN,
        refused=_REFUSED,
        known=declared.TorchLlmArgs.model_fields,
        runtime=release,
    )
    cache = _cache_arguments(options, given.pop(_CACHE, {}))
    refuse_unknown(cache, set(declared.KvCacheConfig.model_fields), release, f"{_CACHE} field")
    if options.runtime_backend is not None:
        given["backend"] = options.runtime_backend
    return {
        **given,
        "max_num_tokens": _step_tokens(given, sequence),
        "max_seq_len": sequence,
        "max_input_len": sequence,
        _CACHE: declared.KvCacheConfig(**cache),
        "model": path,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
        "skip_tokenizer_init": True,
    }


def _cache_arguments(options: TensorRTLLMOptions, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{_CACHE} must be a mapping of its fields, got {type(given).__name__}"
        )
    cache = dict(cast("Mapping[str, Any]", given))
    changed = find_changed_options(options, _CACHE_NAMED.values())
    for field, option in _CACHE_NAMED.items():
        if field in cache and option in changed:
            raise ConfigurationError(f"{option} is set twice, the second time in {_CACHE}")
        if (value := getattr(options, option)) is not None:
            cache.setdefault(field, value)
    return cache


def _step_tokens(given: Mapping[str, Any], sequence: int) -> int:
    asked = given.get("max_num_tokens")
    if asked is None:
        return max(_STEP_TOKENS, sequence)
    if asked < sequence and not given.get("enable_chunked_prefill"):
        raise ConfigurationError(
            f"max_num_tokens={asked} must be at least {sequence}, the longest sequence, because a "
            f"prompt is run in one step; raise it, lower max_model_len, or set "
            f"enable_chunked_prefill in llm_kwargs"
        )
    return int(asked)
