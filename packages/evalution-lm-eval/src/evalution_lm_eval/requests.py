"""Turns lm-eval's prompts and settings into requests of the contract."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

from evalution_core import (
    Capability,
    ConfigurationError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
)
from evalution_core.plugins import did_you_mean
from evalution_core.requests import Message
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.request_encoding import RequestValidator

DEFAULT_MAX_GEN_TOKS = 256
"""lm-eval's own where neither task nor caller names a limit."""

N = TypeVar("N", int, float)
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SETTINGS = ("do_sample", "temperature", "top_p", "top_k", "num_beams", "seed")
_ANY_ENGINE = RequestValidator("any", frozenset(Capability))
"""Refuses what every engine refuses, before there is one."""


def map_generation_settings(
    gen_kwargs: Mapping[str, Any], default_limit: int = DEFAULT_MAX_GEN_TOKS
) -> dict[str, Any]:
    """Return the fields of a `GenerationRequest` for a task's generation settings.

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
    limits = [_read_number(given, name, int) for name in _LIMITS if name in given]
    until = given.get("until", [])
    if not isinstance(until, str | list | tuple):
        raise ConfigurationError(
            f"generation setting 'until' must be a text or a list of texts, got {until!r}"
        )
    stops: list[str] = [until] if isinstance(until, str) else list(cast("list[str]", until))
    fields: dict[str, Any] = {
        **{name: given[name] for name in _SETTINGS if name in given},
        **_map_sampling(given),
        "stop": [stop for stop in stops if stop],
        "max_new_tokens": limits[0] if limits else default_limit,
    }
    try:
        _ANY_ENGINE.check_generation(GenerationRequest("", **fields))
    except InvalidRequestError as error:
        raise ConfigurationError(f"generation settings {dict(gen_kwargs)}: {error}") from error
    return fields


def _map_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy unless a temperature above zero, or `do_sample` without one, says otherwise."""
    temperature = 1.0 if given.get("do_sample") else 0.0
    if "temperature" in given:
        temperature = _read_number(given, "temperature", float)
    if not given.get("do_sample", temperature > 0.0) or temperature == 0.0:
        return {"do_sample": False, "temperature": 0.0}
    return {"do_sample": True, "temperature": temperature}


def _read_number(given: Mapping[str, Any], name: str, kind: Callable[[Any], N]) -> N:
    try:
        return kind(given[name])
    except (ValueError, TypeError, OverflowError):
        raise ConfigurationError(
            f"generation setting {name!r} must be a number, got {given[name]!r}"
        ) from None


def make_completion_request(context: str, fields: Mapping[str, Any]) -> GenerationRequest:
    """Make a request for text after `context`, which may be a conversation."""
    if isinstance(context, ChatPrompt):
        return GenerationRequest(messages=context.messages, **fields)
    return GenerationRequest(context, **fields)


def make_scoring_request(context: str, continuation: str) -> LoglikelihoodRequest:
    """Make a request for a continuation's score; the session encodes by lm-eval's rule."""
    if isinstance(context, ChatPrompt):
        return LoglikelihoodRequest(continuation=continuation, messages=context.messages)
    return LoglikelihoodRequest(context, continuation)


_log = logging.getLogger(__name__)


@runtime_checkable
class HasChatTemplate(Protocol):
    """A tokenizer that lets callers render conversations as it does."""

    @property
    def chat_template(self) -> ChatTemplate | None: ...


class ChatPrompt(str):
    """A conversation where lm-eval expects a text: its JSON, with the messages beside it."""

    __slots__ = ("messages",)
    messages: Sequence[Message]

    def __new__(cls, messages: Sequence[Message]) -> Self:
        made = super().__new__(cls, json.dumps(list(messages), ensure_ascii=False))
        made.messages = messages
        return made

    def __getnewargs__(self) -> tuple[Sequence[Message]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self.messages,)


def render_chat(
    template: ChatTemplate, messages: Sequence[Message], *, add_generation_prompt: bool
) -> str:
    """Return the prompt text; without a generation prompt, the last message is left open to go on.

    As lm-eval's `hf` model does it, a template that refuses the messages gets them once more
    without those of the system.

    Raises:
        InvalidRequestError: the template refuses these as well, or doesn't print the last message.
    """
    try:
        return _render(template, messages, add_generation_prompt=add_generation_prompt)
    except InvalidRequestError as error:
        others = [message for message in messages if message.get("role") != "system"]
        if len(others) == len(messages):
            raise
        _log.warning("%s; they are rendered without the system's message", error)
        return _render(template, others, add_generation_prompt=add_generation_prompt)


def _render(
    template: ChatTemplate, messages: Sequence[Message], *, add_generation_prompt: bool
) -> str:
    text = template.render(messages, add_generation_prompt=add_generation_prompt)
    return text if add_generation_prompt else _cut_after(text, str(messages[-1]["content"]))


def _cut_after(text: str, last: str) -> str:
    """`text` up to the end of its last message; what the template strips off stays off."""
    at = text.rfind(last.strip())
    if at < 0:
        raise InvalidRequestError(
            f"the chat template doesn't print the last message as it is ({last!r}), so an answer "
            "that begins with it can't be asked for"
        )
    whole = last.lstrip()
    kept = whole if text[at : at + len(whole)] == whole else last.strip()
    return text[:at] + kept
