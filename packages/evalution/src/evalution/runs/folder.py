"""The folder of a run: its journal, and `results.json` and `samples.jsonl` made from it."""

from __future__ import annotations

import json
import os
import re
import time
import weakref
from array import array
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from evalution.journal import Journal
from evalution.results import RunResult, to_json
from evalution.samples import SAMPLES, SampleResult, to_line
from evalution_core import ConfigurationError, EvalutionError

_FLUSH_S = 0.2
_BUFFER = 1 << 20
_SMALL_BUFFER = 1 << 13
"""For reads at scattered offsets, each of which may cost a whole buffer."""


class SamplesFile:
    """Lines of suites that run one after the other. Every method may raise `OSError`.

    Held in memory: three numbers a line of the suite at hand.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: BinaryIO = path.open("w+b", _BUFFER)
        self._begin = 0
        self._end = 0
        self._flushed_at = 0.0
        self._rows = array("q")
        self._offsets = array("q")

    def append(self, sample: SampleResult) -> None:
        """Append one line. A crash may lose those of the last moment: the journal has all."""
        line = to_line(sample)
        self._rows.append(sample.index)
        self._offsets.append(self._end)
        self._file.write(line)
        self._end += len(line)
        # A system call for each line would cost more than the rest of a sample's work.
        if (now := time.monotonic()) - self._flushed_at >= _FLUSH_S:
            self._file.flush()
            self._flushed_at = now

    def finish_suite(self) -> None:
        """Order the lines since the last call by row; of several of one row, the last stays."""
        rows, offsets = self._rows, self._offsets
        self._rows, self._offsets = array("q"), array("q")
        if not all(rows[at] < rows[at + 1] for at in range(len(rows) - 1)):
            self._order(rows, offsets)
        self._file.flush()
        self._begin = self._end

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _order(self, rows: array[int], offsets: array[int]) -> None:
        latest = {row: at for at, row in enumerate(rows)}
        offsets.append(self._end)
        draft = self.path.with_suffix(".part")
        self._file.flush()
        with draft.open("w+b", _BUFFER) as ordered, self.path.open("rb", _SMALL_BUFFER) as lines:
            for row in sorted(latest):
                at = latest[row]
                lines.seek(offsets[at])
                ordered.write(lines.read(offsets[at + 1] - offsets[at]))
            ordered.flush()
            ordered.seek(0)
            # After a kill between here and the end, the lines are written again from the journal.
            self._file.seek(self._begin)
            while chunk := ordered.read(_BUFFER):
                self._file.write(chunk)
            self._file.truncate()
            self._file.flush()
            self._end = self._file.seek(0, os.SEEK_CUR)
        os.unlink(draft)


RESULTS = "results.json"
JOURNAL = "journal.sqlite"


class ResultsNotWrittenError(EvalutionError, OSError):
    """A result could not be written (disk full, folder gone); what stands there is kept."""


class RunFolder:
    """A folder to be filled, or one whose unfinished run goes on.

    Args:
        fresh: remove the run that is there.
        retry_failed: reopen a finished run too, for the sake of its failed samples.

    Raises:
        ConfigurationError: it can't be made or written, holds a finished run, one that can't go
            on, or files of a run's names that no run wrote; or another process is writing it.
    """

    def __init__(self, path: Path, *, fresh: bool = False, retry_failed: bool = False):
        self.path = path
        self._samples: SamplesFile | None = None
        with _folder_errors(path):
            self.is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            journal = path / JOURNAL
            _check_foreign(path)
            if not fresh:
                _check_unfinished(path, retry_failed=retry_failed)
            self.is_resumed = journal.exists() and not fresh
            if fresh:
                Journal.delete(journal)
            for name in (RESULTS, SAMPLES) if fresh else ():
                (path / name).unlink(missing_ok=True)
            self.journal = Journal.open(journal) if self.is_resumed else Journal.create(journal)
            if self.journal.notice is not None:
                self.journal.notice += _keep_samples(path)
        weakref.finalize(self, self.journal.close)

    @property
    def samples_file(self) -> Path:
        return self.path / SAMPLES

    def append(self, sample: SampleResult) -> None:
        """Append one line to `samples.jsonl`."""
        with self._write_errors():
            # Not before: a run whose model can't be loaded leaves the lines that are there.
            self._samples = self._samples or SamplesFile(self.samples_file)
            self._samples.append(sample)

    def finish_suite(self) -> None:
        """Put the lines of the suite that ended in the order of its rows."""
        if self._samples is not None:
            with self._write_errors():
                self._samples.finish_suite()

    def write_results(self, result: RunResult) -> None:
        """Replace `results.json`; a reader sees the old file or the new one, never a part."""
        draft = self.path / f"{RESULTS}.part"
        with self._write_errors():
            draft.write_bytes((to_json(result.to_dict(), indent=2) + "\n").encode())
            os.replace(draft, self.path / RESULTS)

    def close(self) -> None:
        """Close the files. Idempotent."""
        with self._write_errors():
            try:
                if self._samples is not None:
                    self._samples.close()
            finally:
                self.journal.close()

    def discard(self) -> None:
        """Remove what was made, for a run that never began."""
        self.close()
        if self.is_resumed:
            return
        Journal.delete(self.path / JOURNAL)
        if self.is_new and not any(self.path.iterdir()):  # a backend may have left something
            self.path.rmdir()

    @contextmanager
    def _write_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, EvalutionError):
                raise
            raise ResultsNotWrittenError(
                f"{self.path} can't be written: {error.strerror}"
            ) from error


@dataclass(frozen=True, slots=True)
class DefaultFolder:
    """`runs/<date-time>-<label>` under the working folder, to be made when a run begins."""

    label: str
    now: datetime

    def create(self) -> RunFolder:
        """Make it, with a number where the name is taken: no two runs ever share one.

        Raises:
            ConfigurationError: it can't be made or written.
        """
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label).strip("-.") or "model"
        base = Path("runs") / f"{self.now:%Y%m%d-%H%M%S}-{safe[-60:]}"
        path, number = base, 2
        with _folder_errors(base):
            base.parent.mkdir(exist_ok=True)
            while not _make_folder(path):
                path, number = base.with_name(f"{base.name}-{number}"), number + 1
        folder = RunFolder(path)
        folder.is_new = True
        return folder


def parse_output(output: object) -> Path | DefaultFolder | None:
    """Return the folder that a caller named as output; None: the run is kept in memory.

    Raises:
        ConfigurationError: it is empty, or no path.
    """
    if output is None or isinstance(output, DefaultFolder):
        return output
    if output == "":
        raise ConfigurationError("output is empty; name a folder, '.' for the current one")
    if not isinstance(output, str | os.PathLike):
        raise ConfigurationError(f"output must be a folder's path, got {output!r}")
    return Path(cast(str, output))


def open_folder(
    output: Path | DefaultFolder | None, *, fresh: bool, retry_failed: bool
) -> RunFolder | None:
    """Open the folder of a run that begins or goes on, None without one; errors as `RunFolder`."""
    if isinstance(output, DefaultFolder):
        return output.create()
    return None if output is None else RunFolder(output, fresh=fresh, retry_failed=retry_failed)


def _keep_samples(path: Path) -> str:
    """Rename the samples that a run with a damaged journal has written; return a clause on it."""
    samples = path / SAMPLES
    if not samples.exists():
        return ""
    names = (path / f"samples.damaged-{number}.jsonl" for number in count(1))
    kept = next(name for name in names if not name.exists())
    os.replace(samples, kept)
    return f"; the samples that were written are now in {kept}"


def _check_unfinished(path: Path, *, retry_failed: bool) -> None:
    status = _content(path / RESULTS).get("status")
    if status == "done" and not retry_failed:
        raise ConfigurationError(
            f"{path} already holds a finished run; name another --output, or start over with "
            "--fresh"
        )
    if (path / RESULTS).exists() and not (path / JOURNAL).exists():
        raise ConfigurationError(
            f"{path} holds a run without its {JOURNAL}, which can't go on; name another --output, "
            "or start over with --fresh"
        )


def _check_foreign(path: Path) -> None:
    """Refuse files that have the names of a run's and may be somebody's rows or notes."""
    if (path / JOURNAL).exists() or "schema_version" in _content(path / RESULTS):
        return
    for name in (RESULTS, SAMPLES):
        if (path / name).exists():
            raise ConfigurationError(
                f"{path} holds a {name} that no run is known to have written, and a run would "
                "replace it; name another --output"
            )


def _content(results: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(results.read_bytes())
    except (FileNotFoundError, ValueError):  # a part of a file: the journal is the truth
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _make_folder(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


@contextmanager
def _folder_errors(path: Path) -> Generator[None]:
    try:
        yield
    except FileExistsError:
        raise ConfigurationError(f"{path} is a file; name another --output") from None
    except OSError as error:
        if isinstance(error, EvalutionError):
            raise
        raise ConfigurationError(
            f"the run folder {path} can't be written: {error.strerror}; name another --output"
        ) from error
    except ValueError as error:  # a null byte
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"the run folder {str(path)!r} has no possible name") from error
