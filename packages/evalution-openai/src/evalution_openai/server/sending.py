"""What goes to a client, at the pace at which it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalution_openai.server.gone import ClientGoneError
from evalution_openai.server.json_text import json_bytes
from evalution_openai.server.peer import Peer

if TYPE_CHECKING:
    from starlette.types import Message, Send

STALL_S = 60.0
"""How long a client may take to read what is sent, before its request is given up."""
_PART = 64 * 1024
"""Bytes of an answer that are on their way at once."""


class Outgoing:
    """ASGI's `send` of one request, which gives up a client that doesn't read.

    Attributes:
        status: of the answer; 0 until it has begun.
    """

    def __init__(self, send: Send, peer: Peer | None):
        self.status = 0
        self._send = send
        self._peer = peer

    async def __call__(self, message: Message) -> None:
        """Send a message, once the client has taken most of what came before.

        Raises:
            ClientGoneError: the client doesn't read on.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
        if self._peer is not None and self._peer.takes_more:
            await self._send(message)
            return
        try:
            async with asyncio.timeout(STALL_S):
                await self._send(message)
        except TimeoutError:
            if self._peer is not None:
                # Else the connection waits for the client to read the rest, and a drain with it.
                self._peer.drop()
            raise ClientGoneError from None


async def send_json(
    send: Send, status: int, answer: Any, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole JSON answer."""
    await send_bytes(send, status, json_bytes(answer), "application/json", headers)


async def send_bytes(
    send: Send, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole answer; it returns when the client has taken all but the last of it."""
    fields = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    for begin in range(0, len(body), _PART):
        end = begin + _PART
        await send_part(send, body[begin:end], more=end < len(body))
    if not body:
        await send_part(send, b"", more=False)


async def send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    """Send a part of an answer's body."""
    await send({"type": "http.response.body", "body": part, "more_body": more})
