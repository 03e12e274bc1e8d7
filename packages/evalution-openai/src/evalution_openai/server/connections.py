"""Connections to the server, and what a client may take before its request has begun."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 30.0
"""How long a request line and its headers may take to come."""
_HEAD_BYTES = 64 * 1024
_MOST_HELD = 16 * 1024
"""Bytes that are sent at once, whatever may follow."""


class Connection(HttpToolsProtocol):
    """uvicorn's, which waits for ever for a first request, and takes headers of any size."""

    _head_bytes = 0
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_GatheringTransport(transport, self.loop))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The headers are longer than {_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _GatheringTransport(asyncio.Transport):
    """Sends what is written in one turn of the event loop in one piece.

    uvicorn writes a head and its body one after the other: two packets, of which each wakes the
    client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: list[Any] = []
        self._size = 0

    def write(self, data: Any) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._size = 0
            self._transport.write(data)
