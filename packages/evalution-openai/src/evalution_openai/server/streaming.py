"""Sending of answers, whole or as server-sent events, at the pace at which they are read."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from evalution_openai.server.connections import Client
from evalution_openai.server.errors import to_api_error

if TYPE_CHECKING:
    from starlette.types import Message, Send


def encode_json(value: Any) -> bytes:
    """Encode as compact JSON; NaN and infinities become null."""
    return to_json(value, inf_nan_mode="null")


_DEEPEST = 5
"""The depth of the entries of a choice's log-probabilities in an answer."""


def encode_in_steps(value: Any) -> bytes:
    """Encode a long answer as `encode_json`, on a thread, so that other threads run meanwhile.

    Each list of objects and each object down to such a depth is encoded part by part, since
    encoding one value holds Python's lock.
    """
    return b"".join(_encode_parts(value, 0))


def _encode_parts(value: Any, depth: int) -> Iterator[bytes]:
    fields = cast("dict[Any, Any]", value) if isinstance(value, dict) else {}
    items = cast("list[Any]", value) if isinstance(value, list) else []
    separator = b""
    if depth < _DEEPEST and fields and all(isinstance(name, str) for name in fields):
        yield b"{"
        for name, one in fields.items():
            yield separator + encode_json(name) + b":"
            yield from _encode_parts(one, depth + 1)
            separator = b","
        yield b"}"
    elif depth < _DEEPEST and items and isinstance(items[-1], dict):
        yield b"["
        for item in items:
            yield separator
            yield from _encode_parts(item, depth + 1)
            separator = b","
        yield b"]"
    else:
        yield encode_json(value)


STALL_S = 60.0
"""Seconds for a client to read what is sent before its request is dropped."""
_PART = 64 * 1024
"""Bytes of an answer that are sent at once."""


_PROCESS = secrets.token_hex(8)
_NUMBERS = count()


def make_id(prefix: str) -> str:
    """Make an id that no other answer has, of this process or of another."""
    return f"{prefix}-{_PROCESS}{next(_NUMBERS):08x}"


_HARMLESS_ID = re.compile(rb"[!-~]{1,200}")


class ResponseSender:
    """ASGI's `send` of one request, which drops a client that doesn't read.

    Attributes:
        status: the answer's status; 0 until it has begun.
        request_id: the client's `x-request-id`, or a new one; the answer has it as a header.
    """

    def __init__(self, send: Send, client: Client | None, headers: Iterable[tuple[bytes, bytes]]):
        self.status = 0
        given = dict(headers).get(b"x-request-id", b"")
        usable = _HARMLESS_ID.fullmatch(given)
        self.request_id = given.decode() if usable else make_id("req")
        self._send = send
        self._client = client

    async def __call__(self, message: Message) -> None:
        """Send a message as soon as the client has read most of the data before it.

        Raises:
            ClientDisconnect: the client doesn't read any further.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            header = (b"x-request-id", self.request_id.encode())
            message["headers"] = [*message["headers"], header]
        if self._client is not None and self._client.takes_more:
            await self._send(message)
            return
        try:
            async with asyncio.timeout(STALL_S):
                await self._send(message)
        except TimeoutError:
            if self._client is not None:
                # Otherwise the connection, and a shutdown, would wait for the client to read on.
                self._client.drop()
            raise ClientDisconnect from None


async def send_json(
    send: Send, status: int, answer: Any, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole answer as JSON, or one that is encoded already.

    It returns when the client has read all but the last part. `headers` are sent beside the type
    and the length of the body.
    """
    body = answer if isinstance(answer, bytes) else encode_json(answer)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fields += [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    for begin in range(0, len(body), _PART):
        end = begin + _PART
        await send_part(send, body[begin:end], more=end < len(body))


async def send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    """Send a part of an answer's body."""
    await send({"type": "http.response.body", "body": part, "more_body": more})


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """An event for each chunk, then `[DONE]`; chunks in bytes are encoded.

    A failure before the first chunk fails the request; a later one is sent as the last event.
    """

    def __init__(self, chunks: AsyncGenerator[dict[str, Any] | bytes], secrets: Iterable[str]):
        self._chunks = chunks
        self._secrets = secrets

    async def send(self, send: Send) -> None:
        """Send all events.

        Raises:
            ApiError, EvalutionError: it failed before anything was sent.
            ClientDisconnect: the client doesn't read any further.
        """
        async with aclosing(self._chunks) as chunks:
            first = await anext(chunks, None)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            end = b"data: [DONE]\n\n"
            try:
                if first is not None:
                    await _send_event(send, first)
                async for chunk in chunks:
                    await _send_event(send, chunk)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001 - the client gets an error event
                failure = to_api_error(error, self._secrets)
                end = b"data: " + encode_json(failure.answer) + b"\n\n"
            await send_part(send, end, more=False)


async def _send_event(send: Send, chunk: dict[str, Any] | bytes) -> None:
    encoded = chunk if isinstance(chunk, bytes) else encode_json(chunk)
    await send_part(send, b"data: " + encoded + b"\n\n")
