"""The arguments of vLLM's `LLM`: from options and model, checked against the installed version."""

from __future__ import annotations

import os
from dataclasses import fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evalution_core import Model
from evalution_enginekit.runtime import (
    SET_BY_THE_ENGINE,
    further_arguments,
    refuse_unknown,
    set_options,
)
from evalution_vllm.installation import described_version

if TYPE_CHECKING:
    from evalution_vllm.engine import VLLM

_NAMED = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "dtype",
    "quantization",
    "load_format",
    "kv_cache_dtype",
    "attention_backend",
    "enforce_eager",
    "enable_prefix_caching",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "swap_space",
    "cpu_offload_gb",
    "seed",
)
_ELSEWHERE = {
    "model": "model.path",
    "tokenizer": "model.tokenizer_path",
    "tokenizer_revision": "model.tokenizer_kwargs",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "max_model_len": "the engine's max_model_len",
}
_FIXED = ("skip_tokenizer_init", "logprobs_mode", "max_logprobs", "runner", "convert")
"""What the session relies on: raw log-probabilities, no tokenizer of vLLM's own, generation."""
_CANNOT = {
    "enable_lora": "adapters are chosen by a request, and requests can't name one",
    "generation_config": "each request says how it is sampled",
    "override_generation_config": "each request says how it is sampled",
    "reasoning_parser": "texts are given as the model wrote them",
    "tokenizer_mode": "nothing is tokenized in vLLM",
}
_REFUSED = {
    **{name: f"set {place}" for name, place in _ELSEWHERE.items()},
    **dict.fromkeys(_FIXED, SET_BY_THE_ENGINE),
    **_CANNOT,
}
_ABOUT_THE_MODEL = (
    "model",
    "revision",
    "code_revision",
    "trust_remote_code",
    "skip_tokenizer_init",
    "dtype",
    "quantization",
    "load_format",
    "config_format",
    "hf_config_path",
    "hf_overrides",
    "hf_token",
    "model_impl",
    "download_dir",
)
_CPU_CACHE_BYTES = 1 << 30
_CPU_BLOCK = 32
PROMPT_PART = 1024
"""Tokens of one prompt in one step. Runners of vLLM's first generation hold logits
`[tokens, vocabulary]` for the part of a prompt whose log-probabilities they compute."""


def arguments(engine: VLLM, model: Model, path: str, vllm: ModuleType) -> dict[str, Any]:
    """What `LLM` is called with, but for `max_model_len`.

    Raises:
        ConfigurationError: an argument is set twice, has another place, or doesn't exist.
    """
    named = {name: value for name in _NAMED if (value := getattr(engine, name)) is not None}
    given = named | _further(engine, model)
    known = {field.name for field in fields(vllm.EngineArgs)}
    refuse_unknown(given, known, described_version())
    given |= _defaults(given, vllm)
    return {
        **given,
        "model": path,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
        "skip_tokenizer_init": True,
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": -1,
    }


def model_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that decide how long the model's own window is."""
    return {name: given[name] for name in _ABOUT_THE_MODEL if name in given}


def _further(engine: VLLM, model: Model) -> dict[str, Any]:
    return further_arguments(
        {"vllm_kwargs": engine.vllm_kwargs or {}, "model.model_kwargs": model.model_kwargs},
        refused=_REFUSED,
        taken=set_options(engine, _NAMED),
    )


def _defaults(given: dict[str, Any], vllm: ModuleType) -> dict[str, Any]:
    """Where vLLM's own default doesn't suit an evaluation."""
    defaults: dict[str, Any] = {"disable_log_stats": True}
    if vllm.platforms.current_platform.is_cpu():
        sized = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
        # Upstream takes nearly all memory there is, and refuses to start where less is free.
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ and not any(name in given for name in sized):
            defaults["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        # Upstream's 128 are more than most contexts have that are worth sharing.
        defaults["block_size"] = _CPU_BLOCK
    return {name: value for name, value in defaults.items() if name not in given}
