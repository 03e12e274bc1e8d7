"""A TensorRT-LLM that computes with the reference model.

Its calls, their parameters and its result types are upstream's (`tools/check_upstream_api.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from types import ModuleType
from typing import Any

import fake_trtllm_results as results
import fake_trtllm_worker as worker
from pydantic import BaseModel


class GenerationExecutor:
    """Made by `LLM`; hands requests to a thread that computes."""

    _errors: Queue[Exception | str]
    _is_down: bool
    _worker: worker.Worker

    @classmethod
    def _start(cls, args: TorchLlmArgs) -> GenerationExecutor:
        executor = cls.__new__(cls)
        executor._errors = Queue()
        executor._is_down = False
        executor._worker = worker.Worker(args)
        return executor

    def abort_request(self, request_id: int) -> None:
        self._worker.abort(request_id)

    def is_shutdown(self) -> bool:
        return self._is_down

    def shutdown(self) -> None:
        self._is_down = True
        self._worker.end()

    def _handle_background_error(self, error: Exception | str | None = None) -> None:
        try:
            found = self._errors.get_nowait() if error is None else error
        except Empty:
            return
        if isinstance(found, str):
            raise results.RequestError(found)
        if not isinstance(found, results.RequestError):
            self.shutdown()
        raise found

    def _die(self, error: Exception) -> None:
        """Die as a worker that is killed: callers that wait for it get no error."""
        self._worker.end()
        self._errors.put(error)


class KvCacheConfig(BaseModel, extra="forbid"):
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float | None = 0.9
    dtype: str = "auto"
    tokens_per_block: int = 32


class TorchLlmArgs(BaseModel, extra="forbid"):
    model: Any
    tokenizer: Any = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    pipeline_parallel_size: int = 1
    kv_cache_config: KvCacheConfig = ...  # pyright: ignore[reportAssignmentType]
    enable_chunked_prefill: bool = False
    max_batch_size: int = ...  # pyright: ignore[reportAssignmentType]
    max_input_len: int = ...  # pyright: ignore[reportAssignmentType]
    max_seq_len: int | None = None
    max_num_tokens: int | None = 8192
    num_postprocess_workers: int = 0
    backend: str | None = None
    attn_backend: str = "TRTLLM"
    stream_interval: int = 1


class LLM:
    args: TorchLlmArgs

    def __init__(
        self,
        model: str,
        *,
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("max_batch_size", 2048)
        self.args = TorchLlmArgs(
            model=Path(model),
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            revision=revision,
            **kwargs,
        )
        self._executor: GenerationExecutor | None = GenerationExecutor._start(self.args)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: Any = None,
        *,
        streaming: bool = False,
        cache_salt: str | None = None,
    ) -> results.RequestOutput:
        if self._executor is None or self._executor.is_shutdown():
            raise RuntimeError("LLM is shutting down")
        params: results.SamplingParams = sampling_params
        prompt = list(inputs["prompt_token_ids"])
        room = (self.args.max_seq_len or 0) - len(prompt)
        if len(prompt) > (self.args.max_num_tokens or 0) or room < 1:
            kind = results.RequestError if results.since("1.3.0rc1") else ValueError
            raise kind(f"The sum of prompt length ({len(prompt)}) should not exceed max_num_tokens")
        sequence = worker.Sequence(
            prompt,
            params,
            limit=min(params.max_tokens, room),
            stops=params._stops,
            is_greedy=params._is_greedy,
            streams=streaming,
            salt=cache_salt,
        )
        output = results.RequestOutput._of(self._executor, sequence)
        self._executor._worker.submit(sequence)
        return output

    def generate(
        self,
        inputs: Any,
        sampling_params: Any = None,
        use_tqdm: bool = True,
        *,
        cache_salt: Any = None,
    ) -> list[results.RequestOutput]:
        assert not use_tqdm
        salts = cache_salt or [None] * len(inputs)
        outputs = [
            self.generate_async(one, params, cache_salt=salt)
            for one, params, salt in zip(inputs, sampling_params, salts, strict=True)
        ]
        return [output.result() for output in outputs]

    def shutdown(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def modules() -> Iterator[tuple[str, ModuleType]]:
    """The modules of upstream that hold these, by name."""
    parts: dict[str, dict[str, Any]] = {
        "": {
            "LLM": LLM,
            "SamplingParams": results.SamplingParams,
            "__version__": str(results.RELEASE),
        },
        ".llmapi": {"LLM": LLM, "RequestOutput": results.RequestOutput},
        ".llmapi.llm_args": {"TorchLlmArgs": TorchLlmArgs, "KvCacheConfig": KvCacheConfig},
        ".executor": {},
        ".executor.utils": {"RequestError": results.RequestError},
    }
    made: dict[str, ModuleType] = {}
    for part, members in parts.items():
        name = f"tensorrt_llm{part}"
        module = made[name] = ModuleType(name)
        module.__dict__.update(members, __path__=[])
        package, _, last = name.rpartition(".")
        if package:
            setattr(made[package], last, module)
    yield from made.items()


UPSTREAM = {
    "GenerationExecutor": "tensorrt_llm.executor.executor.GenerationExecutor",
    "KvCacheConfig": "tensorrt_llm.llmapi.llm_args.KvCacheConfig",
    "TorchLlmArgs": "tensorrt_llm.llmapi.llm_args.TorchLlmArgs",
    "LLM": "tensorrt_llm.LLM",
}
