"""The engine of TensorRT-LLM, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    speed_only,
    validate_options,
)
from evalution_enginekit.runtime import check_at_least_one
from evalution_tensorrt_llm.installation import described_version, runtime

if TYPE_CHECKING:
    from evalution_tensorrt_llm.session import TensorRTLLMSession

TENSORRT_LLM_CAPABILITIES = frozenset(Capability) - {
    # Its width is fixed when the runtime starts, and its lengths are penalised in a way of its own.
    Capability.BEAMS,
    # One random generator serves the whole batch.
    Capability.SEED,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}
_AT_LEAST_ONE = (
    "batch_size",
    "scored_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_batch_size",
    "max_num_tokens",
)


@dataclass(slots=True)
class TensorRTLLM(BaseEngine):
    """Causal models on TensorRT-LLM's PyTorch backend, which works in processes of its own.

    Scripts keep their work under `if __name__ == "__main__"`. `model.path` is a folder, a Hub id or
    `builtin:tiny`; `model.model_kwargs` go the way of `llm_kwargs`. Options that TensorRT-LLM knows
    have its names and, left at None, its defaults; one that the installed release lacks is refused.

    Options:
        tensor_parallel_size, pipeline_parallel_size: devices that share the model.
        max_model_len: tokens the model is fed at most; None: what its configuration says, less
            what the runtime needs for itself, one token or two.
        dtype: precision of weights and arithmetic; `auto`: that of the checkpoint.
        free_gpu_memory_fraction: share of the free device memory that the cache takes.
        kv_cache_dtype: precision of the cache.
        enable_block_reuse: a shared prefix is computed once; scored requests stay out of it.
        max_batch_size, max_num_tokens: sequences and tokens of one step.
        attn_backend: TensorRT-LLM's name of its attention kernels.
        runtime_backend: `pytorch`, the only one that is supported.
        continuous_batching: False: fixed batches through `LLM.generate`.
        batch_size: prompts at the runtime at once; None or `auto`: as many as it can run.
        scored_tokens: tokens of scored prompts that are at the runtime at once.
        llm_kwargs: any other argument of `tensorrt_llm.LLM`; `kv_cache_config` as a mapping.
    """

    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    runtime_backend: Literal["pytorch"] | None = speed_only(default=None)
    free_gpu_memory_fraction: float | None = speed_only(default=None)
    kv_cache_dtype: str | None = None
    enable_block_reuse: bool = speed_only(default=False)
    max_batch_size: int | None = speed_only(default=None)
    max_num_tokens: int | None = speed_only(default=None)
    pipeline_parallel_size: int = 1
    attn_backend: str | None = None
    continuous_batching: bool = speed_only(default=True)
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    scored_tokens: int | None = speed_only(default=None)
    llm_kwargs: dict[str, Any] | None = None

    capabilities = TENSORRT_LLM_CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        check_at_least_one(self, _AT_LEAST_ONE)
        share = self.free_gpu_memory_fraction
        if share is not None and not 0 < share <= 1:
            raise ConfigurationError(
                f"free_gpu_memory_fraction={share} must be above 0 and at most 1"
            )

    def describe_runtime(self) -> dict[str, Any]:
        """The distribution and version of TensorRT-LLM, and the only kind of device it runs on.

        Raises:
            EngineUnavailableError: it is missing or out of range, or this is no Linux.
        """
        runtime()
        return {"version": described_version(), "device": "cuda"}

    def build(self, model: Model) -> TensorRTLLMSession:
        """Load the checkpoint.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, each
                other or the installed release.
            EngineUnavailableError: TensorRT-LLM is missing or out of range, there is no device, or
                its memory doesn't suffice.
        """
        from evalution_tensorrt_llm.loading import load  # noqa: PLC0415 - only for a session
        from evalution_tensorrt_llm.session import session_of  # noqa: PLC0415 - as above

        return session_of(self, load(self, model))
