"""The folder of a run: `results.json`, rewritten whole after each suite, and `samples.jsonl`."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO, cast

from evalution.results import RunResult, SampleResult, to_json
from evalution_core import ConfigurationError, EvalutionError

RESULTS = "results.json"
SAMPLES = "samples.jsonl"


class ResultsNotWrittenError(EvalutionError, OSError):
    """A result could not be written (disk full, folder gone); what stands there is kept."""


class RunFolder:
    """An empty folder to be filled; finished samples are in it before the next one is scored.

    Raises:
        ConfigurationError: it can't be made or written, or holds a run already.
    """

    def __init__(self, path: Path):
        self.path = path
        with _folder_errors(path):
            self.is_new = not path.exists()
            if (path / RESULTS).exists():
                raise FileExistsError
            path.mkdir(parents=True, exist_ok=True)
            # What JSON can't hold as UTF-8, a lone surrogate, becomes its JSON escape.
            self._samples: TextIO = (path / SAMPLES).open(
                "x", encoding="utf-8", errors="backslashreplace"
            )
        weakref.finalize(self, self._samples.close)

    @property
    def samples_file(self) -> Path:
        return self.path / SAMPLES

    def append(self, sample: SampleResult) -> None:
        """Put one line into `samples.jsonl`; it is on its way to the disk when this returns."""
        self._write(self._samples, to_json(sample.to_dict()) + "\n")

    def write_results(self, result: RunResult) -> None:
        """Replace `results.json`; a reader sees the old file or the new one, never a part."""
        draft = self.path / f"{RESULTS}.part"
        try:
            with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
                self._write(file, to_json(result.to_dict(), indent=2) + "\n")
            os.replace(draft, self.path / RESULTS)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close `samples.jsonl`. Idempotent."""
        try:
            self._samples.close()
        except OSError as error:
            raise self._failure(error) from error

    def discard(self) -> None:
        """Remove what was made, for a run that never began."""
        self.close()
        self.samples_file.unlink(missing_ok=True)
        if self.is_new:
            self.path.rmdir()

    def _write(self, file: TextIO, text: str) -> None:
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> ResultsNotWrittenError:
        return ResultsNotWrittenError(f"{self.path} can't be written: {error.strerror}")


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
            while not _is_made(path):
                path, number = base.with_name(f"{base.name}-{number}"), number + 1
        folder = RunFolder(path)
        folder.is_new = True
        return folder


def as_output(output: object) -> Path | DefaultFolder | None:
    """Where a run is to be written, from what a caller gave; None: nowhere.

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


def created_folder(output: Path | DefaultFolder | None) -> RunFolder | None:
    """The folder of a run that begins, None without one; errors as `RunFolder`."""
    if isinstance(output, DefaultFolder):
        return output.create()
    return None if output is None else RunFolder(output)


def _is_made(path: Path) -> bool:
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
        problem = "is a file" if path.is_file() else "already holds a run"
        raise ConfigurationError(
            f"{path} {problem}; name another --output, or move that one away"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"the run folder {path} can't be written: {error.strerror}; name another --output"
        ) from error
    except ValueError as error:  # a null byte
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"the run folder {str(path)!r} has no possible name") from error
