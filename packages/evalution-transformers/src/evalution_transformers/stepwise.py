"""A call that reports as it goes, turned into an iterator of its reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class _Abandoned(BaseException):
    """Unwinds a call that nobody waits for any more; no `except Exception` on its way stops it."""


class _Ended:
    """The last thing that a call says: the exception that ended it, or that it returned."""

    def __init__(self, error: BaseException | None):
        self.error = error


class StepwiseCall(Generic[T]):
    """Runs `call(report)` on a thread of its own, which only moves while the iterator is advanced.

    Caller and call never run at the same time, so nothing between them needs a lock. Closing the
    iterator ends the call at its next report.
    """

    def __init__(self, call: Callable[[Callable[[T], None]], None], name: str):
        self._call = call
        self._name = name
        self._reports: SimpleQueue[T | _Ended] = SimpleQueue()
        self._turns: SimpleQueue[bool] = SimpleQueue()

    def steps(self) -> Iterator[T]:
        """What the call reports, in order; its exception is raised here."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        try:
            while True:
                report = self._reports.get()
                if isinstance(report, _Ended):
                    break
                yield report
                self._turns.put(True)
        except GeneratorExit:
            self._turns.put(False)
            raise
        finally:
            thread.join()
        error = report.error
        # An exception that its own frames hold would keep the tensors in them alive.
        del report
        try:
            if error is not None:
                raise error
        finally:
            del error

    def _report(self, value: T) -> None:
        self._reports.put(value)
        if not self._turns.get():
            raise _Abandoned

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._call(self._report)
        except _Abandoned:
            return
        except BaseException as caught:  # noqa: BLE001 - raised where the iterator is read
            error = caught
        self._reports.put(_Ended(error))
        del error
