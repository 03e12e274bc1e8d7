"""The options of the TensorRT-LLM engine; those that TensorRT-LLM knows have its names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from evalution_core import speed_only
from evalution_enginekit.runtime import ServingOptions


@dataclass(slots=True)
class TensorRTLLMOptions(ServingOptions):
    """Options of the TensorRT-LLM engine; its own have its default where they are None."""

    tensor_parallel_size: Annotated[
        int, Field(ge=1, description="Devices that share each layer of the model.")
    ] = 1
    runtime_backend: Annotated[
        Literal["pytorch"] | None,
        Field(description="pytorch, the only backend that is supported; None: the same."),
    ] = speed_only(default=None)
    free_gpu_memory_fraction: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="Share of the free device memory for the cache; None: TensorRT-LLM's "
            "default.",
        ),
    ] = speed_only(default=None)
    enable_block_reuse: Annotated[
        bool,
        Field(description="Compute a shared prefix of prompts once; scores never use it."),
    ] = speed_only(default=False)
    max_batch_size: Annotated[
        int | None, Field(ge=1, description="Sequences of one step; None: TensorRT-LLM's default.")
    ] = speed_only(default=None)
    max_num_tokens: Annotated[
        int | None,
        Field(ge=1, description="Tokens of one step; None: 8192, or the longest sequence."),
    ] = speed_only(default=None)
    pipeline_parallel_size: Annotated[
        int, Field(ge=1, description="Devices that share the model layer by layer.")
    ] = 1
    attn_backend: Annotated[
        str | None,
        Field(description="TensorRT-LLM's name of its attention kernels; None: its default."),
    ] = None
    continuous_batching: Annotated[
        bool, Field(description="False: run fixed batches through LLM.generate.")
    ] = speed_only(default=True)
    llm_kwargs: Annotated[
        dict[str, Any] | None,
        Field(description="Any other argument of tensorrt_llm.LLM; kv_cache_config as a mapping."),
    ] = None
