"""An application on a port: in the foreground until a signal, or on a thread."""

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
"""Seconds for running requests to finish after the signal to end."""
_BACKLOG = 2048


def check_bind(host: str, *, has_key: bool, public_without_key: bool) -> None:
    """Raise `ConfigurationError` for an address that others can reach, without a key.

    Args:
        host: a name or an address; only those of the loopback device are unreachable for others.
        has_key: clients need a key.
        public_without_key: the operator allows it explicitly.
    """
    if has_key or public_without_key or is_loopback(host):
        return
    raise ConfigurationError(
        f"host {host} lets everybody who reaches this machine use the model; set a key with "
        "--api-key-env NAME (in Python api_key), or allow it with --public-without-key (any_host)"
    )


def listen(app: ASGIApp, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running requests finish."""
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # uvicorn raises the signal again after the shutdown, for the previous handler.
        _make_server(app).run([bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore the signal that already ended the server."""


@contextmanager
def listening(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> Generator[int]:
    """Serve from a thread for the length of a `with`; yield the port.

    Raises:
        ConfigurationError: the port is taken, or the address isn't one of this machine's.
        EngineRuntimeError: the application didn't start; the log says why.
    """
    bound = bind_socket(host, port)
    address = bound.getsockname()
    started = threading.Event()
    server = _make_server(app, started)

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
        yield address[1]
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
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # With the protocol, unlike `socket.create_server`: asyncio sets TCP_NODELAY only on such
        # sockets; without it an answer's body waits 40 ms for the acknowledgement of its head.
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _make_listen_error(host, port, error) from error
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise _make_listen_error(host, port, error) from error
    return bound


def _make_listen_error(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"can't listen on {host}, port {port}: {error}")


class _Server(uvicorn.Server):
    """A server that sets an event when it has started."""

    def __init__(self, config: uvicorn.Config, started: threading.Event | None):
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._started is not None:
            self._started.set()


def _make_server(app: Any, started: threading.Event | None = None) -> _Server:
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
