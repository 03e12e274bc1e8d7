"""The file `progress.json` of a run folder: there while a run goes on, written once a second."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evalution.progress import Progress, Running
from evalution.redaction import mask_text
from evalution.results import to_json
from evalution.samples_file import open_new

PROGRESS = "progress.json"
_WRITE_S = 1.0
_LOST_S = 60.0
"""A process that didn't write for that long is gone."""


@dataclass(slots=True)
class RunState:
    """State of a run: its suites, its samples, and how fast they come.

    `total` is None where not all suites are known before. `rate` counts samples a second in the
    suite at hand, without those that an earlier run had answered; `left_s` is the time that the
    whole run needs at the rates so far. `running` is the suite's main metric so far. `loading` has
    the names of the model and the engine while the model is loaded and identified.
    """

    loading: tuple[str, str] | None = None
    suite: str | None = None
    suite_done: int = 0
    suite_total: int = 0
    suites_done: int = 0
    suites: int | None = None
    done: int = 0
    total: int | None = None
    failed: int = 0
    rate: float | None = None
    tokens_per_second: float | None = None
    left_s: float | None = None
    running: Running = None


def read_progress(folder: Path, lost_s: float = _LOST_S) -> RunState | None:
    """Return the state of the run that goes on in a folder; None if none does.

    A killed run leaves its last state, which is returned for `lost_s` seconds.
    """
    file = folder / PROGRESS
    try:
        if time.time() - file.stat().st_mtime > lost_s:
            return None
        return _make_reader().validate_python(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError, ValidationError):  # gone meanwhile, or half of it
        return None


@cache
def _make_reader() -> TypeAdapter[RunState]:
    return TypeAdapter(RunState)


class ProgressFile(Progress):
    """Passes a run's progress on, and keeps it in the run folder for those who watch it there.

    A file that can't be written is left out: it is no result.
    """

    def __init__(self, shown: Progress):
        self._shown = shown
        self._file: Path | None = None
        self._end = Event()
        self._thread: Thread | None = None
        self._lock = Lock()
        self._state = RunState()
        self._totals: list[int] = []
        self._suites_before = self._done_before = self._failed_before = 0
        self._computed_before, self._seconds_before = 0, 0.0
        self._cached = self._tokens = 0
        self._started = 0.0

    def open(self, folder: Path | None) -> None:
        """Begin to write in a run folder; nothing without one."""
        if folder is not None:
            self._file, self._end = folder / PROGRESS, Event()
            self._thread = Thread(target=self._write_on, name="evalution progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Remove the file. Idempotent."""
        self._end.set()
        if self._thread is not None and self._file is not None:
            self._thread.join()
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def read(self) -> RunState:
        """Return the state as it is now."""
        state = self._state
        spent = time.monotonic() - self._started
        computed = state.suite_done - self._cached
        state.suites_done = self._suites_before
        state.done = self._done_before + (state.suite_done if state.suite else 0)
        state.suites = len(self._totals) or None
        state.total = sum(self._totals) or None
        state.rate = computed / spent if computed and state.suite else None
        state.tokens_per_second = self._tokens / spent if self._tokens and state.suite else None
        state.left_s = self._estimate_left(computed, spent)
        return state

    def suites_planned(self, totals: Sequence[int]) -> None:
        self._totals = list(totals)
        self._shown.suites_planned(totals)

    def rows_checking(self, suite: str) -> None:
        self._shown.rows_checking(suite)

    def rows_checked(self) -> None:
        self._shown.rows_checked()

    def model_loading(self, model: str, engine: str) -> None:
        self._state.loading = mask_text(model), mask_text(engine)
        self._write()
        self._shown.model_loading(model, engine)

    def model_ready(self, seconds: float) -> None:
        self._shown.model_ready(seconds)

    def model_failed(self) -> None:
        self._shown.model_failed()

    def suite_started(self, name: str, total: int) -> None:
        self._state.loading = None
        if self._totals:  # of grades, only the most was known
            self._totals[self._suites_before : self._suites_before + 1] = [total]
        self._state.suite, self._state.suite_total = name, total
        self._state.suite_done, self._state.running = 0, None
        self._cached = self._tokens = 0
        self._started = time.monotonic()
        self._shown.suite_started(name, total)

    def samples_cached(self, done: int) -> None:
        self._started, self._cached, self._tokens = time.monotonic(), done, 0
        self._state.suite_done = done
        self._shown.samples_cached(done)

    def tokens_computed(self, count: int) -> None:
        self._tokens += count
        self._shown.tokens_computed(count)

    def sample_finished(self, done: int, failed: int, running: Running) -> None:
        state = self._state
        is_finite = running is not None and math.isfinite(running[1])  # as JSON's numbers are
        state.suite_done, state.running = done, running if is_finite else None
        state.failed = self._failed_before + failed
        self._shown.sample_finished(done, failed, running)

    def suite_finished(self) -> None:
        state = self._state
        self._computed_before += state.suite_done - self._cached
        self._seconds_before += time.monotonic() - self._started
        self._suites_before += 1
        self._done_before += state.suite_done
        self._failed_before = state.failed
        state.suite = None
        self._shown.suite_finished()

    def _estimate_left(self, computed: int, spent: float) -> float | None:
        """Return the suite's rest at its own rate, and that of later suites at the run's."""
        state = self._state
        if not computed or not state.suite:
            return None
        left = (state.suite_total - state.suite_done) * spent / computed
        if later := sum(self._totals[self._suites_before + 1 :]):
            seconds = self._seconds_before + spent
            left += later * seconds / (self._computed_before + computed)
        return max(left, 0.0)

    def _write_on(self) -> None:
        while not self._end.wait(_WRITE_S):
            self._write()

    def _write(self) -> None:
        file = self._file
        if file is None:
            return
        draft = file.with_suffix(".part")
        found: dict[str, Any] = asdict(self.read())
        with self._lock, suppress(OSError):
            with open_new(draft) as written:
                written.write(to_json(found).encode())
            os.replace(draft, file)
