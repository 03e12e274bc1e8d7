"""Bugs of real kinds, each an edit of a kit module, that the schedules must find."""

from __future__ import annotations

MUTANTS = {
    "lost wake-up": (
        "runtime_thread",
        """            while not self._wakes.empty():
                self._wakes.get()
            if self._closing:
                return
""",
        """            if self._closing:
                return
            while not self._wakes.empty():
                self._wakes.get()
""",
    ),
    "lock held over a yield": (
        "streams",
        """        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._results""",
        """        self._changed.acquire()
        if True:
            self._changed.wait_for(
                lambda: (
                    self._results""",
    ),
    "lock held during a step": (
        "runtime_thread",
        "rest = min([task.step() for task in self._tasks], default=IDLE)",
        "with self.lock: rest = min([task.step() for task in self._tasks], default=IDLE)",
    ),
    "close forgets a stream": (
        "generation",
        """            for stream in self._streams:
                stream.fail(error)
""",
        """            for stream in self._streams[1:]:
                stream.fail(error)
""",
    ),
    "slot of a cancelled request isn't freed": (
        "streams",
        """        self.running.pop(number, None)
        self._cancelled.discard(number)
""",
        """        if number not in self._cancelled:
            self.running.pop(number, None)
""",
    ),
    "gc beside a step": (
        "session",
        "self._thread.call(self._release_caches)",
        "self._release_caches()",
    ),
    "dropped stream is ended in the middle of a change": (
        "streams",
        "self._owner.post(self.abort)",
        "self.close()",
    ),
    "dropped stream is forgotten": (
        "streams",
        "self._owner.post(self.abort)",
        "pass",
    ),
    "wake-up of a finalizer is lost with the calls": (
        "runtime_thread",
        """            for _ in range(len(self._calls)):
                _resolve(*self._calls.popleft())
""",
        """            calls = list(self._calls)
            self._calls.clear()
            for call in calls:
                _resolve(*call)
""",
    ),
    "call that comes during close is never ended": (
        "runtime_thread",
        """            self.ensure_open()
            result = self.post(function)
""",
        """            self.ensure_open()
        result = self.post(function)
""",
    ),
    "answer of a neighbour": (
        "scoring",
        "for (number, _, job), score in zip(chunk.rest, found, strict=False)",
        "for (number, _, job), score in zip(chunk.jobs, found, strict=False)",
    ),
    "cancelled request is answered": (
        "streams",
        "return not self.ended and number not in self._cancelled",
        "return not self.ended",
    ),
    "error of the input is lost": (
        "streams",
        "            self._input_error = error\n",
        "            self._input_error = None\n",
    ),
    "error of the input comes before answers": (
        "distributions",
        "                broken = error\n",
        "                raise\n",
    ),
    "close returns early for the second caller": (
        "runtime_thread",
        "            self._released.exception()\n",
        "            pass\n",
    ),
    "end of rows waits under the lock": (
        "distributions",
        'self._thread.post(lambda: end_steps(blocks, "distributions"))',
        'self._thread.call(lambda: end_steps(blocks, "distributions"))',
    ),
}
"""By name: the module, a part of its source, and what takes its place."""
