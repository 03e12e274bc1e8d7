"""Clients of the installed tinker: made within a time, and closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from evalution_core import EngineUnavailableError, scrub
from evalution_enginekit import runtime_errors

WEIGHTS = "tinker://"
"""How the path of saved weights begins."""

CLOSING_S = 10.0
"""For telling the server of the end."""

_log = logging.getLogger(__name__)


class OwnClient:
    """A service client that a session made for itself."""

    def __init__(self, tinker: Any, service: Any):
        self._tinker = tinker
        self._service = service

    def close(self) -> None:
        """End its session at the server and let go of its connections, within ten seconds.

        A server that can't be told any more forgets the session by itself.
        """
        # On a thread: while the client still tries to connect, it holds the lock that its `close`
        # takes (tinker 0.38), and it tries for ever.
        results = _begun(self._close)
        try:
            _, error = results.get(timeout=CLOSING_S)
        except Empty:
            error = TimeoutError(f"nothing within {CLOSING_S:g} s")
        if isinstance(error, self._tinker.TinkerError | TimeoutError):
            _log.info("the server was not told of the end: %s", scrub(str(error)))
        elif error is not None:
            raise error

    def _close(self) -> None:
        if hasattr(self._service, "close"):
            self._service.close("success").result(timeout=CLOSING_S)
        else:  # tinker 0.24 closes what is inside
            self._service.holder.close()


def sampling_client(service: Any, name: str) -> Any:
    """A sampling client for a base model, or for saved weights."""
    chosen = {"model_path" if name.startswith(WEIGHTS) else "base_model": name}
    return settled(service.create_sampling_client(**chosen))


def settled(made: Any) -> Any:
    """A client, out of the future that tinker 0.38 gives in its place."""
    return made.result() if hasattr(made, "result") else made


def connected(make: Callable[[], Any], timeout_s: float, url: str | None) -> Any:
    """What `make` returns, within `timeout_s`: the client's own calls wait for ever.

    Raises:
        EngineUnavailableError: it took longer; the thread that waits is left behind.
        EngineRuntimeError: the client failed.
    """
    results = _begun(make)
    try:
        made, error = results.get(timeout=timeout_s)
    except Empty:
        where = "" if url is None else f" at {scrub(url)}"
        raise EngineUnavailableError(
            f"the Tinker server{where} made no sampling client within {timeout_s:g} s"
        ) from None
    with runtime_errors("making a sampling client"):
        if error is not None:
            raise error
    return made


def _begun(call: Callable[[], Any]) -> SimpleQueue[tuple[Any, BaseException | None]]:
    """Where the result of `call`, or what it raises, will stand: it runs on a thread of its own."""
    results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - told on the thread that asked
            results.put((None, error))

    threading.Thread(target=run, name="evalution-tinker call", daemon=True).start()
    return results
