"""Options of the engine `GPTQModel`; imports no runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from evalution_transformers.options import ContinuousOptions


@dataclass(slots=True)
class GPTQModelOptions(ContinuousOptions):
    """Options of `GPTQModel`: continuous batching as in `Transformers`, and the quantisation."""

    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"],
        Field(
            description="Precision of what isn't quantised; auto: that of the checkpoint. Kernels "
            "may round to less on the way."
        ),
    ] = "auto"
    backend: Annotated[
        str,
        Field(
            description="Kernels by GPTQModel's name of them (gptq_marlin, awq_gemm); auto: the "
            "fastest that suits checkpoint, device and dtype."
        ),
    ] = "auto"
    dequantize: Annotated[
        bool,
        Field(
            description="Turn the quantised weights back into floats of dtype (auto: float32) when "
            "they are loaded: the exact scores of these weights, at the memory of a model that "
            "isn't quantised. For checkpoints in GPTQ's own format, without backend."
        ),
    ] = False
