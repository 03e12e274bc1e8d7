"""Conversations, as lm-eval's tasks make them, in place of prompts."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from evalution_core import InvalidRequestError, Message
from evalution_enginekit.chat import ChatTemplate

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


def rendered(
    template: ChatTemplate, messages: Sequence[Message], *, add_generation_prompt: bool
) -> str:
    """The prompt text; without a generation prompt, the last message is left open to go on.

    As lm-eval's `hf` model does it, a template that refuses the messages gets them once more
    without those of the system.

    Raises:
        InvalidRequestError: the template refuses these as well, or doesn't print the last message.
    """
    try:
        return _rendered(template, messages, add_generation_prompt=add_generation_prompt)
    except InvalidRequestError as error:
        others = [message for message in messages if message.get("role") != "system"]
        if len(others) == len(messages):
            raise
        _log.warning("%s; they are rendered without the system's message", error)
        return _rendered(template, others, add_generation_prompt=add_generation_prompt)


def _rendered(
    template: ChatTemplate, messages: Sequence[Message], *, add_generation_prompt: bool
) -> str:
    text = template.render(messages, add_generation_prompt=add_generation_prompt)
    return text if add_generation_prompt else _left_open(text, str(messages[-1]["content"]))


def _left_open(text: str, last: str) -> str:
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
