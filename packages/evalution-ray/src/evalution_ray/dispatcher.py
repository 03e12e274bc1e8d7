"""The thread that calls Ray for all workers of a session."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable
from itertools import count

Errand = Callable[[], None]


class Dispatcher:
    """Runs errands one after the other, some after a while, on one thread for any number of actors.

    So Ray's calls, which may take a moment, are never made under the scheduler's lock, and a
    thousand actors need no thousand threads. An errand raises nothing: the others need the thread.
    """

    def __init__(self) -> None:
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Errand]] = []
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="evalution ray", daemon=True)
        self._thread.start()

    def put(self, errand: Errand) -> None:
        self._errands.put(errand)

    def after(self, seconds: float, errand: Errand) -> None:
        """To be called on the dispatcher's own thread."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), errand))

    def close(self) -> None:
        """Run no more errands, and wait for the one at hand. Idempotent."""
        self._errands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            wait = self._later[0][0] - time.monotonic() if self._later else None
            try:
                errand = self._errands.get(timeout=None if wait is None else max(0.0, wait))
            except queue.Empty:
                continue
            if errand is None:
                return
            errand()
