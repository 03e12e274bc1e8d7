"""A benchmark that has run, and its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from evalution.results import to_json
from evalution_core import ConfigurationError
from evalution_guidellm.bench.summary import LevelResult

SUMMARY, REPORT, PAGE = "bench.json", "guidellm.json", "report.html"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured, under which load, and what came out.

    `subject` and `load` are JSON-safe and without credentials; `levels` are in the order in which
    they ran.
    """

    title: str
    started: datetime
    subject: Mapping[str, Any]
    load: Mapping[str, Any]
    levels: Sequence[LevelResult]

    @property
    def complaints(self) -> list[str]:
        """A line for each level with failed requests, or without an answer."""
        failed = [
            f"{level.name}: {level.errored} failed, the first with {level.first_error}"
            for level in self.levels
            if level.errored
        ]
        silent = [
            f"{level.name}: no request was answered; give it more --seconds"
            for level in self.levels
            if not level.successful and not level.errored
        ]
        return failed + silent

    def to_dict(self) -> dict[str, Any]:
        """The content of `bench.json`."""
        return {
            "format": _FORMAT,
            "made_by": f"evalution-guidellm {version('evalution-guidellm')}",
            "started": self.started.isoformat(timespec="seconds"),
            **self.subject,
            "load": dict(self.load),
            "levels": [level.to_dict() for level in self.levels],
        }


@contextmanager
def made_folder(output: Path | None, label: str, now: datetime) -> Generator[Path]:
    """The folder to write to, `runs/<date-time>-bench-<label>` where none is named.

    One that was made here and is still empty when an error leaves is removed.

    Raises:
        ConfigurationError: it can't be made or written to, or holds a benchmark.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    path = output or Path("runs") / f"{now:%Y%m%d-%H%M%S}-bench-{safe[-60:]}"
    if (path / SUMMARY).exists():
        raise ConfigurationError(f"{path} holds a benchmark; name another --output")
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be made: {error.strerror}; name another --output"
        ) from error
    try:
        _check_writable(path)
        yield path
    finally:
        if is_new and not any(path.iterdir()):
            path.rmdir()


def _check_writable(folder: Path) -> None:
    """Raise now, rather than when the figures are there and have no place to go."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{folder} can't be written to: {error.strerror}; name another --output"
        ) from error


def write_json(file: Path, value: Any) -> None:
    """Write strict JSON; a reader sees the whole file or none."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(to_json(value, indent=2).encode("utf-8", "backslashreplace") + b"\n")
    os.replace(draft, file)
