"""Options of the engine `OpenVINO`; imports no runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from evalution_core import ConfigurationError, speed_only

DType = Literal["auto", "float32", "float16", "bfloat16"]

_GENAI_OPTIONS = ("cache_size", "max_num_batched_tokens", "enable_prefix_caching")
PRECISION_HINT = "INFERENCE_PRECISION_HINT"


@dataclass(slots=True)
class OpenVINOOptions:
    """Options of `OpenVINO`: device and precision, and continuous batching by openvino-genai."""

    device: Annotated[
        str | None,
        Field(
            description="Device by OpenVINO's name (CPU, GPU, GPU.1, NPU, AUTO, AUTO:GPU,CPU); "
            "None: CPU."
        ),
    ] = None
    dtype: Annotated[
        DType,
        Field(
            description="Precision of arithmetic and of the key-value cache; auto: that of the "
            "checkpoint. A device that lacks it computes in float32. What is cheaper, such as a "
            "cache in u8, is asked for in ov_config."
        ),
    ] = "auto"
    ov_config: Annotated[
        Mapping[str, Any],
        Field(description="Properties of OpenVINO that the model is compiled with."),
    ] = field(default_factory=dict[str, Any])
    cache_dir: Annotated[
        str | None,
        Field(description="Folder in which OpenVINO keeps compiled models; None: nowhere."),
    ] = speed_only(default=None)
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
        Field(description="Prompts completed side by side; None or auto: 16."),
    ] = speed_only(default=None)
    pass_tokens: Annotated[
        int | None, Field(ge=1, description="Tokens of one scoring pass; None: 512.")
    ] = speed_only(default=None)
    genai: Annotated[
        bool | None,
        Field(
            description="Continuous batching by openvino-genai: True demands it, False keeps it "
            "off, None uses it where it is installed."
        ),
    ] = None
    cache_size: Annotated[
        int | None,
        Field(
            ge=1,
            description="Gigabytes of openvino-genai's cache; None: by rows and window, one "
            "gigabyte at most or what one prompt of `max_model_len` takes.",
        ),
    ] = speed_only(default=None)
    max_num_batched_tokens: Annotated[
        int | None, Field(ge=1, description="Tokens of one step of openvino-genai; None: 512.")
    ] = speed_only(default=None)
    enable_prefix_caching: Annotated[
        bool | None,
        Field(description="Whether openvino-genai keeps shared beginnings of prompts; None: True."),
    ] = speed_only(default=None)


def check_options(options: OpenVINOOptions) -> None:
    """Raise `ConfigurationError` for options that contradict each other."""
    given = [name for name in _GENAI_OPTIONS if getattr(options, name) is not None]
    if given and options.genai is False:
        raise ConfigurationError(
            f"{', '.join(given)}: for openvino-genai alone, and genai=False keeps it off"
        )
    if options.dtype != "auto" and PRECISION_HINT in options.ov_config:
        raise ConfigurationError(
            f"dtype={options.dtype!r} and ov_config {PRECISION_HINT} both say the precision; "
            f"set one of them"
        )
