"""The options of the vLLM engine; those that vLLM knows have its names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from evalution_core import speed_only
from evalution_enginekit.runtime import ServingOptions


@dataclass(slots=True)
class VLLMOptions(ServingOptions):
    """Options of the vLLM engine; those of vLLM's own have its default where they are None."""

    tensor_parallel_size: Annotated[
        int, Field(ge=1, description="Devices that share each layer of the model.")
    ] = 1
    gpu_memory_utilization: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="Share of each device's memory, weights included; None: vLLM's default.",
        ),
    ] = speed_only(default=None)
    enforce_eager: Annotated[bool, Field(description="Run without compiled graphs.")] = False
    quantization: Annotated[
        str | None,
        Field(description="vLLM's name of the quantization; None: that of the checkpoint."),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        Field(description="Compute a shared prefix once; None: wherever the model allows it."),
    ] = speed_only(default=None)
    max_num_seqs: Annotated[
        int | None, Field(ge=1, description="Sequences of one step; None: vLLM's default.")
    ] = speed_only(default=None)
    max_num_batched_tokens: Annotated[
        int | None, Field(ge=1, description="Tokens of one step; None: vLLM's default.")
    ] = speed_only(default=None)
    kv_cache_memory_bytes: Annotated[
        int | None,
        Field(
            ge=1,
            description="Size of the cache in bytes; None: what gpu_memory_utilization leaves, and "
            "1 GiB on a CPU.",
        ),
    ] = speed_only(default=None)
    block_size: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens of a block of the cache, the unit in which prefixes are shared; "
            "None: vLLM's default, and 32 on a CPU.",
        ),
    ] = speed_only(default=None)
    swap_space: Annotated[
        float | None,
        Field(ge=0, description="GiB of main memory to swap to, in versions that have it."),
    ] = speed_only(default=None)
    cpu_offload_gb: Annotated[
        float | None,
        Field(ge=0, description="GiB of weights in main memory; None: vLLM's default."),
    ] = speed_only(default=None)
    pipeline_parallel_size: Annotated[
        int, Field(ge=1, description="Devices that share the model layer by layer.")
    ] = 1
    load_format: Annotated[
        str | None, Field(description="vLLM's name of the format of the weights.")
    ] = None
    attention_backend: Annotated[
        str | None,
        Field(description="vLLM's name of its attention kernels; None: vLLM's choice."),
    ] = None
    seed: Annotated[
        int | None, Field(description="Seed of requests that sample without one of their own.")
    ] = None
    batch_invariant: Annotated[
        bool,
        Field(
            description="The same numbers whatever else is in the batch, on devices where vLLM can "
            "do it; needs multiprocessing."
        ),
    ] = False
    multiprocessing: Annotated[
        bool,
        Field(
            description="Run the engine core in a process of its own, as upstream does; a script "
            'then keeps its work under `if __name__ == "__main__":`.'
        ),
    ] = speed_only(default=True)
    continuous_batching: Annotated[
        bool, Field(description="False: run fixed batches through LLM.generate.")
    ] = speed_only(default=True)
    vllm_kwargs: Annotated[
        dict[str, Any] | None, Field(description="Any other argument of vLLM's EngineArgs.")
    ] = None
