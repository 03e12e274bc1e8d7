"""The arguments of SGLang's engine, from options and model, checked against its version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalution_core import ConfigurationError, Model
from evalution_enginekit.runtime import (
    SET_BY_THE_ENGINE,
    further_arguments,
    refuse_unknown,
    set_options,
)
from evalution_sglang.installation import Runtime, described_version, device_found

if TYPE_CHECKING:
    from evalution_sglang.engine import SGLang

_NAMED = (
    "tp_size",
    "dp_size",
    "pp_size",
    "dtype",
    "quantization",
    "load_format",
    "kv_cache_dtype",
    "mem_fraction_static",
    "max_running_requests",
    "max_total_tokens",
    "max_prefill_tokens",
    "chunked_prefill_size",
    "page_size",
    "schedule_policy",
    "disable_radix_cache",
    "attention_backend",
    "sampling_backend",
    "enable_deterministic_inference",
    "random_seed",
)
_ELSEWHERE = {
    "model_path": "model.path",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "tokenizer_path": "model.tokenizer_path",
    "context_length": "the engine's max_model_len",
    "device": "the engine's device",
}
_FIXED = ("incremental_streaming_output", "log_level", "server_args", "skip_tokenizer_init")
"""What the session relies on, or, with `log_level`, has another way for: environment.QUIET."""
_CANNOT = {
    "api_key": "nothing listens",
    "chat_template": "chats are rendered before SGLang gets them",
    "custom_sigquit_handler": "the engine lets no process of SGLang end this one",
    "enable_lora": "adapters are chosen by a request, and requests can't name one",
    "is_embedding": "the engine is for models that generate",
    "node_rank": "an engine runs on one machine",
    "nnodes": "an engine runs on one machine",
    "preferred_sampling_params": "each request says how it is sampled",
    "reasoning_parser": "texts are given as the model wrote them",
    "sampling_defaults": "each request says how it is sampled",
    "tokenizer_mode": "nothing is tokenized in SGLang",
    "tokenizer_worker_num": "nothing is tokenized in SGLang",
    "tool_call_parser": "texts are given as the model wrote them",
}
_TORCHS_OWN = ("cuda", "xpu")
"""Devices that torch knows without a plug-in."""
_REFUSED = {
    **{name: f"set {place}" for name, place in _ELSEWHERE.items()},
    **dict.fromkeys(_FIXED, SET_BY_THE_ENGINE),
    **_CANNOT,
}
_ABOUT_THE_MODEL = (
    "trust_remote_code",
    "revision",
    "dtype",
    "quantization",
    "model_impl",
    "model_config_parser",
)


def arguments(engine: SGLang, model: Model, path: str, runtime: Runtime) -> dict[str, Any]:
    """What SGLang's engine is called with, but for `context_length`.

    Raises:
        ConfigurationError: an argument is set twice, has another place, or doesn't exist.
    """
    named = set_options(engine, _NAMED)
    given = named | further_arguments(
        {"sglang_kwargs": engine.sglang_kwargs or {}, "model.model_kwargs": model.model_kwargs},
        refused=_REFUSED,
        taken=named,
    )
    refuse_unknown(given, set(runtime.arguments.__struct_fields__), described_version())
    if "schedule_policy" not in given and not given.get("disable_radix_cache"):
        # What is in the cache is used before it is evicted.
        given["schedule_policy"] = "lpm"
    return {
        **given,
        "device": _device(engine),
        "model_path": path,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
        "skip_tokenizer_init": True,
        "incremental_streaming_output": True,
    }


def _device(engine: SGLang) -> str:
    found = device_found()
    if engine.device in _TORCHS_OWN and found == "cpu":
        # Upstream starts its processes all the same, which die without saying why.
        raise ConfigurationError(
            f"device={engine.device!r}: torch finds only a CPU here; leave device out, or install "
            f"the device's driver and a torch that is built for it"
        )
    return engine.device or found


def model_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that decide how long the model's own window is, by their names there."""
    found = {name: given[name] for name in _ABOUT_THE_MODEL if name in given}
    if "json_model_override_args" in given:
        found["model_override_args"] = given["json_model_override_args"]
    return found
