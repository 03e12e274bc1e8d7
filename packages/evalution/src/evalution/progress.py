"""The progress of a run, in lines: a few for each suite."""

from __future__ import annotations

import time
from typing import Protocol, TextIO, cast

_SHORT_S = 5.0
_LONG_S = 60.0
_SHARE = 0.1

Running = tuple[str, float] | None
"""A metric's name and its value so far."""


class Progress(Protocol):
    """Receiver of a run's progress; every method returns at once."""

    def model_loading(self, model: str, engine: str) -> None: ...
    def model_ready(self, seconds: float) -> None: ...
    def model_failed(self) -> None: ...
    def suite_started(self, name: str, total: int) -> None: ...
    def samples_cached(self, done: int) -> None: ...
    def sample_finished(self, done: int, failed: int, running: Running) -> None: ...
    def suite_finished(self) -> None: ...


class Silence:
    """Report nothing."""

    def model_loading(self, model: str, engine: str) -> None: ...
    def model_ready(self, seconds: float) -> None: ...
    def model_failed(self) -> None: ...
    def suite_started(self, name: str, total: int) -> None: ...
    def samples_cached(self, done: int) -> None: ...
    def sample_finished(self, done: int, failed: int, running: Running) -> None: ...
    def suite_finished(self) -> None: ...


class PlainProgress:
    """Lines: a few for each suite, and one when it ends.

    One comes with each tenth of a suite, but not within five seconds of the last; and one a minute.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._name = ""
        self._total = 0
        self._started = 0.0
        self._reported_at = 0.0
        self._reported_done = 0
        self._before = 0
        self._state = (0, 0, cast(Running, None))

    def model_loading(self, model: str, engine: str) -> None:
        self._say(f"loading {model} on {engine}")

    def model_ready(self, seconds: float) -> None:
        self._say(f"model ready after {seconds:.1f} s")

    def model_failed(self) -> None:
        """Print nothing: the error that follows says it all."""

    def suite_started(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._started = self._reported_at = time.monotonic()
        self._reported_done = self._before = 0
        self._state = (0, 0, None)

    def samples_cached(self, done: int) -> None:
        if done:
            self._say(f"{self._name}: {done} of {self._total} were finished before")
        self._started, self._before = time.monotonic(), done

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        self._state = (done, failed, running)
        waited = time.monotonic() - self._reported_at
        is_share = done - self._reported_done >= _SHARE * self._total
        if done < self._total and (waited >= _LONG_S or (is_share and waited >= _SHORT_S)):
            self._say_state()
            self._reported_at, self._reported_done = time.monotonic(), done

    def suite_finished(self) -> None:
        self._say_state()

    def _say_state(self) -> None:
        done, failed, running = self._state
        rate = format_rate(done - self._before, time.monotonic() - self._started)
        self._say(f"{self._name}: {done}/{self._total}{rate}{format_state(running, failed)}")

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def format_rate(done: int, seconds: float) -> str:
    """`, 12.5/s`; nothing where all was finished before."""
    return f", {done / max(seconds, 1e-9):.1f}/s" if done else ""


def format_state(running: Running, failed: int) -> str:
    """`, acc 0.750, 2 failed`, as far as there is something to show."""
    text = "" if running is None else f", {running[0]} {running[1]:.3f}"
    return text + (f", {failed} failed" if failed else "")
