"""Inspect's messages as the contract has them, and as chat templates read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast
from uuid import uuid4

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
)
from inspect_ai.tool import ToolCall, ToolInfo

from evalution_core import InvalidRequestError, UnsupportedRequestError
from evalution_core.requests import Message

_PROMPT_IDS = "prompt_token_ids"
"""Under it Inspect's own providers of plain completions find ids in a message's metadata."""


def make_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Make the messages for a chat template.

    Text parts are joined by a newline. Reasoning stands apart, as `reasoning_content`; whether it
    is shown to the model again is the template's business. The arguments of a tool call are a
    mapping, as Transformers documents them for templates.

    Raises:
        UnsupportedRequestError: a message holds something else than text.
    """
    return [_convert_message(message) for message in messages]


def make_plain_prompt(messages: Sequence[ChatMessage]) -> dict[str, Any]:
    """Make the fields of a request that completes one message's text or ids, untemplated.

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
    return {"prompt": _read_text(message)}


def _convert_message(message: ChatMessage) -> Message:
    found: dict[str, Any] = {"role": message.role, "content": _read_text(message)}
    if isinstance(message, ChatMessageTool):
        if message.error is not None:
            found["content"] = f"Error: {message.error.message}"
        found |= {"tool_call_id": message.tool_call_id, "name": message.function}
    if isinstance(message, ChatMessageAssistant):
        if reasoning := _read_reasoning(message):
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


def _read_text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if not isinstance(part, ContentText | ContentReasoning):
            raise UnsupportedRequestError(
                f"a {message.role} message holds content of the type {part.type!r}; the provider "
                "evalution passes on text alone"
            )
    return message.text


def _read_reasoning(message: ChatMessageAssistant) -> str | None:
    if isinstance(message.content, str):
        return None
    parts = [part for part in message.content if isinstance(part, ContentReasoning)]
    return "\n".join(part.reasoning for part in parts if not part.redacted) or None


ToolFormat = Literal["hermes", "llama3", "mistral"]
"""hermes: `<tool_call>{"name", "arguments"}</tool_call>`, as Qwen 2.5 and 3 write it too; llama3:
the text is `{"name", "parameters"}`; mistral: it is a list of `{"name", "arguments"}`."""

_SIGNS: tuple[tuple[ToolFormat, str, str], ...] = (
    ("hermes", "<tool_call>", "<function="),
    ("mistral", "[TOOL_CALLS]", "[ARGS]"),
    ("llama3", "<|python_tag|>", "<function="),
)
"""Text that a template of each form holds, and text of newer forms with the same sign."""
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ARGUMENTS = '"arguments"', '"parameters"'
_UNNAMED = "unknown"
"""Inspect's own name for a call that can't be read."""
_DEEPEST = 100
"""Levels of lists and objects in a call's arguments; a log that has over 255 can't be written."""


def describe_tools(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    """Return the tools as chat templates take them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.model_dump(exclude_none=True),
            },
        }
        for tool in tools
    ]


def find_tool_format(template: str) -> ToolFormat:
    """Return the form of tool calls that a chat template teaches.

    Raises:
        UnsupportedRequestError: the template knows no tools, or another form.
    """
    if "tools" not in template:
        raise UnsupportedRequestError(
            "tools are given and this model's chat template doesn't know any: the model would "
            "never see them"
        )
    for name, sign, newer in _SIGNS:
        if sign in template and newer not in template:
            return name
    raise UnsupportedRequestError(
        "tools are given and the form in which this model calls them isn't known from its chat "
        f"template; if it is one of {', '.join(name for name, _, _ in _SIGNS)}, say so: "
        "-M tool_format=NAME"
    )


def split_tool_calls(text: str, form: ToolFormat) -> tuple[str, list[ToolCall]]:
    """A completion's text without its tool calls, and the calls.

    A call that can't be parsed has a `parse_error`, which Inspect passes to the model.
    """
    if form == "hermes":
        calls = [_parse_call(found[1]) for found in _HERMES.finditer(text)]
        return (_HERMES.sub("", text).strip() if calls else text), calls
    bare = text.strip().removeprefix("[TOOL_CALLS]").removeprefix("<|python_tag|>").strip()
    if form == "mistral":
        return _split_bare_calls(text, bare, opening="[")
    return _split_bare_calls(text, bare, opening="{")


def _split_bare_calls(text: str, bare: str, *, opening: str) -> tuple[str, list[ToolCall]]:
    """Of a form in which a completion is either an answer or calls."""
    if not bare.startswith(opening) or '"name"' not in bare:
        return text, []
    # Without the form's sign, JSON may be the answer: only a call has arguments.
    if bare == text.strip() and not any(key in bare for key in _ARGUMENTS):
        return text, []
    try:
        found: Any = json.loads(bare)
        listed = cast("list[Any]", found) if isinstance(found, list) else [found]
        calls = [json.dumps(one) for one in listed]
    except (ValueError, RecursionError):
        calls = [bare]
    return "", [_parse_call(call) for call in calls]


def _parse_call(content: str) -> ToolCall:
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        return _make_unreadable_call(content, str(error))
    if not isinstance(found, dict):
        return _make_unreadable_call(content, "it is no JSON object")
    entries = cast("dict[str, Any]", found)
    name: Any = entries.get("name")
    arguments: Any = entries.get("arguments", entries.get("parameters", {}))
    if not isinstance(name, str) or not name:
        return _make_unreadable_call(content, "it has no name")
    if not isinstance(arguments, dict):
        return _make_unreadable_call(content, "its arguments are no JSON object")
    if _is_deeper(arguments, _DEEPEST):
        return _make_unreadable_call(content, f"its arguments have more than {_DEEPEST} levels")
    return ToolCall(f"{name}_{uuid4().hex[:12]}", name, cast("dict[str, Any]", arguments))


def _is_deeper(value: Any, levels: int) -> bool:
    """Return True if lists and objects lie in more than `levels` of each other."""
    if not isinstance(value, dict | list):
        return False
    held = cast("Iterable[Any]", value.values() if isinstance(value, dict) else value)
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in held)


def _make_unreadable_call(content: str, why: str) -> ToolCall:
    error = f"The tool call can't be read, {why}: {content.strip()}"
    return ToolCall(f"{_UNNAMED}_{uuid4().hex[:12]}", _UNNAMED, {}, parse_error=error)
