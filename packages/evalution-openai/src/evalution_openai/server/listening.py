"""An application on a port: in the foreground until a signal, or behind a `with`."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_openai.server.connections import Connection
from evalution_openai.server.settings import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

DRAIN_S = 30
"""How long running requests may go on after the signal to end."""
_BACKLOG = 2048


def check_bind(host: str, *, has_key: bool, public_without_key: bool) -> None:
    """Raise `ConfigurationError` for an address that others can reach, without a key.

    Args:
        host: a name or an address; only those of the loopback device are closed to others.
        has_key: whether clients need a key.
        public_without_key: the operator said so a second time.
    """
    if has_key or public_without_key or is_loopback(host):
        return
    raise ConfigurationError(
        f"--host {host} lets everybody who reaches this machine use the model; set a key with "
        "--api-key-env NAME, or say --public-without-key as well"
    )


def listen(app: ASGIApp, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running requests finish."""
    before = {number: signal.signal(number, _pass) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # When it has drained, uvicorn raises the signal once more, for the handler from above.
        _server(app).run([bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass(number: int, frame: FrameType | None) -> None:
    """The server has ended by this signal already."""


@contextmanager
def listening(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> Generator[str]:
    """Serve from a thread of its own, as long as the `with` goes on; gives the base URL.

    Raises:
        ConfigurationError: the port is taken, or the address isn't one of this machine's.
        EngineRuntimeError: the application didn't start; the log says why.
    """
    bound = bound_socket(host, port)
    address = bound.getsockname()
    started = threading.Event()
    server = _server(app, started)

    def run() -> None:
        try:
            server.run([bound])
        finally:
            started.set()

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    started.wait()
    try:
        if not server.started:
            raise EngineRuntimeError("the server didn't start; its log says why")
        yield f"http://{_url_host(host)}:{address[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one.

    Raises:
        ConfigurationError: the port is taken, or the address isn't one of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # With its protocol named, unlike `socket.create_server`: asyncio sets TCP_NODELAY on such
        # sockets alone, and without it an answer's body waits 40 ms for the header's receipt.
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"can't listen on {host}, port {port}: {error}")


class _Server(uvicorn.Server):
    """Tells when it has started."""

    def __init__(self, config: uvicorn.Config, started: threading.Event | None):
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._told is not None:
            self._told.set()


def _server(app: Any, started: threading.Event | None = None) -> _Server:
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
    return _Server(config, started)
