"""The arguments of SGLang's engine, from options and model, checked against its version."""

from __future__ import annotations

from typing import Any

from evalution_core import ConfigurationError, Model
from evalution_enginekit.runtime import SET_BY_THE_ENGINE, collect_arguments
from evalution_sglang.options import SGLangOptions
from evalution_sglang.runtime import Library, describe_version, find_device

_OWN = ("context_length", "device")
"""Options that become arguments in another way."""
_OTHER_PLACES = {
    "model_path": "model.path",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "tokenizer_path": "model.tokenizer_path",
    "context_length": "the engine's max_model_len",
    "device": "the engine's device",
}
_FIXED = ("incremental_streaming_output", "log_level", "server_args", "skip_tokenizer_init")
"""Arguments that the session relies on; of `log_level`, `runtime.QUIET` takes the place."""
_UNSUPPORTED = {
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
_ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
_TORCH_DEVICES = ("cuda", "xpu")
"""Devices that torch knows without a plug-in."""
_REFUSED = {
    **{name: f"set {place}" for name, place in _OTHER_PLACES.items()},
    **dict.fromkeys(_FIXED, SET_BY_THE_ENGINE),
    **_UNSUPPORTED,
}
_MODEL_ARGUMENTS = (
    "trust_remote_code",
    "revision",
    "dtype",
    "quantization",
    "model_impl",
    "model_config_parser",
)


def make_arguments(
    options: SGLangOptions, model: Model, path: str, sglang: Library
) -> dict[str, Any]:
    """Return the arguments of SGLang's engine but for `context_length`.

    Raises:
        ConfigurationError: an argument is set twice, has another place, or doesn't exist.
    """
    given = collect_arguments(
        options,
        model,
        "sglang_kwargs",
        own=_OWN,
        refused=_REFUSED,
        known=sglang.arguments.__struct_fields__,
        runtime=describe_version(),
    )
    if "schedule_policy" not in given and not given.get("disable_radix_cache"):
        # A cached prefix is used before it is evicted.
        given["schedule_policy"] = "lpm"
    return {
        **given,
        "device": _choose_device(options.device),
        "model_path": path,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
        "skip_tokenizer_init": True,
        "incremental_streaming_output": True,
    }


def select_model_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return those of `make_arguments` that `ModelConfig` takes, by their names there."""
    found = {name: arguments[name] for name in _MODEL_ARGUMENTS if name in arguments}
    if "json_model_override_args" in arguments:
        found["model_override_args"] = arguments["json_model_override_args"]
    return found


def choose_attention(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the kernels of attention to ask for, if SGLang's own choice can't compute in float32.

    SGLang 0.5.23 takes `fa3` on a Hopper GPU (`arg_groups/model_override_base.py`), and FlashInfer
    or its like on others, whatever the precision; they have 16 bits and less.
    """
    is_chosen = any(arguments.get(name) is not None for name in _ATTENTION)
    if arguments["device"] != "cuda" or arguments.get("dtype") != "float32" or is_chosen:
        return {}
    return {"attention_backend": "triton"}


def _choose_device(asked: str | None) -> str:
    found = find_device()
    if asked in _TORCH_DEVICES and found == "cpu":
        # Upstream starts its processes all the same, which die without a message.
        raise ConfigurationError(
            f"device={asked!r}: torch finds only a CPU here; leave device out, or install the "
            f"device's driver and a torch that is built for it"
        )
    return asked or found
