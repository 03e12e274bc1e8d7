"""What is known of a request's client without waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from starlette.types import Scope


_EXTENSION = "evalution.peer"


class Peer(Protocol):
    """The client of one request, as the connection under it sees it.

    ASGI alone has a task and time-outs for this in each request; a short one costs as much as they.
    """

    @property
    def has_sent_all(self) -> bool:
        """Whether the whole body is here: `receive` gives it at once."""
        ...

    @property
    def takes_more(self) -> bool:
        """Whether there is room for what is sent: `send` returns at once."""
        ...

    @property
    def is_gone(self) -> bool: ...

    def call_when_gone(self, function: Callable[[], None]) -> Callable[[], None]:
        """Have it called should the client go away from now on; gives what ends that."""
        ...

    def drop(self) -> None:
        """End the connection at once; what was sent and isn't read yet is lost."""
        ...


def introduce(peer: Peer, scope: Scope) -> None:
    """Put it where `peer_of` finds it."""
    scope.setdefault("extensions", {})[_EXTENSION] = peer


def peer_of(scope: Scope) -> Peer | None:
    """None under a server other than this package's."""
    return cast("Peer | None", scope.get("extensions", {}).get(_EXTENSION))


HEAD_S = 30.0
"""How long a request line and its headers may take to come."""
_HEAD_BYTES = 64 * 1024
_MOST_HELD = 16 * 1024
"""Bytes that are sent at once, whatever may follow."""


class Connection(HttpToolsProtocol):
    """uvicorn's, which waits for ever for a first request, and takes headers of any size."""

    is_lost = False
    when_lost: Callable[[], None] | None = None
    """For the one request that is being answered; others of the connection wait for it."""

    _head_bytes = 0
    _piece_bytes = 0
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_GatheringTransport(transport, self.loop))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self.is_lost = True
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        self._piece_bytes = len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return  # it was no HTTP, and there may be no request at all
        # A head that comes in one piece needs no timer. What follows an answer needs one, be it the
        # rest of a body or blank lines: for uvicorn it ends the wait for the next request.
        if self._timer is None and (self._in_head or self.cycle.response_complete):
            self._start_timer()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.send_400_response(f"The headers are longer than {_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        # The piece in which a later request begins may be the end of a long body.
        self._head_bytes = -self._piece_bytes if self.cycle else 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        introduce(_Client(self, self.cycle), cast("dict[str, Any]", self.scope))

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self._end_wait)

    def _end_wait(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self._start_timer()  # the beginning of another request ends none that is answered
        else:
            self.timeout_keep_alive_handler()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Client:
    """The client of one request (`Peer`)."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle):
        self._connection = connection
        self._cycle = cycle

    @property
    def has_sent_all(self) -> bool:
        return not self._cycle.more_body

    @property
    def takes_more(self) -> bool:
        return not self._connection.flow.write_paused

    @property
    def is_gone(self) -> bool:
        return self._connection.is_lost

    def call_when_gone(self, function: Callable[[], None]) -> Callable[[], None]:
        connection = self._connection

        def leave() -> None:
            self._cycle.disconnected = True  # uvicorn tells a connection's latest request alone
            function()

        def forget() -> None:
            if connection.when_lost is leave:  # else the next request has begun
                connection.when_lost = None

        connection.when_lost = leave
        # A body whose last piece is large stops it, and only who reads learns that a client goes.
        connection.flow.resume_reading()
        return forget

    def drop(self) -> None:
        self._cycle.disconnected = True  # else uvicorn logs an answer that wasn't finished
        self._connection.transport.abort()


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

    def abort(self) -> None:
        self._held.clear()
        self._transport.abort()

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
