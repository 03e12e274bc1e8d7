"""The arguments of vLLM's `LLM`, from options and model, checked against the installed version."""

from __future__ import annotations

import os
from dataclasses import fields
from types import ModuleType
from typing import Any

from evalution_core import Model
from evalution_enginekit.runtime import SET_BY_THE_ENGINE, collect_arguments
from evalution_vllm.options import VLLMOptions
from evalution_vllm.runtime import describe_version, is_cpu

_OWN = ("continuous_batching", "batch_invariant", "multiprocessing")
"""Options of the engine that aren't arguments of vLLM."""
_OTHER_PLACES = {
    "model": "model.path",
    "tokenizer": "model.tokenizer_path",
    "tokenizer_revision": "model.tokenizer_kwargs",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "max_model_len": "the engine's max_model_len",
}
_FIXED = ("skip_tokenizer_init", "logprobs_mode", "max_logprobs", "runner", "convert")
"""Arguments that the session relies on: raw log-probabilities, token ids, generation."""
_UNSUPPORTED = {
    "enable_lora": "adapters are chosen by a request, and requests can't name one",
    "generation_config": "each request says how it is sampled",
    "override_generation_config": "each request says how it is sampled",
    "reasoning_parser": "texts are given as the model wrote them",
    "tokenizer_mode": "nothing is tokenized in vLLM",
}
_REFUSED = {
    **{name: f"set {place}" for name, place in _OTHER_PLACES.items()},
    **dict.fromkeys(_FIXED, SET_BY_THE_ENGINE),
    **_UNSUPPORTED,
}
_CPU_CACHE_BYTES = 1 << 30
_CPU_BLOCK = 32


def make_arguments(
    options: VLLMOptions, model: Model, path: str, vllm: ModuleType
) -> dict[str, Any]:
    """Return the arguments of `LLM` but for `max_model_len`.

    Raises:
        ConfigurationError: an argument is set twice, has another place, or doesn't exist.
    """
    given = collect_arguments(
        options,
        model,
        "vllm_kwargs",
        own=_OWN,
        refused=_REFUSED,
        known={field.name for field in fields(vllm.EngineArgs)},
        runtime=describe_version(),
    )
    return {
        **_defaults(given, vllm),
        **given,
        "model": path,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
        "skip_tokenizer_init": True,
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": -1,
    }


def _defaults(given: dict[str, Any], vllm: ModuleType) -> dict[str, Any]:
    """Return other defaults than vLLM's where those don't suit an evaluation."""
    defaults: dict[str, Any] = {"disable_log_stats": True}
    if is_cpu(vllm):
        sized = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
        # Upstream takes nearly all memory there is, and refuses to start where less is free.
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ and not any(name in given for name in sized):
            defaults["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        # Few contexts that are worth sharing fill a block of upstream's 128.
        defaults["block_size"] = _CPU_BLOCK
    return defaults
