"""Connections: sockets that listen, and uvicorn's protocol with limits on the head of a request.

uvicorn's `HttpToolsProtocol` isn't documented: the extra `server` pins uvicorn's range, and a test
fails when that class changes (docs/decisions/0016-uvicorn-connections.md).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_openai.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope


_EXTENSION = "evalution.client"


def get_client(scope: Scope) -> Client | None:
    """Return the client of a request; None under a server other than this package's."""
    return cast("Client | None", scope.get("extensions", {}).get(_EXTENSION))


HEAD_S = 30.0
"""Seconds for the request line and the headers to arrive."""
_HEAD_BYTES = 64 * 1024
_MOST_HEADERS = 100
_BODY_HEADERS = {b"content-length", b"transfer-encoding"}
"""With an offer to upgrade, the parser doesn't read the body that they announce."""
_PROBE_S, _MOST_PROBE_S = 0.05, 5.0
"""Seconds between the first and between later interim answers to a half-closed client."""
_TOO_LONG = f"the headers are longer than the {_HEAD_BYTES} bytes that this server takes"
_MOST_HELD = 16 * 1024
"""Bytes beyond which data is sent without waiting for the end of the event loop's turn."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits on the head of a request, and with half-closed clients."""

    is_lost = False
    when_lost: Callable[[], None] | None = None
    """Called for the request that is being answered; pipelined ones wait for it."""

    _unread_bytes = 0
    """Bytes of a head that isn't complete, or of what stands around the parts of a body."""
    _refusal: str | None = None
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
        self._unread_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return  # it wasn't HTTP, and there may be no request
        # A head that arrives in one piece needs no timer. Data after an answer, the rest of a body
        # or blank lines, needs one: uvicorn ends its own wait for the next request with them.
        if self._timer is None and (self._in_head or self.cycle.response_complete):
            self._start_timer()
        if self._unread_bytes > _HEAD_BYTES:
            self.send_400_response(_TOO_LONG)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer to a client that has sent all and closes its side.

        A client that is gone looks the same, and only writing to it shows the difference.
        """
        cycle = self.cycle
        if not cycle or cycle.response_complete or cycle.more_body:
            return False
        if cycle.scope["http_version"] != "1.1":
            return False  # it can't be sent interim answers
        cycle.keep_alive = False
        self._probe(_PROBE_S)
        return True

    def _probe(self, wait_s: float) -> None:
        """Send interim answers until the answer begins; one that fails ends the connection."""
        if self.transport.is_closing() or self.cycle.response_started:
            return
        if not self.pipeline:  # else an earlier answer may be under way
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(wait_s, self._probe, min(2 * wait_s, _MOST_PROBE_S))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it ends a body, and must not count as one of the head
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._refusal = self._find_refusal()
        if self._refusal is not None:
            raise ValueError(self._refusal)  # the parser stops, and uvicorn refuses the request
        self._in_head = False
        self._unread_bytes = 0
        self._stop_timer()
        super().on_headers_complete()
        scope = cast("dict[str, Any]", self.scope)
        scope.setdefault("extensions", {})[_EXTENSION] = Client(self, self.cycle)

    def _find_refusal(self) -> str | None:
        lines = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.url) + lines > _HEAD_BYTES:
            return _TOO_LONG
        if len(self.headers) > _MOST_HEADERS:
            return f"{len(self.headers)} headers; this server takes {_MOST_HEADERS}"
        assert self.parser is not None
        if self.parser.should_upgrade() and _BODY_HEADERS & {name for name, _ in self.headers}:
            return "this server speaks HTTP/1.1 alone; leave out the header Upgrade"
        return None

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser stopped at."""
        answer = to_json(ApiError(400, self._refusal or msg).answer)
        head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n"
        length = f"content-length: {len(answer)}\r\n\r\n"
        self.transport.write((head + length).encode() + answer)
        self.transport.close()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self._end_wait)

    def _end_wait(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self._start_timer()  # a pipelined request doesn't end the one being answered
        else:
            self.timeout_keep_alive_handler()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Client:
    """The client of one request, as its connection knows it.

    With ASGI alone, each request would need a task and time-outs for this, which cost as much as a
    short request.
    """

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle):
        self._connection = connection
        self._cycle = cycle

    @property
    def has_sent_all(self) -> bool:
        """True if the whole body has arrived, so that `receive` returns at once."""
        return not self._cycle.more_body

    @property
    def takes_more(self) -> bool:
        """True if there is room in the write buffer, so that `send` returns at once."""
        return not self._connection.flow.write_paused

    @property
    def is_gone(self) -> bool:
        return self._connection.is_lost

    def call_when_gone(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call `function` if the client disconnects; return a function that cancels this."""
        connection = self._connection

        def note_disconnect() -> None:
            self._cycle.disconnected = True  # uvicorn marks only a connection's latest request
            function()

        def forget() -> None:
            if connection.when_lost is note_disconnect:  # else the next request has begun
                connection.when_lost = None

        connection.when_lost = note_disconnect
        # A large last piece of a body pauses reading, and only a reader notices a disconnect.
        connection.flow.resume_reading()
        return forget

    def drop(self) -> None:
        """Abort the connection; data that was sent and not yet read is lost."""
        self._cycle.disconnected = True  # else uvicorn logs an unfinished answer
        self._connection.transport.abort()


class _GatheringTransport(asyncio.Transport):
    """Joins everything that is written in one turn of the event loop into one packet.

    uvicorn writes head and body separately: two packets, each of which wakes the client.
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
            if not self._transport.is_closing():  # the client may have left since
                self._transport.write(data)


DRAIN_S = 30
"""Seconds for running requests to finish after the signal to end."""
_BACKLOG = 2048
_STARTED_S = 0.002
"""Seconds between two looks at a server that starts."""


def listen(app: ASGIApp, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running requests finish."""
    # uvicorn ends by these signals, and then raises them again for the handlers before its own.
    ends = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in ends]
    try:
        _make_server(app).run([bound])
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def listening(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> Generator[int]:
    """Serve from a thread for the length of a `with`; yield the port.

    Raises:
        ConfigurationError: the port is taken, or the address isn't one of this machine's.
        EngineRuntimeError: the application didn't start; the log says why.
    """
    server = _make_server(app)
    with bind_socket(host, port) as bound:

        def run() -> None:
            with suppress(SystemExit):  # uvicorn's answer to a failed start
                server.run([bound])

        thread = threading.Thread(target=run, name="server", daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            thread.join(_STARTED_S)
        try:
            if not server.started:
                raise EngineRuntimeError("the server didn't start; its log says why")
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def format_url(host: str, port: int) -> str:
    """Return the base URL of an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind_socket(host: str, port: int) -> socket.socket:
    """Make a socket that listens; port 0 is any free one.

    Raises:
        ConfigurationError: the port is taken, or the address isn't one of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        bound = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        raise ConfigurationError(f"can't listen on {host}, port {port}: {error}") from error
    # Accepted sockets inherit it; an answer's last part would wait for an acknowledgement.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def _make_server(app: Any) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=Connection,
        lifespan="on",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_S,
    )
    return uvicorn.Server(config)
