"""What goes to a client, at the pace at which it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalution_openai.server.gone import ClientGoneError
from evalution_openai.server.json_text import json_bytes

if TYPE_CHECKING:
    from starlette.types import Message, Send

STALL_S = 60.0
"""How long a client may take to read what is sent, before its request is given up."""
_PART = 64 * 1024
"""Bytes of an answer that are on their way at once."""


async def send_messages(send: Send, *messages: Message) -> None:
    """Send messages of ASGI, once the client has taken most of what came before.

    Raises:
        ClientGoneError: the client doesn't read on.
    """
    try:
        async with asyncio.timeout(STALL_S):
            for message in messages:
                await send(message)
    except TimeoutError:
        raise ClientGoneError from None


async def send_json(
    send: Send, status: int, answer: Any, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole JSON answer."""
    await send_bytes(send, status, json_bytes(answer), "application/json", headers)


async def send_bytes(
    send: Send, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole answer; it returns when the client has taken all but the last of it.

    Raises:
        ClientGoneError: the client doesn't read on.
    """
    fields = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    is_long = len(body) > _PART
    await send_messages(
        send,
        {"type": "http.response.start", "status": status, "headers": encoded},
        {"type": "http.response.body", "body": body[:_PART], "more_body": is_long},
    )
    if is_long:
        for begin in range(_PART, len(body), _PART):
            await send_part(send, body[begin : begin + _PART])
        await send_part(send, b"", more=False)


async def send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    """Send a part of an answer's body; raises as `send_messages`."""
    await send_messages(send, {"type": "http.response.body", "body": part, "more_body": more})
