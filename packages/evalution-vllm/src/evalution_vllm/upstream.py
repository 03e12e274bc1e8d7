"""vLLM's API, as far as it is used; `tools/check_upstream_api.py` compares it with the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Logprobs(Protocol):
    """Log-probabilities by position: the token itself first, then the requested ones."""

    start_indices: list[int]
    end_indices: list[int]
    token_ids: list[int]
    logprobs: list[float]

    def __len__(self) -> int: ...


class Completion(Protocol):
    token_ids: Sequence[int]
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class Output(Protocol):
    request_id: str
    prompt_logprobs: Logprobs | None
    outputs: list[Completion]
    finished: bool
    num_cached_tokens: int | None


class StepEngine(Protocol):
    """The calls for single requests."""

    def add_request(self, request_id: str, prompt: Any, params: Any) -> Any: ...
    def step(self) -> Sequence[Output]: ...
    def abort_request(self, request_ids: list[str]) -> None: ...
    def reset_prefix_cache(self) -> bool: ...


class BatchEngine(Protocol):
    """The call that completes a whole batch."""

    def generate(
        self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True
    ) -> list[Output]: ...
    def reset_prefix_cache(self) -> bool: ...


class MakesParameters(Protocol):
    def __call__(
        self,
        *,
        max_tokens: int | None = ...,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        stop_token_ids: list[int] | None = ...,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        logprob_token_ids: list[int] | None = None,
        skip_reading_prefix_cache: bool | None = ...,
        flat_logprobs: bool = False,
        detokenize: bool = True,
        output_kind: Any = ...,
        stream_interval: int | None = None,
    ) -> Any: ...


UPSTREAM = {
    "Logprobs": "vllm.logprobs.FlatLogprobs",
    "Completion": "vllm.outputs.CompletionOutput",
    "Output": "vllm.outputs.RequestOutput",
    "StepEngine": "vllm.v1.engine.llm_engine.LLMEngine",
    "BatchEngine": "vllm.LLM",
    "MakesParameters": "vllm.SamplingParams",
}
OPTION_FIELDS = {
    "vllm.engine.arg_utils.EngineArgs": (
        "attention_backend",
        "block_size",
        "cpu_offload_gb",
        "disable_log_stats",
        "dtype",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "load_format",
        "logprobs_mode",
        "long_prefill_token_threshold",
        "max_logprobs",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "model",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "quantization",
        "revision",
        "seed",
        "skip_tokenizer_init",
        "tensor_parallel_size",
        "trust_remote_code",
    )
}
