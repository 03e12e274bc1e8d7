"""The reference engine's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from evalution_core import speed_only


@dataclass(slots=True)
class ReferenceOptions:
    """Options of the reference engine."""

    dtype: Annotated[
        Literal["auto", "float32", "float64"],
        Field(
            description="Precision of all arithmetic, norms and softmax included; auto: float64 "
            "for a checkpoint in float64, else float32, which is no narrower than any other."
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2,
            description="Tokens that the model is fed at most; None takes what its configuration "
            "says.",
        ),
    ] = None
    batch_size: Annotated[
        PositiveInt | Literal["auto"] | None,
        Field(description="Sequences that generate side by side; None and auto mean 16."),
    ] = speed_only(default=None)
