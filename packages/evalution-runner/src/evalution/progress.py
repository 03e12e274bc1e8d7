"""The progress of a run, in lines: a few for each suite, and one where nothing else is printed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event, Thread
from typing import TextIO

_SHORT_S = 5.0
_SILENCE_S = 60.0
"""A log with nothing new for that long looks like one of a process that hangs."""
_WAIT_S = 30.0
_SHARE = 0.1

Running = tuple[str, float] | None
"""A metric's name and its value so far."""


def is_quiet() -> bool:
    """Report whether the logger `evalution` lets no warning pass, as `--quiet` sets it."""
    return not logging.getLogger("evalution").isEnabledFor(logging.WARNING)


class Progress:
    """Receiver of a run's progress, which reports nothing; every method returns at once."""

    def suites_planned(self, totals: Sequence[int]) -> None: ...
    def rows_checking(self, suite: str) -> None: ...
    def rows_checked(self) -> None: ...
    def model_loading(self, model: str, engine: str) -> None: ...
    def model_ready(self, seconds: float) -> None: ...
    def model_failed(self) -> None: ...
    def suite_started(self, name: str, total: int) -> None: ...
    def samples_cached(self, done: int) -> None: ...
    def tokens_computed(self, count: int) -> None: ...
    def sample_finished(self, done: int, failed: int, running: Running) -> None: ...
    def suite_finished(self) -> None: ...


class SuiteProgress(Progress):
    """Keeps the state of the run: its rate, its main metric, its failures, and the time left."""

    def __init__(self) -> None:
        self.name = ""
        self.total = 0
        self.done = 0
        self._planned: Sequence[int] = ()
        self._number = 0
        self._started = self._answered = 0.0
        self._cached = self._failed = self._tokens = 0
        self._running: Running = None
        self._before = (0, 0.0)
        """Samples that were computed in earlier suites, and the seconds that they took."""

    @property
    def place(self) -> tuple[int, int] | None:
        """The suite's number among those of the run, and their count if there are several."""
        count = len(self._planned)
        return (self._number, count) if count > 1 else None

    def suites_planned(self, totals: Sequence[int]) -> None:
        self._planned, self._number = totals, 0

    def suite_started(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self._number += 1
        self.done = self._cached = self._failed = self._tokens = 0
        self._running = None
        self._started = self._answered = time.monotonic()

    def samples_cached(self, done: int) -> None:
        self.done = self._cached = done
        self._started, self._tokens = time.monotonic(), 0

    def tokens_computed(self, count: int) -> None:
        self._tokens += count

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        self.done, self._failed, self._running = done, failed, running
        self._answered = time.monotonic()

    def suite_finished(self) -> None:
        computed, seconds = self._before
        spent = time.monotonic() - self._started
        self._before = computed + self.done - self._cached, seconds + spent

    def format_state(self, width: int | None = None) -> str:
        """Return `12.5/s, acc 0.750, 2 failed, 0:01:20 left`, as far as there is something to show.

        Of what doesn't fit into `width` characters, the less important is left out.
        """
        parts = self._list_state()
        for name in ("tokens", "rate", "run", "left", "metric", "waiting", "failed"):
            if width is None or len(", ".join(parts.values())) <= width:
                break
            parts.pop(name, None)
        return ", ".join(parts.values())

    def _list_state(self) -> dict[str, str]:
        spent = max(time.monotonic() - self._started, 1e-9)
        computed = self.done - self._cached
        parts: dict[str, str] = {}
        if computed:
            parts["rate"] = f"{computed / spent:.1f}/s"
        if computed and self._tokens:
            parts["tokens"] = f"{self._tokens / spent:,.0f} tokens/s"
        if self._running is not None:
            parts["metric"] = f"{self._running[0]} {self._running[1]:.3f}"
        if self._failed:
            parts["failed"] = f"{self._failed} failed"
        if self.done == self.total:
            return parts
        if (waiting := time.monotonic() - self._answered) >= _WAIT_S:
            parts["waiting"] = f"nothing for {format_time(waiting)}"
        if computed:
            left = (self.total - self.done) * spent / computed
            parts["left"] = f"{format_time(left)} left"
            if later := sum(self._planned[self._number :]):
                before, seconds = self._before
                left += later * (seconds + spent) / (before + computed)
                parts["run"] = f"run {format_time(left)}"
        return parts


def format_time(seconds: float) -> str:
    """Return `1:05`, `2:03:04` or `3 days, 0:00:00`."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


class PlainProgress(SuiteProgress):
    """Lines: a few for each suite, one when it ends, and one a minute.

    One comes with each tenth of a suite, but not within five seconds of the last. After each minute
    of silence a thread prints one, also while rows are read and a model is loaded.
    """

    def __init__(self, stream: TextIO, silence_s: float = _SILENCE_S):
        super().__init__()
        self._stream = stream
        self._silence_s = silence_s
        self._reported_at = 0.0
        self._reported_done = 0
        self._end = Event()

    def rows_checking(self, suite: str) -> None:
        self._watch(f"reading the rows of {suite}")

    def rows_checked(self) -> None:
        self._end.set()

    def model_loading(self, model: str, engine: str) -> None:
        self._print(f"loading {model} on {engine}")
        self._watch(f"loading {model} on {engine}")

    def model_ready(self, seconds: float) -> None:
        self.model_failed()
        self._print(f"model ready after {seconds:.1f} s")

    def model_failed(self) -> None:
        self._end.set()

    def suite_started(self, name: str, total: int) -> None:
        super().suite_started(name, total)
        self._reported_at, self._reported_done = time.monotonic(), 0
        self._watch(None)

    def samples_cached(self, done: int) -> None:
        super().samples_cached(done)
        if done:
            self._print(f"{self._title}: {done} of {self.total} were finished before")

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        super().sample_finished(done, failed, running)
        waited = time.monotonic() - self._reported_at
        is_share = done - self._reported_done >= _SHARE * self.total
        if done < self.total and is_share and waited >= _SHORT_S:
            self._report_state()

    def suite_finished(self) -> None:
        self._end.set()
        super().suite_finished()
        self._report_state()

    def report_silence(self) -> None:
        """Print the state of the suite if a line is due."""
        if time.monotonic() - self._reported_at >= self._silence_s:
            self._report_state()

    def _report_state(self) -> None:
        self._reported_at, self._reported_done = time.monotonic(), self.done
        state = self.format_state()
        self._print(f"{self._title}: {self.done}/{self.total}{f', {state}' if state else ''}")

    @property
    def _title(self) -> str:
        return (
            self.name
            if self.place is None
            else "{} (suite {} of {})".format(self.name, *self.place)
        )

    def _watch(self, step: str | None) -> None:
        """Start a thread that reports a step, or the suite, until `_end` is set."""
        self._end = end = Event()
        started = time.monotonic()

        def report() -> None:
            if step is None:
                self.report_silence()
            else:
                self._print(f"{step}: {format_time(time.monotonic() - started)} so far")

        Thread(target=_repeat, args=(report, end, self._silence_s), daemon=True).start()

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")  # in one piece: a thread prints as well
        self._stream.flush()


def _repeat(call: Callable[[], None], end: Event, seconds: float) -> None:
    while not end.wait(seconds):
        call()
