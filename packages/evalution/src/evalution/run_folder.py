"""The folder of a run: `results.json`, rewritten whole after each suite, and `samples.jsonl`."""

from __future__ import annotations

import os
import re
import weakref
from datetime import datetime
from pathlib import Path
from typing import TextIO

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
        self._is_new = not path.exists()
        if (path / RESULTS).exists() or (path / SAMPLES).exists():
            raise ConfigurationError(
                f"{path} already holds a run; name another --output, or move that one away"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._samples: TextIO = (path / SAMPLES).open("w", encoding="utf-8")
            weakref.finalize(self, self._samples.close)
        except OSError as error:
            raise ConfigurationError(
                f"the run folder {path} can't be written: {error.strerror}; name another --output"
            ) from error

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
            with draft.open("w", encoding="utf-8") as file:
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
        if self._is_new:
            self.path.rmdir()

    def _write(self, file: TextIO, text: str) -> None:
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> ResultsNotWrittenError:
        return ResultsNotWrittenError(f"{self.path} can't be written: {error.strerror}")


def default_folder(label: str, now: datetime) -> Path:
    """`runs/<date-time>-<label>` under the working folder, with a number if that exists."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "model"
    base = Path("runs") / f"{now:%Y%m%d-%H%M%S}-{safe[-60:]}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path
