"""TensorRT-LLM's API, as far as it is used.

`tools/check_upstream_api.py` compares it with recorded signatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self


class Tensor(Protocol):
    """A tensor of torch, in main memory."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __getitem__(self, at: Any) -> Tensor: ...
    def float(self) -> Tensor: ...
    def numpy(self) -> Any: ...


class Logprob(Protocol):
    """`rank` is 1 where no token is likelier, or where it is listed first among the likeliest."""

    logprob: float
    rank: int | None


TokenLogprobs = Sequence[Mapping[int, Logprob]]


class Completion(Protocol):
    token_ids: list[int]
    prompt_logprobs: TokenLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None

    @property
    def token_ids_diff(self) -> list[int]: ...
    @property
    def logprobs_diff(self) -> TokenLogprobs: ...


class Output(Protocol):
    """A request that runs, with its results so far; iterating it waits for more."""

    cached_tokens: int

    @property
    def outputs(self) -> list[Completion]: ...
    @property
    def context_logits(self) -> Tensor | None: ...
    @property
    def finished(self) -> bool: ...
    def abort(self) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Self: ...


class Executor(Protocol):
    """The private object of an engine that runs the requests, in processes of its own."""

    def is_shutdown(self) -> bool: ...
    def _handle_background_error(self, error: Exception | str | None = None) -> None: ...


class Engine(Protocol):
    args: Any
    _executor: Executor

    def generate_async(
        self,
        inputs: Any,
        sampling_params: Any = None,
        *,
        streaming: bool = False,
        cache_salt: str | None = None,
    ) -> Output: ...
    def generate(
        self,
        inputs: Any,
        sampling_params: Any = None,
        use_tqdm: bool = True,
        *,
        cache_salt: Any = None,
    ) -> list[Output]: ...
    def shutdown(self) -> None: ...


class MakesEngine(Protocol):
    def __call__(
        self,
        model: str,
        *,
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
    ) -> Engine: ...


class MakesParameters(Protocol):
    def __call__(
        self,
        *,
        end_id: int | None = None,
        pad_id: int | None = None,
        max_tokens: int = 32,
        stop_token_ids: list[int] | None = None,
        include_stop_str_in_output: bool = False,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        return_context_logits: bool = False,
        detokenize: bool = True,
    ) -> Any: ...


class RequestError(Protocol):
    """Ends one request alone."""


UPSTREAM = {
    "Logprob": "tensorrt_llm.executor.result.Logprob",
    "Completion": "tensorrt_llm.executor.result.CompletionOutput",
    "Output": "tensorrt_llm.llmapi.llm.RequestOutput",
    "Executor": "tensorrt_llm.executor.executor.GenerationExecutor",
    "Engine": "tensorrt_llm.LLM",
    "MakesEngine": "tensorrt_llm.LLM",
    "MakesParameters": "tensorrt_llm.SamplingParams",
    "RequestError": "tensorrt_llm.executor.utils.RequestError",
}
OPTION_FIELDS = {
    "tensorrt_llm.llmapi.llm_args.TorchLlmArgs": (
        "attn_backend",
        "backend",
        "dtype",
        "kv_cache_config",
        "max_batch_size",
        "max_beam_width",
        "max_input_len",
        "max_num_tokens",
        "max_seq_len",
        "model",
        "num_postprocess_workers",
        "pipeline_parallel_size",
        "revision",
        "skip_tokenizer_init",
        "tensor_parallel_size",
        "tokenizer",
        "tokenizer_revision",
        "trust_remote_code",
    ),
    "tensorrt_llm.llmapi.llm_args.KvCacheConfig": (
        "dtype",
        "enable_block_reuse",
        "free_gpu_memory_fraction",
    ),
}
