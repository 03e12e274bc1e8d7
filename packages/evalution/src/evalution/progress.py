"""The progress of a run, in lines: a few for each suite."""

from __future__ import annotations

import logging
import time
from typing import TextIO

_SHORT_S = 5.0
_LONG_S = 60.0
_SHARE = 0.1


def is_quiet() -> bool:
    """Report whether the logger `evalution` lets no warning pass, as `--quiet` sets it."""
    return not logging.getLogger("evalution").isEnabledFor(logging.WARNING)


Running = tuple[str, float] | None
"""A metric's name and its value so far."""


class Progress:
    """Receiver of a run's progress, which reports nothing; every method returns at once."""

    def model_loading(self, model: str, engine: str) -> None: ...
    def model_ready(self, seconds: float) -> None: ...
    def model_failed(self) -> None: ...
    def suite_started(self, name: str, total: int) -> None: ...
    def samples_cached(self, done: int) -> None: ...
    def sample_finished(self, done: int, failed: int, running: Running) -> None: ...
    def suite_finished(self) -> None: ...


class SuiteProgress(Progress):
    """Keeps the state of the suite that runs: its rate, its main metric and its failures."""

    def __init__(self) -> None:
        self.name = ""
        self.total = 0
        self.done = 0
        self._started = 0.0
        self._cached = 0
        self._failed = 0
        self._running: Running = None

    def suite_started(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.done = self._cached = self._failed = 0
        self._running = None
        self._started = time.monotonic()

    def samples_cached(self, done: int) -> None:
        self._started, self._cached = time.monotonic(), done

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        self.done, self._failed, self._running = done, failed, running

    def format_state(self) -> str:
        """Return `12.5/s, acc 0.750, 2 failed`, as far as there is something to show."""
        computed = self.done - self._cached
        rate = computed / max(time.monotonic() - self._started, 1e-9)
        parts = [f"{rate:.1f}/s"] if computed else []
        if self._running is not None:
            parts.append(f"{self._running[0]} {self._running[1]:.3f}")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)


class PlainProgress(SuiteProgress):
    """Lines: a few for each suite, and one when it ends.

    One comes with each tenth of a suite, but not within five seconds of the last; and one a minute.
    """

    def __init__(self, stream: TextIO):
        super().__init__()
        self._stream = stream
        self._reported_at = 0.0
        self._reported_done = 0

    def model_loading(self, model: str, engine: str) -> None:
        self._print(f"loading {model} on {engine}")

    def model_ready(self, seconds: float) -> None:
        self._print(f"model ready after {seconds:.1f} s")

    def suite_started(self, name: str, total: int) -> None:
        super().suite_started(name, total)
        self._reported_at, self._reported_done = time.monotonic(), 0

    def samples_cached(self, done: int) -> None:
        super().samples_cached(done)
        if done:
            self._print(f"{self.name}: {done} of {self.total} were finished before")

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        super().sample_finished(done, failed, running)
        waited = time.monotonic() - self._reported_at
        is_share = done - self._reported_done >= _SHARE * self.total
        if done < self.total and (waited >= _LONG_S or (is_share and waited >= _SHORT_S)):
            self.suite_finished()
            self._reported_at, self._reported_done = time.monotonic(), done

    def suite_finished(self) -> None:
        state = self.format_state()
        self._print(f"{self.name}: {self.done}/{self.total}{f', {state}' if state else ''}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
