"""SGLang's API, as far as it is used; `tools/check_upstream_api.py` compares it with the source."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol


class ModelConfig(Protocol):
    """The configuration that SGLang reads of a checkpoint before it loads it."""

    context_len: int
    vocab_size: int
    dtype: Any
    quantization: str | None
    hf_config: Any
    hf_eos_token_id: set[int] | None


class TokenizerManager(Protocol):
    """The part of the engine that lives in this process."""

    model_config: ModelConfig
    rid_to_state: dict[str, Any]
    max_req_input_len: int
    recv_from_detokenizer: Any
    send_to_scheduler: Any
    _subprocess_watchdog: Watchdog | None

    def abort_request(self, rid: str = "") -> None: ...
    async def flush_cache(self, timeout_s: float | None = None) -> Any: ...


class Engine(Protocol):
    loop: asyncio.AbstractEventLoop
    tokenizer_manager: TokenizerManager
    port_args: Any
    send_to_rpc: Any

    def get_all_child_pids(self) -> list[int]: ...
    def get_server_info(self) -> dict[str, Any]: ...
    def shutdown(self) -> None: ...
    async def async_generate(
        self,
        *,
        sampling_params: Any = None,
        input_ids: Any = None,
        return_logprob: Any = False,
        logprob_start_len: Any = None,
        top_logprobs_num: Any = None,
        token_ids_logprob: Any = None,
        stream: bool = False,
        rid: Any = None,
    ) -> Any: ...


class MakesEngine(Protocol):
    def __call__(self, **kwargs: Any) -> Engine: ...


class MakesModelConfig(Protocol):
    def __call__(
        self,
        model_path: str,
        *,
        trust_remote_code: bool = True,
        revision: str | None = None,
        model_override_args: str = "{}",
        dtype: str = "auto",
        quantization: str | None = None,
        model_impl: str = ...,
        model_config_parser: str = "auto",
    ) -> ModelConfig: ...


class MakesSampling(Protocol):
    """SGLang makes these of the mapping that a request carries."""

    def __call__(
        self,
        *,
        max_new_tokens: int | None = ...,
        stop_token_ids: Sequence[int] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = ...,
        ignore_eos: bool = False,
        stream_interval: int | None = None,
        sampling_seed: int | None = None,
    ) -> Any: ...


class Watchdog(Protocol):
    """Signals this process when one of the engine's ends."""

    def stop(self) -> None: ...


UPSTREAM = {
    "Engine": "sglang.srt.entrypoints.engine.Engine",
    "MakesEngine": "sglang.srt.entrypoints.engine.Engine",
    "MakesModelConfig": "sglang.srt.configs.model_config.ModelConfig",
    "MakesSampling": "sglang.srt.sampling.sampling_params.SamplingParams",
    "ModelConfig": "sglang.srt.configs.model_config.ModelConfig",
    "TokenizerManager": "sglang.srt.managers.tokenizer_manager.TokenizerManager",
    "Watchdog": "sglang.srt.utils.watchdog.SubprocessWatchdog",
}
OPTION_FIELDS = {
    "sglang.srt.arg_groups.fields.device.Device": ("device", "random_seed"),
    "sglang.srt.arg_groups.fields.exec_.ExecDeterministic": ("enable_deterministic_inference",),
    "sglang.srt.arg_groups.fields.exec_.ExecKernel": ("attention_backend", "sampling_backend"),
    "sglang.srt.arg_groups.fields.memory.Memory": ("disable_radix_cache",),
    "sglang.srt.arg_groups.fields.model.Model": (
        "context_length",
        "dtype",
        "json_model_override_args",
        "kv_cache_dtype",
        "load_format",
        "model_config_parser",
        "model_impl",
        "model_path",
        "quantization",
        "revision",
        "trust_remote_code",
    ),
    "sglang.srt.arg_groups.fields.parallel.Parallel": ("dp_size", "pp_size", "tp_size"),
    "sglang.srt.arg_groups.fields.schedule.Schedule": (
        "chunked_prefill_size",
        "max_prefill_tokens",
        "max_running_requests",
        "max_total_tokens",
        "mem_fraction_static",
        "page_size",
        "schedule_policy",
    ),
    "sglang.srt.arg_groups.fields.serving.Serving": (
        "incremental_streaming_output",
        "skip_tokenizer_init",
    ),
}
