"""The options that engines on a serving runtime share, and their way into its arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from evalution_core import Capability, Model, speed_only
from evalution_enginekit.runtime import find_changed_options, merge_arguments, refuse_unknown

SERVING_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}
"""All that a serving runtime can do through `ServingSession`."""


@dataclass(slots=True)
class ServingOptions:
    """Options with the same meaning on each runtime."""

    _: KW_ONLY
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2,
            description="Tokens the model is fed at most; None: as its configuration, less what "
            "the runtime needs for itself.",
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"],
        Field(
            description="Precision of weights and arithmetic; auto: the runtime's choice for the "
            "checkpoint."
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str | None, Field(description="Precision of the cache; None: that of the arithmetic.")
    ] = None
    batch_size: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"] | None,
        Field(description="Prompts at the runtime at once; None or auto: as many as it can run."),
    ] = speed_only(default=None)
    scored_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens whose prompt log-probabilities are computed at once; None: 16384, "
            "or 4096 where they are read from rows of logits.",
        ),
    ] = speed_only(default=None)


def collect_arguments(
    options: ServingOptions,
    model: Model,
    further: str,
    *,
    own: Collection[str],
    refused: Mapping[str, str],
    known: Collection[str],
    runtime: str,
) -> dict[str, Any]:
    """Return the arguments of a runtime that options and model set, checked against its version.

    Args:
        options: the engine's.
        model: whose `model_kwargs` are arguments too.
        further: the option that holds any other argument.
        own: options that are no arguments of the runtime, beside those that no runtime has.
        refused: as in `merge_arguments`.
        known: names of the runtime's arguments.
        runtime: its name and version.

    Raises:
        ConfigurationError: an argument is set twice, has another place, or doesn't exist.
    """
    kept = {"max_model_len", "batch_size", "scored_tokens", further, *own}
    named = find_changed_options(
        options, [field.name for field in fields(options) if field.name not in kept]
    )
    sources = {further: getattr(options, further) or {}, "model.model_kwargs": model.model_kwargs}
    given = named | merge_arguments(sources, refused=refused, taken=named)
    refuse_unknown(given, known, runtime)
    return given
