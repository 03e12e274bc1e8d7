"""Runs a check on a daemon thread for a bounded time, so that it can't hang the run."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")

MainThreadCall = tuple[Callable[[], Any], Future[Any]]

_thread = threading.local()
_DEEPEST = 16
"""Innermost calls of a thread that are shown."""


class StuckError(AssertionError):
    """A check, or a call within it, didn't come back in time."""


def run_watched(function: Callable[[], R], *, timeout: float) -> R:
    """Call `function` on a daemon thread of its own, and return or raise as it does.

    Raises:
        StuckError: it took longer than `timeout` seconds, not counting `call_on_main_thread`.
    """
    inbox: queue.SimpleQueue[MainThreadCall | None] = queue.SimpleQueue()
    result: Future[R] = Future()

    def run() -> None:
        _thread.inbox = inbox
        _set_result(function, result)
        inbox.put(None)

    threading.Thread(target=run, name="conformance check", daemon=True).start()
    deadline = time.monotonic() + timeout
    while True:
        try:
            call = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise _make_stuck_error(f"the check didn't end within {timeout:g} seconds") from None
        if call is None:
            return result.result()
        begun = time.monotonic()
        _set_result(*call)
        deadline += time.monotonic() - begun


def call_on_main_thread(function: Callable[[], R]) -> R:
    """Call `function` on the thread that waits in `run_watched`; without one, on this thread.

    For building sessions: it may take minutes, and runtimes install signal handlers.
    """
    inbox: queue.SimpleQueue[MainThreadCall | None] | None = getattr(_thread, "inbox", None)
    if inbox is None:
        return function()
    result: Future[R] = Future()
    inbox.put((function, result))
    return result.result()


def call_within(function: Callable[[], R], *, timeout: float, doing: str) -> R:
    """Call `function` on another thread; `doing` describes the call in the `StuckError`."""
    (result,) = call_at_once([function], timeout=timeout, doing=doing)
    return result


def call_at_once(functions: Sequence[Callable[[], R]], *, timeout: float, doing: str) -> list[R]:
    """As `call_within`, with a thread for each function, all at the same time."""
    results: list[Future[R]] = [Future() for _ in functions]
    for call in zip(functions, results, strict=True):
        threading.Thread(
            target=_set_result, args=call, name="conformance caller", daemon=True
        ).start()
    deadline = time.monotonic() + timeout
    for result in results:
        try:
            result.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            if result.done():
                raise
            late = f"{doing} didn't come back within {timeout:g} seconds"
            raise _make_stuck_error(late) from None
    return [result.result() for result in results]


def _make_stuck_error(message: str) -> StuckError:
    """Return the error with a note of where each of the other threads is."""
    error = StuckError(message)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        if ident != threading.get_ident():
            stack = "".join(traceback.format_stack(frame, _DEEPEST))
            error.add_note(f"Thread {names.get(ident, ident)!r} is at\n{stack}")
    return error


def call_unawaited(function: Callable[[], object]) -> None:
    """Call `function` on another thread, without waiting for it and dropping its error."""
    unread: Future[object] = Future()
    threading.Thread(target=_set_result, args=(function, unread), daemon=True).start()


def _set_result(function: Callable[[], Any], result: Future[Any]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        result.set_exception(error)
