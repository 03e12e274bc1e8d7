"""JSON as it goes out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from evalution_core import EvalutionError
from evalution_openai.server.connections import Peer
from evalution_openai.server.errors import ClientGoneError, Problem, problem_of, unexpected

if TYPE_CHECKING:
    from starlette.types import Message, Send


def json_bytes(value: Any) -> bytes:
    """Compact JSON; a number that JSON can't spell becomes null."""
    return to_json(value, inf_nan_mode="null")


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


_log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Chunks as they come, then `[DONE]`.

    What fails before the first chunk fails the request; later, the error is the last event.
    """

    def __init__(self, chunks: AsyncGenerator[dict[str, Any]]):
        self._chunks = chunks

    async def send(self, send: Send) -> None:
        """Send it all.

        Raises:
            Problem, EvalutionError: it failed before anything was sent.
            ClientGoneError: the client doesn't read on.
        """
        async with aclosing(self._chunks) as chunks:
            first = await anext(chunks, None)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            end = b"data: [DONE]\n\n"
            try:
                if first is not None:
                    await _event(send, first)
                async for chunk in chunks:
                    await _event(send, chunk)
            except ClientGoneError:
                raise
            except (Problem, EvalutionError) as error:
                problem = problem_of(error) if isinstance(error, EvalutionError) else error
                end = b"data: " + json_bytes(problem.answer) + b"\n\n"
            except Exception:  # noqa: BLE001 - whatever it is, the client learns of it
                _log.exception("a stream failed")
                end = b"data: " + json_bytes(unexpected().answer) + b"\n\n"
            await send_part(send, end, more=False)


async def _event(send: Send, chunk: dict[str, Any]) -> None:
    await send_part(send, b"data: " + json_bytes(chunk) + b"\n\n")
