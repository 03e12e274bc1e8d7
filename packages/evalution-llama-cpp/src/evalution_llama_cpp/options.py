"""The llama.cpp engine's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from evalution_core import speed_only

DeviceName = Literal["auto", "cpu", "cuda", "metal", "mlx", "vulkan"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
SplitMode = Literal["none", "layer", "row", "tensor"]

_LARGEST = 2**31 - 1
"""The largest value of a field in llama.cpp's parameters; ctypes would cut it in silence."""
_BATCH_SIZE = 16
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]


@dataclass(slots=True)
class LlamaCppOptions:
    """Options of the llama.cpp engine."""

    device: Annotated[
        DeviceName,
        Field(
            description="Where the model runs; auto takes a GPU if the build has one, mlx means "
            "Metal, and a device that the build lacks becomes the CPU, with a notice."
        ),
    ] = "auto"
    strict_device: Annotated[
        bool, Field(description="Raise an error for a device that the build lacks.")
    ] = False
    continuous_batching: Annotated[
        bool,
        Field(description="Give a free slot the next prompt at once; false runs fixed batches."),
    ] = True
    n_ctx: Annotated[
        int,
        Field(
            ge=0,
            le=_LARGEST,
            description="Tokens that the KV cache holds for all sequences together; 0 takes the "
            "length that the model was trained on.",
        ),
    ] = 4096
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2,
            le=_LARGEST,
            description="Tokens that the model is fed at most for one request; None takes the "
            "smaller of n_ctx and the length that the model was trained on.",
        ),
    ] = None
    flash_attn: Annotated[
        bool | None,
        Field(
            description="Use flash attention, which is quicker on GPUs and no more precise than "
            "f16 whatever the cache's type; None leaves it to llama.cpp."
        ),
    ] = False
    type_k: Annotated[
        CacheType | None,
        Field(
            description="Type of the cached keys; None means f32 on a CPU without flash "
            "attention, else f16."
        ),
    ] = None
    type_v: Annotated[
        CacheType | None,
        Field(
            description="Type of the cached values, as type_k; types other than f32, f16 and bf16 "
            "need flash attention."
        ),
    ] = None
    n_gpu_layers: Annotated[
        int | None,
        Field(ge=-1, le=_LARGEST, description="Layers on the GPU; None and -1 mean all."),
    ] = None
    split_mode: Annotated[
        SplitMode, Field(description="How several GPUs share the model, as in llama.cpp.")
    ] = "layer"
    main_gpu: Annotated[
        int,
        Field(ge=0, le=_LARGEST, description="Index of the GPU that holds what isn't split up."),
    ] = 0
    tensor_split: Annotated[
        tuple[float, ...] | None,
        Field(description="Share of the model for each GPU; None splits by free memory."),
    ] = None
    offload_kqv: Annotated[bool, Field(description="Keep the KV cache on the GPU.")] = True
    n_batch: Annotated[
        _Count | None,
        Field(
            description="Tokens of one decode; None means 128 on a CPU, where each token attends "
            "to the cells of all sequences of the decode, else 512."
        ),
    ] = speed_only(default=None)
    n_ubatch: Annotated[
        _Count, Field(description="Tokens of one pass through the model within a decode.")
    ] = speed_only(default=512)
    n_threads: Annotated[
        _Count | None, Field(description="Threads for decoding; None leaves it to llama.cpp.")
    ] = speed_only(default=None)
    n_threads_batch: Annotated[
        _Count | None, Field(description="Threads for prompts; None takes n_threads.")
    ] = speed_only(default=None)
    use_mmap: Annotated[
        bool, Field(description="Map the file into memory instead of reading it.")
    ] = speed_only(default=True)
    use_mlock: Annotated[bool, Field(description="Keep the model from being swapped out.")] = (
        speed_only(default=False)
    )
    batch_size: Annotated[
        _Count | Literal["auto"] | None,
        Field(
            description="Prompts completed side by side, fewer where n_ctx has no room for them; "
            "None and auto mean 16."
        ),
    ] = speed_only(default=None)
    ends_by_name: Annotated[
        bool,
        Field(
            description="End a generation also at control tokens that llama.cpp takes for ends by "
            "their names, such as <|im_end|> or <|end|>; false ends it where file and tokenizer "
            "declare it, as the checkpoint's other engines do."
        ),
    ] = True
    llama_kwargs: Annotated[
        dict[str, int | float | bool] | None,
        Field(
            description="Further numbers and booleans of llama.cpp's llama_model_params and "
            "llama_context_params, such as rope_freq_base."
        ),
    ] = None
    verbose: Annotated[bool, Field(description="Print llama.cpp's log to stderr.")] = speed_only(
        default=False
    )

    @property
    def rows(self) -> int:
        """Prompts completed side by side."""
        return self.batch_size if isinstance(self.batch_size, int) else _BATCH_SIZE
