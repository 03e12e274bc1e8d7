"""Runs found below folders, read again when their files change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalution.runs.progress_file import read_progress
from evalution.runs.reader import read_run
from evalution.runs.store import JOURNAL, RESULTS
from evalution.samples_file import SAMPLES, SamplesTail
from evalution.user_input import path_errors
from evalution.view.runs import UnreadableRun, ViewedRun, make_new_run
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean

_Stamp = tuple[int, int, int] | None
_READ_AT_ONCE = 16 << 20
"""Bytes of an unfinished suite that one look reads at most; the next goes on from there."""


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders in a folder and below it, in the order of their names.

    Raises:
        ConfigurationError: the folder isn't there, or can't be read.
    """
    with path_errors(folder):
        if not folder.is_dir():
            raise ConfigurationError(
                f"there is no folder {folder}; name the one in which your runs are, or begin a run "
                "with `evalution run`"
            )
        for path, folders, files in os.walk(folder):
            if RESULTS in files or JOURNAL in files:
                folders.clear()
                yield Path(path)
            folders[:] = sorted(name for name in folders if not name.startswith("."))


@dataclass(slots=True)
class _Entry:
    """A run as it was last read; `stamp` is of the file of its results, None without one."""

    stamp: _Stamp
    run: ViewedRun | UnreadableRun
    tail: SamplesTail | None = None


class RunCatalog:
    """The runs below some folders. One thread at a time may use it, and the runs that it returns.

    A run's id is its path in the folder that was named, or that folder's name if it is the run; of
    several with one id, the later ones get a number.
    """

    def __init__(self, folders: Sequence[Path]):
        self._folders = folders
        self._entries: dict[str, _Entry] = {}

    def list_runs(self) -> list[ViewedRun | UnreadableRun]:
        """Return all runs as they are now.

        Raises:
            ConfigurationError: a folder isn't there, or can't be read.
        """
        found = self._find()
        for run in self._entries.keys() - found.keys():
            del self._entries[run]
        return [self._read(run, path) for run, path in found.items()]

    def find(self, run: str) -> ViewedRun:
        """Return a run as it is now.

        Raises:
            ConfigurationError: there is no such run, or its results can't be read.
        """
        found = self._find()
        if run not in found:
            raise ConfigurationError(f"there is no run {run!r}{did_you_mean(run, found)}")
        viewed = self._read(run, found[run])
        if isinstance(viewed, UnreadableRun):
            raise ConfigurationError(viewed.problem)
        return viewed

    def _find(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self._folders:
            for path in find_runs(folder):
                name = path.relative_to(folder).as_posix()
                base = run = folder.resolve().name if name == "." else name
                number = 2
                while run in found:
                    run, number = f"{base}~{number}", number + 1
                found[run] = path
        return found

    def _read(self, run: str, path: Path) -> ViewedRun | UnreadableRun:
        entry = self._entries.get(run)
        try:
            stamp = _read_stamp(path / RESULTS)
            if stamp is None and (state := read_progress(path)) is not None:
                return make_new_run(run, state)
            if entry is None or entry.stamp != stamp:
                entry = self._entries[run] = _read_entry(run, path, stamp)
            if isinstance(entry.run, ViewedRun) and entry.run.result.status != "done":
                _follow(entry, entry.run, path)
        except (ConfigurationError, OSError) as error:
            return UnreadableRun(run, f"{path} can't be read: {error}")
        return entry.run


def _read_stamp(file: Path) -> _Stamp:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read_entry(run: str, path: Path, stamp: _Stamp) -> _Entry:
    try:
        result = read_run(path)
    except ConfigurationError as error:
        return _Entry(stamp, UnreadableRun(run, str(error)))
    return _Entry(stamp, ViewedRun(run, result))


def _follow(entry: _Entry, run: ViewedRun, path: Path) -> None:
    """Read how far a run is, and what it has added; its samples begin later than its results."""
    run.state = read_progress(path)
    if entry.tail is None and (path / SAMPLES).is_file():
        entry.tail = SamplesTail(path / SAMPLES)
    if entry.tail is not None:
        entry.tail.read_more(_READ_AT_ONCE)
        run.update(entry.tail)
