"""The tinygrad engine's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from evalution_core import speed_only

WeightType = Literal["auto", "float32", "float16"]

_BATCH_SIZE = 16
_TOKENS_OF_A_ROW = 1024
_NARROWER = 4


@dataclass(slots=True)
class TinygradOptions:
    """Options of the tinygrad engine."""

    device: Annotated[
        str | None,
        Field(
            description="A device as in tinygrad's DEV: cpu, cuda, amd, metal, cpu:clangjit, …; "
            "None and auto take the environment's DEV, else an accelerator, else the CPU. On an "
            "x86 CPU tinygrad's assembler, which needs no compiler, is used by default."
        ),
    ] = None
    dtype: Annotated[
        WeightType,
        Field(
            description="Type of the weight matrices in memory; auto means float32 on a CPU and "
            "for files of float32 or bfloat16, else float16, which rounds quantised weights. "
            "Arithmetic is always float32."
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2, description="Tokens that the model is fed at most; None takes what the file says."
        ),
    ] = None
    ends_by_name: Annotated[
        bool,
        Field(
            description="End a generation also at control tokens whose names mean an end, such as "
            "<|im_end|> or <|end|>, as llama.cpp does; false ends it where file and tokenizer "
            "declare it, as the checkpoint's other engines do."
        ),
    ] = True
    jit: Annotated[
        int | None,
        Field(
            ge=0,
            le=2,
            description="tinygrad's JIT: 0 is off, 1 uses graphs, 2 doesn't; None means 2 on CUDA "
            "and tinygrad's own default elsewhere.",
        ),
    ] = speed_only(default=None)
    jitbeam: Annotated[
        int | None,
        Field(
            ge=0,
            description="tinygrad's JITBEAM, the width of its search for fast kernels; None means "
            "0 on CUDA and tinygrad's own default elsewhere.",
        ),
    ] = speed_only(default=None)
    realize: Annotated[
        bool,
        Field(
            description="Unpack quantised weights once, which is faster; false keeps them packed, "
            "which takes less memory."
        ),
    ] = speed_only(default=True)
    batch_size: Annotated[
        PositiveInt | Literal["auto"] | None,
        Field(description="Prompts completed side by side; None and auto mean 16."),
    ] = speed_only(default=None)
    pass_tokens: Annotated[
        PositiveInt, Field(description="Tokens of the widest pass through the model.")
    ] = speed_only(default=256)
    cache_tokens: Annotated[
        PositiveInt | None,
        Field(
            description="Tokens of all prompts and completions that run at once; None means 1024 "
            "for each of batch_size, and at least max_model_len."
        ),
    ] = speed_only(default=None)

    @property
    def rows(self) -> int:
        """Prompts completed side by side."""
        return self.batch_size if isinstance(self.batch_size, int) else _BATCH_SIZE

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of a pass: one token of every row, and up to `pass_tokens` in steps of four."""
        widths = [max(self.pass_tokens, self.rows)]
        while widths[-1] > self.rows * 2:
            widths.append(max(self.rows, widths[-1] // _NARROWER))
        return tuple(sorted({self.rows, *widths}))

    def count_running_tokens(self, max_model_len: int) -> int:
        """Return how many tokens of prompts and completions may run at once."""
        return self.cache_tokens or max(max_model_len, _TOKENS_OF_A_ROW * self.rows)
