"""The options of the SGLang engine; those that SGLang knows have its names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from evalution_core import speed_only
from evalution_enginekit.runtime import ServingOptions


@dataclass(slots=True)
class SGLangOptions(ServingOptions):
    """Options of the SGLang engine; those of SGLang's own have its default where they are None."""

    tp_size: Annotated[int, Field(ge=1, description="Devices that share each layer.")] = 1
    dp_size: Annotated[int, Field(ge=1, description="Copies of the model.")] = 1
    pp_size: Annotated[
        int, Field(ge=1, description="Devices that share the model layer by layer.")
    ] = 1
    context_length: Annotated[
        int | None,
        Field(ge=2, description="SGLang's name for max_model_len; give only one of them."),
    ] = None
    device: Annotated[
        str | None, Field(description="cuda, cpu, …; None: the device that torch finds.")
    ] = None
    quantization: Annotated[
        str | None,
        Field(description="SGLang's name of the quantization; None: that of the checkpoint."),
    ] = None
    load_format: Annotated[
        str | None, Field(description="SGLang's name of the format of the weights.")
    ] = None
    mem_fraction_static: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Share of each device's memory for weights and cache; None: SGLang's "
            "choice.",
        ),
    ] = speed_only(default=None)
    max_running_requests: Annotated[
        int | None, Field(ge=1, description="Requests of one step; None: SGLang's choice.")
    ] = speed_only(default=None)
    max_total_tokens: Annotated[
        int | None, Field(ge=1, description="Tokens that the cache holds; None: all that fit.")
    ] = speed_only(default=None)
    max_prefill_tokens: Annotated[
        int | None, Field(ge=1, description="Tokens of one prefill; None: SGLang's default.")
    ] = speed_only(default=None)
    chunked_prefill_size: Annotated[
        int | None,
        Field(description="Tokens of one part of a prompt; -1: no parts; None: SGLang's choice."),
    ] = speed_only(default=None)
    page_size: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens of a page of the cache, the unit in which prefixes are shared; "
            "None: SGLang's default.",
        ),
    ] = speed_only(default=None)
    schedule_policy: Annotated[
        str | None,
        Field(
            description="SGLang's name of the order of requests; None: lpm, the longest prefix in "
            "the cache first."
        ),
    ] = speed_only(default=None)
    disable_radix_cache: Annotated[bool, Field(description="Share no prefixes.")] = speed_only(
        default=False
    )
    attention_backend: Annotated[
        str | None,
        Field(description="SGLang's name of its attention kernels; None: SGLang's choice."),
    ] = None
    sampling_backend: Annotated[
        str | None,
        Field(description="SGLang's name of its sampling kernels; None: SGLang's choice."),
    ] = None
    enable_deterministic_inference: Annotated[
        bool,
        Field(
            description="The same numbers whatever else is in the batch, and seeds of requests, on "
            "devices where SGLang can do it."
        ),
    ] = False
    random_seed: Annotated[
        int | None, Field(description="Seed of requests that sample; None: a new one each start.")
    ] = None
    sglang_kwargs: Annotated[
        dict[str, Any] | None, Field(description="Any other argument of SGLang's ServerArgs.")
    ] = None
