"""What lm-eval asks a model, as requests of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalution_core import (
    Capability,
    ConfigurationError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    did_you_mean,
)
from evalution_enginekit.validation import Admission
from evalution_lm_eval.chat import ChatPrompt

DEFAULT_MAX_GEN_TOKS = 256
"""lm-eval's own where neither task nor caller names a limit."""

_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SETTINGS = ("do_sample", "temperature", "top_p", "top_k", "num_beams", "seed")
_ANY_ENGINE = Admission("any", frozenset(Capability))
"""Refuses what every engine refuses, before there is one."""


def generation_fields(
    gen_kwargs: Mapping[str, Any], default_limit: int = DEFAULT_MAX_GEN_TOKS
) -> dict[str, Any]:
    """Fields of a `GenerationRequest` for a task's generation settings.

    As in lm-eval, the first limit counts of `max_gen_toks`, `max_new_tokens`, `max_tokens` and
    `max_completion_tokens`, a temperature alone means sampling, and an empty stop is none.

    Raises:
        ConfigurationError: a setting that no request has, or a value that no engine takes.
    """
    known = ("until", *_LIMITS, *_SETTINGS)
    for name in gen_kwargs:
        if name not in known:
            raise ConfigurationError(
                f"generation setting {name!r} can't be asked of an engine"
                f"{did_you_mean(name, known)} (possible: {', '.join(known)})"
            )
    given = {name: value for name, value in gen_kwargs.items() if value is not None}
    limits = [int(given[name]) for name in _LIMITS if name in given]
    until = given.get("until", [])
    stops: list[str] = [until] if isinstance(until, str) else list(until)
    fields: dict[str, Any] = {
        **{name: given[name] for name in _SETTINGS if name in given},
        **_sampling(given),
        "stop": [stop for stop in stops if stop],
        "max_new_tokens": limits[0] if limits else default_limit,
    }
    try:
        _ANY_ENGINE.generation(GenerationRequest("", **fields))
    except InvalidRequestError as error:
        raise ConfigurationError(f"generation settings {dict(gen_kwargs)}: {error}") from error
    return fields


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy unless a temperature above zero, or `do_sample` without one, says otherwise."""
    temperature = float(given.get("temperature", 1.0 if given.get("do_sample") else 0.0))
    if not given.get("do_sample", temperature > 0.0) or temperature == 0.0:
        return {"do_sample": False, "temperature": 0.0}
    return {"do_sample": True, "temperature": temperature}


def completion_request(context: str, fields: Mapping[str, Any]) -> GenerationRequest:
    """A request for text after `context`, which may be a conversation."""
    if isinstance(context, ChatPrompt):
        return GenerationRequest(messages=context.messages, **fields)
    return GenerationRequest(context, **fields)


def scoring_request(context: str, continuation: str) -> LoglikelihoodRequest:
    """A request for the score of `continuation`; the session encodes both by lm-eval's rule."""
    if isinstance(context, ChatPrompt):
        return LoglikelihoodRequest(continuation=continuation, messages=context.messages)
    return LoglikelihoodRequest(context, continuation)
