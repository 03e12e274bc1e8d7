"""Inspect's `GenerateConfig` as fields of a generation request: exactly, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalution_core import InvalidRequestError, UnsupportedRequestError

if TYPE_CHECKING:
    from inspect_ai.model import GenerateConfig

_INSPECTS_OWN = frozenset(
    {
        "adaptive_connections",
        "attempt_timeout",
        "batch",
        "cache",
        "cache_prompt",
        "fail_on_refusal",
        "internal_tools",
        "max_connections",
        "max_retries",
        "max_tool_output",
        "reasoning_history",
        "stream_idle_timeout",
        "system_message",
        "timeout",
    }
)
"""What Inspect does by itself, or asks only of providers that can."""
_MAPPED = frozenset(
    {
        "logprobs",
        "max_tokens",
        "num_choices",
        "parallel_tool_calls",
        "prompt_logprobs",
        "seed",
        "stop_seqs",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "extra_body": ({},),
    "extra_headers": ({},),
    "fallback_models": ([],),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "modalities": ([],),
    "presence_penalty": (0,),
    "reasoning_summary": ("none",),
}
"""Of settings that no engine has: what asks for nothing."""
_SEEDS = 2**63


def check_supported(config: GenerateConfig) -> None:
    """Raise `UnsupportedRequestError` for what no engine can do, by the setting's name.

    A setting that asks for nothing passes.
    """
    for name, value in config.model_dump(exclude_none=True).items():
        if name in _INSPECTS_OWN or name in _MAPPED or value in _NEUTRAL.get(name, ()):
            continue
        raise UnsupportedRequestError(
            f"{name}={value!r} is not supported by the provider evalution; leave it out"
        )
    if (config.prompt_logprobs or 0) > 1:
        raise UnsupportedRequestError(
            f"prompt_logprobs={config.prompt_logprobs}: an engine gives the log-probability of "
            "each prompt token and no alternatives to it; set prompt_logprobs=1"
        )


def decoding(config: GenerateConfig) -> list[dict[str, Any]]:
    """Fields of the request for each choice that `config` asks for; its length limit apart.

    Greedy without a temperature and with 0; nothing is cut from the distribution then. `top_p` or
    `top_k` without a temperature sample at 1. Choices differ by their seeds, where there is one.

    Raises:
        UnsupportedRequestError: as `check_supported`.
        InvalidRequestError: `top_logprobs` without `logprobs`, or no choice at all.
    """
    check_supported(config)
    choices = 1 if config.num_choices is None else config.num_choices
    if choices < 1:
        raise InvalidRequestError(f"num_choices must be at least 1, got {choices}")
    if config.top_logprobs and not config.logprobs:
        raise InvalidRequestError(f"top_logprobs={config.top_logprobs} needs logprobs=True")
    top_p = 1.0 if config.top_p is None else config.top_p
    top_k = max(0, config.top_k or 0)
    temperature = config.temperature
    if temperature is None and (top_p != 1.0 or top_k > 1):
        temperature = 1.0
    fields: dict[str, Any] = {"stop": list(config.stop_seqs or ())}
    if config.logprobs:
        fields["logprobs"] = config.top_logprobs or 0
    if temperature:
        fields |= {
            "do_sample": True,
            "temperature": float(temperature),
            "top_p": top_p,
            "top_k": top_k,
        }
    return [
        fields | {"seed": (config.seed + choice) % _SEEDS}
        if temperature and config.seed is not None
        else fields
        for choice in range(choices)
    ]
