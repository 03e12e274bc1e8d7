"""Inspect's messages as the contract has them, and as chat templates read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
)

from evalution_core import InvalidRequestError, Message, UnsupportedRequestError

_PROMPT_IDS = "prompt_token_ids"
"""Under it Inspect's own providers of plain completions find ids in a message's metadata."""


def conversation(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages for a chat template.

    Text parts are joined by a newline. Reasoning stands apart, as `reasoning_content`; whether it
    is shown to the model again is the template's business. The arguments of a tool call are a
    mapping, as Transformers documents them for templates.

    Raises:
        UnsupportedRequestError: a message holds something else than text.
    """
    return [_message(message) for message in messages]


def plain_prompt(messages: Sequence[ChatMessage]) -> dict[str, Any]:
    """The fields of a request that completes one message's text, or its ids, without a template.

    Raises:
        InvalidRequestError: there are several messages, or one of another role; or the ids are no
            list.
    """
    if len(messages) != 1 or messages[0].role != "user":
        roles = ", ".join(message.role for message in messages) or "none"
        raise InvalidRequestError(
            "use_chat_template=false completes a single user message as plain text, and there are "
            f"messages of the roles: {roles}; leave the system prompt and earlier turns out, or "
            "use a model with a chat template"
        )
    (message,) = messages
    token_ids: Any = (message.metadata or {}).get(_PROMPT_IDS)
    if token_ids is not None:
        if not isinstance(token_ids, list):
            raise InvalidRequestError(f"{_PROMPT_IDS} must be a list of ints, got {token_ids!r}")
        return {"input_ids": cast("list[Any]", token_ids)}
    return {"prompt": _text(message)}


def _message(message: ChatMessage) -> Message:
    found: dict[str, Any] = {"role": message.role, "content": _text(message)}
    if isinstance(message, ChatMessageTool):
        if message.error is not None:
            found["content"] = f"Error: {message.error.message}"
        found |= {"tool_call_id": message.tool_call_id, "name": message.function}
    if isinstance(message, ChatMessageAssistant):
        if reasoning := _reasoning(message):
            found["reasoning_content"] = reasoning
        if message.tool_calls:
            found["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.id,
                    "function": {"name": call.function, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
    return {name: value for name, value in found.items() if value is not None}


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if not isinstance(part, ContentText | ContentReasoning):
            raise UnsupportedRequestError(
                f"a {message.role} message holds content of the type {part.type!r}; the provider "
                "evalution passes on text alone"
            )
    return message.text


def _reasoning(message: ChatMessageAssistant) -> str | None:
    if isinstance(message.content, str):
        return None
    parts = [part for part in message.content if isinstance(part, ContentReasoning)]
    return "\n".join(part.reasoning for part in parts if not part.redacted) or None
