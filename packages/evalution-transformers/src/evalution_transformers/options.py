"""Options of the engines `Transformers` and `TransformersCompat`; imports no runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from evalution_core import speed_only

DType = Literal["auto", "float64", "float32", "float16", "bfloat16"]

MANAGER_OPTIONS = (
    "manual_eviction",
    "allow_block_sharing",
    "max_batch_tokens",
    "max_blocks_per_request",
    "use_async_batching",
    "use_cuda_graph",
    "q_padding_interval_size",
    "kv_padding_interval_size",
    "max_cached_graphs",
)
"""Options that are fields of the `ContinuousBatchingConfig` of Transformers, by the same names."""


_PAGED = "paged|"


DTypeOption = Annotated[
    DType,
    Field(description="Precision of weights and arithmetic; auto: as the checkpoint was saved."),
]
AdapterOption = Annotated[
    str | None, Field(description="Folder or Hub id of a LoRA adapter for the model; needs peft.")
]


@dataclass(slots=True)
class ModelOptions:
    """Options of every engine that runs a model of Transformers in this process."""

    device: Annotated[
        str | None,
        Field(description="cpu, cuda, cuda:1, mps; None or auto: an accelerator if there is one."),
    ] = None
    attn_implementation: Annotated[
        str | None,
        Field(
            description="Attention by its name in Transformers (sdpa, eager, flash_attention_2); "
            "None or auto: the choice of Transformers. In Transformers, paged|sdpa is sdpa with "
            "paged=True."
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2,
            description="Tokens that the model is fed at most; None: the limit in its "
            "configuration.",
        ),
    ] = None
    batch_size: Annotated[
        PositiveInt | Literal["auto"] | None,
        Field(description="Prompts completed side by side; None or auto: 16 on a CPU, else 64."),
    ] = speed_only(default=None)
    pass_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens of one scoring pass, and of one pass over new prompts; None: 512 "
            "on a CPU, else 4096.",
        ),
    ] = speed_only(default=None)


@dataclass(slots=True)
class ContinuousOptions(ModelOptions):
    """Options of continuous batching, by the manager of Transformers or without it.

    The options from `manual_eviction` on belong to the continuous-batching manager of Transformers.
    One that the installed version lacks or ignores is refused, and so is each where `paged=False`
    keeps the manager off.
    """

    paged: Annotated[
        bool | None,
        Field(
            description="Continuous batching by the manager of Transformers over its paged cache: "
            "True: wherever it runs; False: nowhere; None: on CUDA with flash attention, or where "
            "one of its options is set."
        ),
    ] = None
    cache_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens that the manager's cache holds, `max_model_len` at least; None: "
            "enough for all rows, within half of the free memory of a GPU or 1 GiB on a CPU.",
        ),
    ] = speed_only(default=None)
    manual_eviction: Annotated[
        bool | None,
        Field(
            description="Whether finished requests stay in the manager's cache until they are "
            "evicted by hand; None: the manager's default."
        ),
    ] = speed_only(default=None)
    allow_block_sharing: Annotated[
        bool | None,
        Field(
            description="Whether prompts share the cache blocks of a common beginning; None: the "
            "manager's default."
        ),
    ] = speed_only(default=None)
    max_batch_tokens: Annotated[
        int | None,
        Field(ge=1, description="Tokens of one step of the manager; None: pass_tokens."),
    ] = speed_only(default=None)
    max_blocks_per_request: Annotated[
        int | None,
        Field(
            ge=0,
            description="Cache blocks of one request in the decoding fast path of flash "
            "attention; None: the manager's default.",
        ),
    ] = speed_only(default=None)
    use_async_batching: Annotated[
        bool | None,
        Field(
            description="Whether the next batch is prepared while one runs, which needs CUDA; "
            "None: the manager decides."
        ),
    ] = speed_only(default=None)
    use_cuda_graph: Annotated[
        bool | tuple[bool, bool] | None,
        Field(
            description="CUDA graphs in the manager, for all passes or as a pair for its "
            "varying-length and its decoding passes; None: the manager decides."
        ),
    ] = speed_only(default=None)
    q_padding_interval_size: Annotated[
        int | None,
        Field(
            ge=0,
            description="Query tokens are padded to a multiple of this for CUDA graphs; None: the "
            "manager's default.",
        ),
    ] = speed_only(default=None)
    kv_padding_interval_size: Annotated[
        int | None,
        Field(
            ge=0,
            description="Cached tokens are padded to a multiple of this for CUDA graphs; None: "
            "the manager's default.",
        ),
    ] = speed_only(default=None)
    max_cached_graphs: Annotated[
        int | None,
        Field(ge=0, description="CUDA graphs that the manager keeps; None: its default."),
    ] = speed_only(default=None)


@dataclass(slots=True)
class TransformersCompatOptions(ModelOptions):
    """Options of `TransformersCompat`."""

    dtype: DTypeOption = "auto"
    adapter: AdapterOption = None


@dataclass(slots=True)
class TransformersOptions(ContinuousOptions):
    """Options of `Transformers`: those of `TransformersCompat`, and continuous batching."""

    dtype: DTypeOption = "auto"
    adapter: AdapterOption = None


def asks_for_manager(options: ModelOptions) -> bool:
    """Return whether the attention has the prefix `paged|`, which only the manager can run."""
    return (options.attn_implementation or "").startswith(_PAGED)


def read_attention(options: ModelOptions) -> str | None:
    """Return the attention to load a model with, without `paged|`; None: the choice upstream."""
    asked = options.attn_implementation
    return None if asked in (None, "auto") else asked.removeprefix(_PAGED)
