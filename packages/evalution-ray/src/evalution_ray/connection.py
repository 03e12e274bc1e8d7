"""This process's connection to a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.redaction import redact_text
from evalution_ray.upstream import Ray

_CLIENT = "ray://"
_REACH_S = 5.0
"""Ray itself tries for four minutes to reach an address where nothing listens."""
_ADDRESS = "RAY_ADDRESS"
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

_lock = threading.Lock()


@dataclass(slots=True)
class _Own:
    """A connection that was made here; it ends with the last of its users."""

    address: str | None
    users: int = 0


_own: _Own | None = None


def load_ray() -> Ray:
    """The module `ray`.

    Raises:
        EngineUnavailableError: it can't be imported.
    """
    try:
        return cast(Ray, import_module("ray"))
    except ImportError as error:
        raise EngineUnavailableError(
            f"engine RayReplicas needs Ray, which can't be imported: {error}; "
            "pip install evalution-ray"
        ) from error


@contextmanager
def connect(address: str | None, *, log_to_driver: bool) -> Generator[Ray]:
    """Connect this process, unless it is connected; the last user ends what was started here.

    A cluster that was found is never ended.

    Args:
        address: `auto`, `host:port` or `ray://host:port` of a cluster that runs. None for the one
            that this process is connected to or that RAY_ADDRESS names, else for a new one of this
            machine alone. A connection that is there already is used.
        log_to_driver: whether what actors print comes to this process's output.

    Raises:
        ConfigurationError: the process is connected to another cluster.
        EngineUnavailableError: no cluster answers there, or it refuses this process.
    """
    global _own
    ray = load_ray()
    with _lock:
        if ray.is_initialized():
            _check_same(ray, address)
        else:
            if address is None:
                address = os.environ.get(_ADDRESS) or None
            _init(ray, address, log_to_driver=log_to_driver)
            _own = _Own(address)
        own = _own
        if own is not None:
            own.users += 1
    try:
        yield ray
    finally:
        with _lock:
            if own is not None:
                own.users -= 1
                if not own.users:
                    _own = None
                    ray.shutdown()


def _check_same(ray: Ray, address: str | None) -> None:
    if address in (None, "auto") or (_own is not None and _own.address == address):
        return
    here = "a cluster of its own" if _own is not None and _own.address is None else None
    if here is None:
        here = _own.address if _own is not None else _find_address(ray)
        if here == address:
            return
    raise ConfigurationError(
        f"option 'address' of engine RayReplicas is {address!r}, but this process is connected to "
        f"{here} already; a process can be in one cluster: leave the address out to use that one, "
        "or disconnect first (ray.shutdown())"
    )


def _find_address(ray: Ray) -> str:
    try:
        return ray.get_runtime_context().gcs_address
    except AttributeError:  # a client, whose context has no address
        return "a cluster by ray.init()"


def _init(ray: Ray, address: str | None, *, log_to_driver: bool) -> None:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": log_to_driver}
    if address is None:
        with _own_machine(), _signals_kept():
            ray.init("local", include_dashboard=False, **options)
        return
    _check_reachable(address)
    if address.startswith(_CLIENT):
        options = {}
    try:
        with _signals_kept():
            ray.init(address, **options)
    except (ConnectionError, TimeoutError, ImportError, RuntimeError, ValueError) as error:
        raise _unavailable(address, error) from error
    except ray.exceptions.AuthenticationError as error:
        raise _unavailable(address, error) from error


def _check_reachable(address: str) -> None:
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if address == "auto":
        return
    if not host or "/" in host or not port.isdecimal():
        named, advice = "option 'address' of engine RayReplicas", "leave it out"
        if address == os.environ.get(_ADDRESS):
            named, advice = _ADDRESS, "unset it"
        raise ConfigurationError(
            f"{named} must be 'auto', 'host:port' or 'ray://host:port', got "
            f"{redact_text(address)!r}; {advice} for a cluster of this machine"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        raise _unavailable(address, error) from error


def _unavailable(address: str, error: Exception) -> EngineUnavailableError:
    first = str(error).strip().partition("\n")[0]
    hint = "start one with `ray start --head`, or leave the address out"
    if address == os.environ.get(_ADDRESS):
        hint = f"start one with `ray start --head`, or unset {_ADDRESS}"
    if isinstance(error, ImportError):
        hint = "an address with ray:// needs pip install 'ray[client]'"
    elif type(error).__name__ == "AuthenticationError":
        hint = "put the cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN"
    return EngineUnavailableError(
        f"no Ray cluster can be used at {redact_text(address)!r}: {type(error).__name__}: "
        f"{redact_text(first)}; {hint}"
    )


@contextmanager
def _own_machine() -> Generator[None]:
    """Have the cluster that is started here use this machine alone, and what is installed here.

    Ray listens on 127.0.0.1 where an option says that this machine can't join a larger cluster;
    otherwise its ports are open on all interfaces, guarded by a token. Under `uv run` it would
    start workers by that command too, in a copy of the working directory. It reads the variables
    of both when it is imported.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before, known = os.environ.get(_CLUSTERS), constants.ENABLE_RAY_CLUSTER
    copies = constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV
    os.environ[_CLUSTERS] = "0"
    constants.ENABLE_RAY_CLUSTER = constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = known
        constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = copies
        if before is None:
            del os.environ[_CLUSTERS]
        else:
            os.environ[_CLUSTERS] = before


@contextmanager
def _signals_kept() -> Generator[None]:
    """`ray.init` replaces the handler of SIGTERM; a caller keeps its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
