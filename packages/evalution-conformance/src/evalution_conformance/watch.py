"""Runs a check where it can't hang the run: on a daemon thread, for a bounded time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")

Errand = tuple[Callable[[], Any], Future[Any]]

_here = threading.local()


class StuckError(AssertionError):
    """A check, or a call within it, didn't come back in time."""


def watched(function: Callable[[], R], *, timeout: float) -> R:
    """What `function` returns or raises, called on a daemon thread of its own.

    Raises:
        StuckError: it took longer than `timeout` seconds, errands not counted.
    """
    inbox: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
    result: Future[R] = Future()

    def run() -> None:
        _here.inbox = inbox
        _settle(function, result)
        inbox.put(None)

    threading.Thread(target=run, name="conformance check", daemon=True).start()
    deadline = time.monotonic() + timeout
    while True:
        try:
            errand = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise StuckError(f"the check didn't end within {timeout:g} seconds") from None
        if errand is None:
            return result.result()
        begun = time.monotonic()
        _settle(*errand)
        deadline += time.monotonic() - begun


def on_main_thread(function: Callable[[], R]) -> R:
    """Call `function` on the thread that waits in `watched`; without one, call it here.

    For building sessions: it may take minutes, and runtimes install signal handlers.
    """
    inbox: queue.SimpleQueue[Errand | None] | None = getattr(_here, "inbox", None)
    if inbox is None:
        return function()
    result: Future[R] = Future()
    inbox.put((function, result))
    return result.result()


def within(function: Callable[[], R], *, timeout: float, doing: str) -> R:
    """As `function()` on another thread; `StuckError` says what was being done."""
    result: Future[R] = Future()
    threading.Thread(
        target=_settle, args=(function, result), name="conformance caller", daemon=True
    ).start()
    try:
        return result.result(timeout)
    except TimeoutError:
        if result.done():
            raise
        raise StuckError(f"{doing} didn't come back within {timeout:g} seconds") from None


def let_go(function: Callable[[], object]) -> None:
    """Call `function` on another thread; nobody waits for it or hears of its error."""
    unread: Future[object] = Future()
    threading.Thread(target=_settle, args=(function, unread), daemon=True).start()


def _settle(function: Callable[[], Any], result: Future[Any]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        result.set_exception(error)
