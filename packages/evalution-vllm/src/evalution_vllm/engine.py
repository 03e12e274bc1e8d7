"""The engine of vLLM, as configuration; nothing is loaded before `build`."""

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
from evalution_vllm.installation import described_version, runtime

if TYPE_CHECKING:
    from evalution_vllm.session import VLLMSession

VLLM_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}
_AT_LEAST_ONE = (
    "batch_size",
    "scored_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "block_size",
)


@dataclass(slots=True)
class VLLM(BaseEngine):
    """Causal models on vLLM, inside of this process or in processes of its own.

    `model.path` is a folder, a Hub id or `builtin:tiny`; `model.model_kwargs` go the way of
    `vllm_kwargs`. Options that vLLM knows have its names and, left at None, its defaults; one that
    the installed version lacks is an error.

    Options:
        tensor_parallel_size, pipeline_parallel_size: devices that share the model.
        gpu_memory_utilization: share of each device's memory, weights included.
        max_model_len: tokens the model is fed at most; None: what its configuration says.
        dtype: precision of weights and arithmetic; `auto`: vLLM's choice for the checkpoint.
        quantization, load_format, kv_cache_dtype, attention_backend: vLLM's names of them.
        enforce_eager: without compiled graphs.
        enable_prefix_caching: None: wherever the model allows it.
        kv_cache_memory_bytes: size of the cache; on a CPU, None is 1 GiB.
        max_num_seqs, max_num_batched_tokens: sequences and tokens of one step.
        block_size: tokens of a cache block, the unit of what is shared; on a CPU, None is 32.
        swap_space, cpu_offload_gb: GiB of main memory, for the versions that have them.
        seed: of requests that sample without one.
        batch_invariant: the same numbers whatever else is in the batch, where vLLM can do it.
        multiprocessing: the engine core in a process of its own, as upstream; needed for
            `batch_invariant`. Scripts then keep their work under `if __name__ == "__main__"`.
        continuous_batching: False: fixed batches through `LLM.generate`.
        batch_size: prompts at the runtime at once; None or `auto`: as many as it can run.
        scored_tokens: tokens whose prompt log-probabilities are in the making at once.
        vllm_kwargs: any other argument of vLLM's `EngineArgs`.
    """

    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = speed_only(default=None)
    max_model_len: int | None = None
    enforce_eager: bool = False
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    enable_prefix_caching: bool | None = speed_only(default=None)
    max_num_seqs: int | None = speed_only(default=None)
    max_num_batched_tokens: int | None = speed_only(default=None)
    kv_cache_memory_bytes: int | None = speed_only(default=None)
    block_size: int | None = speed_only(default=None)
    swap_space: float | None = speed_only(default=None)
    cpu_offload_gb: float | None = speed_only(default=None)
    pipeline_parallel_size: int = 1
    load_format: str | None = None
    attention_backend: str | None = None
    seed: int | None = None
    batch_invariant: bool = False
    multiprocessing: bool = speed_only(default=True)
    continuous_batching: bool = speed_only(default=True)
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    scored_tokens: int | None = speed_only(default=None)
    vllm_kwargs: dict[str, Any] | None = None

    capabilities = VLLM_CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        check_at_least_one(self, _AT_LEAST_ONE)
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ConfigurationError(
                f"gpu_memory_utilization={share} must be above 0 and at most 1"
            )
        if self.batch_invariant and not self.multiprocessing:
            raise ConfigurationError(
                "batch_invariant=True is a switch of a whole process: leave multiprocessing on, so "
                "that it is set in vLLM's own"
            )

    def describe_runtime(self) -> dict[str, Any]:
        """The distribution and version of vLLM, and the device it found.

        Raises:
            EngineUnavailableError: it is missing or out of range, or this is no Linux.
        """
        from evalution_vllm.loading import device_name  # noqa: PLC0415 - only where vLLM is there

        return {"version": described_version(), "device": device_name(runtime())}

    def build(self, model: Model) -> VLLMSession:
        """Load the checkpoint and try what its scoring can rely on.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, the
                device, each other or the installed version.
            EngineUnavailableError: vLLM is missing or out of range, or memory doesn't suffice.
            EngineRuntimeError: vLLM loads the checkpoint, and can't run it on this device.
        """
        from evalution_vllm.loading import load  # noqa: PLC0415 - only once a session is asked for
        from evalution_vllm.session import session_of  # noqa: PLC0415 - as above

        return session_of(self, load(self, model))
