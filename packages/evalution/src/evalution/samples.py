"""Samples of a run: one of them, the lines of `samples.jsonl`, and reading them one at a time.

The samples of a finished suite are in the file in the order of its rows. Those of a suite that is
running, or was cut off, are in the order of their answers and may occur twice. A last line without
its end was cut short, by a full disk or a killed process, and is no sample.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pydantic_core

from evalution.user_input import path_errors
from evalution_core import ConfigurationError, EvalutionError


def _empty() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class SampleResult:
    """One sample, as a line of `samples.jsonl`; the same fields for every suite.

    `metrics` holds the sample's own value of each metric, `tokens` what the engine counted
    (`prompt`, `completion`, `scored`, `truncated`; what it doesn't report is left out). With an
    `error`, there was no answer to score.
    """

    suite: str
    index: int
    prompt: str | Sequence[Mapping[str, Any]] | None = None
    target: str | None = None
    prediction: str | None = None
    extracted: Mapping[str, Any] = field(default_factory=_empty)
    metrics: Mapping[str, float] = field(default_factory=_empty)
    tokens: Mapping[str, int] = field(default_factory=_empty)
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class SampleColumns:
    """Samples of one suite as columns, in the order in which they were given, without texts.

    `rows` holds the rows' numbers; `failed` is 1 where there is an error; `prompts` and `targets`
    hold hashes, comparable within this process, and 0 where there is none; `metrics` has a value
    each, NaN where the sample has none and infinity where it is not finite (null in JSON).
    """

    def __init__(self, samples: Iterable[SampleResult]):
        self.rows = array("q")
        self.failed = bytearray()
        self.prompts = array("q")
        self.targets = array("q")
        self.metrics: dict[str, array[float]] = {}
        for sample in samples:
            self._add(sample)

    def __len__(self) -> int:
        return len(self.rows)

    def _add(self, sample: SampleResult) -> None:
        for name in sample.metrics:
            if name not in self.metrics:
                self.metrics[name] = array("d", [math.nan]) * len(self.rows)
        for name, column in self.metrics.items():
            column.append(_value(sample.metrics[name]) if name in sample.metrics else math.nan)
        self.rows.append(sample.index)
        self.failed.append(sample.error is not None)
        self.prompts.append(_digest(sample.prompt))
        self.targets.append(_digest(sample.target))


def _value(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


def _digest(value: object) -> int:
    """Return 64 bits; two texts that differ collide once in 10^19 rows."""
    if value is None:
        return 0
    if isinstance(value, str):
        return hash(value) or 1
    return hash((json.dumps(value, sort_keys=True, default=str),)) or 1


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return strict JSON: NaN and infinity become null, foreign values Python's own or text."""
    try:
        return pydantic_core.to_json(
            value, indent=indent, inf_nan_mode="null", fallback=_to_plain
        ).decode()
    except ValueError:  # a lone surrogate, which UTF-8 can't hold and JSON can only escape
        found = json.dumps(value, default=_to_plain)
        plain = json.loads(found, parse_constant=lambda _: None)  # NaN and infinity
        text = json.dumps(plain, ensure_ascii=False, indent=indent)
        return text.encode("utf-8", "backslashreplace").decode()


def _to_plain(value: object) -> object:
    """Return a scalar of NumPy as Python's, anything else that JSON doesn't know as text."""
    if callable(item := getattr(value, "item", None)):
        try:
            return item()
        except (TypeError, ValueError):  # an array of several
            return str(value)
    return str(value)


SAMPLES = "samples.jsonl"
"""The file of samples in a run folder."""

_HEAD = re.compile(rb'\{"suite":"([^"\\]*)","index":(\d+),')
"""Start of a line; another tool's may differ, and so does that of a suite whose name is escaped."""


def to_line(sample: SampleResult) -> bytes:
    """Return the sample as a line of `samples.jsonl`, with its end."""
    return (to_json(sample.to_dict()) + "\n").encode()


def parse_sample(line: bytes) -> SampleResult:
    """Return the sample of a line.

    Raises:
        ValueError: it is none; its cause says why.
    """
    try:
        fields: Any = json.loads(line.decode("utf-8"))
        sample = SampleResult(**fields)
        if type(sample.suite) is str and type(sample.index) is int:
            return sample
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    raise ValueError(f"a sample has a suite and a row, got {sample.suite!r} and {sample.index!r}")


def parse_place(line: bytes) -> tuple[str, int]:
    """Return suite and row of a line, without parsing the rest if a run wrote it.

    Raises:
        ValueError: it holds no sample, as far as it was read.
    """
    if head := _HEAD.match(line):
        return head[1].decode("utf-8"), int(head[2])
    sample = parse_sample(line)
    return sample.suite, sample.index


_FLUSH_S = 0.2
_BUFFER = 1 << 20
_SMALL_BUFFER = 1 << 13
"""For reads at scattered offsets, each of which may cost a whole buffer."""


class ResultsNotWrittenError(EvalutionError, OSError):
    """A result could not be written (disk full, folder gone); what stands there is kept."""


def to_write_error(folder: Path, error: OSError) -> ResultsNotWrittenError:
    """Return the error for a folder of results that the system refuses to write."""
    return ResultsNotWrittenError(f"{folder} can't be written: {error.strerror}")


@contextmanager
def write_errors(folder: Path) -> Generator[None]:
    """Raise `OSError` as `ResultsNotWrittenError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, EvalutionError):
            raise
        raise to_write_error(folder, error) from error


class SamplesFile:
    """Writes the lines of suites that run one after the other.

    Every method may raise `ResultsNotWrittenError`. Held in memory: two numbers a line of the suite
    at hand.
    """

    def __init__(self, path: Path):
        self.path = path
        with write_errors(path.parent):
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
        self._end += len(line)
        try:
            self._file.write(line)
            # A system call for each line would cost more than the rest of a sample's work.
            if (now := time.monotonic()) - self._flushed_at >= _FLUSH_S:
                self._file.flush()
                self._flushed_at = now
        except OSError as error:
            raise to_write_error(self.path.parent, error) from error

    def finish_suite(self) -> None:
        """Order the lines since the last call by row; of several of one row, the last stays."""
        rows, offsets = self._rows, self._offsets
        self._rows, self._offsets = array("q"), array("q")
        with write_errors(self.path.parent):
            if not all(row < after for row, after in pairwise(rows)):
                self._order(rows, offsets)
            self._file.flush()
        self._begin = self._end

    def close(self) -> None:
        """Close the file. Idempotent."""
        with write_errors(self.path.parent):
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


class KeptSamples:
    """Samples of one suite in memory; of several of one row, the last counts."""

    def __init__(self, samples: Iterable[SampleResult]):
        self._by_row = {sample.index: sample for sample in samples}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._by_row)

    def __contains__(self, row: object) -> bool:
        """True if there is a sample of this row."""
        return row in self._by_row

    def __iter__(self) -> Iterator[SampleResult]:
        """Yield them in the order of the rows."""
        return self.at(sorted(self._by_row))

    def at(self, rows: Iterable[int]) -> Iterator[SampleResult]:
        """Yield the samples of these rows, in this order.

        Raises:
            KeyError: there is no such row.
        """
        return (self._by_row[row] for row in rows)


class FileSamples:
    """Samples of one suite in a file, read again at each iteration; errors as `SamplesReader.of`.

    Held in memory: the offset of each row's last line.
    """

    def __init__(self, file: Path, suite: str, offsets: Mapping[int, int]):
        self._file = file
        self._suite = suite
        self._offsets = offsets

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._offsets)

    def __contains__(self, row: object) -> bool:
        """True if there is a sample of this row."""
        return row in self._offsets

    def __iter__(self) -> Iterator[SampleResult]:
        """Yield them in the order of the rows; of several of one row, the last."""
        return self.at(sorted(self._offsets))

    def at(self, rows: Iterable[int]) -> Iterator[SampleResult]:
        """Yield the samples of these rows, in this order.

        Raises:
            ConfigurationError: the file has no such row, or changed since its rows were found.
        """
        with path_errors(self._file), self._file.open("rb", _SMALL_BUFFER) as lines:
            for row in rows:
                if row not in self._offsets:
                    raise _make_changed(self._file)
                lines.seek(self._offsets[row])
                yield self._parse(lines.readline(), row)

    def _parse(self, line: bytes, row: int) -> SampleResult:
        try:
            sample = parse_sample(line)
        except ValueError as error:
            raise _make_damaged(self._file, error) from error
        if (sample.suite, sample.index) != (self._suite, row):
            raise _make_changed(self._file)
        return sample


SuiteSamples = KeptSamples | FileSamples
"""Samples of one suite: how many, all in the order of the rows, or those of some rows."""


class SamplesReader:
    """The file `samples.jsonl`, scanned once, when it is first used."""

    def __init__(self, file: Path):
        self._file = file

    @property
    def suites(self) -> list[str]:
        """The suites that have samples, in the order of their first; of a damaged file as well.

        Raises:
            ConfigurationError: the file can't be read.
        """
        return list(self._scan[0])

    def of(self, suite: str) -> FileSamples:
        """Return the samples of this suite, none if it has none there.

        Raises:
            ConfigurationError: the file can't be read, is damaged or was written by something else;
                of a line whose beginning is whole, that comes when its sample is read.
        """
        offsets, damage = self._scan
        if damage is not None:
            raise damage
        return FileSamples(self._file, suite, offsets.get(suite, {}))

    @cached_property
    def _scan(self) -> tuple[dict[str, dict[int, int]], ConfigurationError | None]:
        """The offset of the last line of each row, by suite; and the first damage that was met."""
        found: dict[str, dict[int, int]] = {}
        damage: ConfigurationError | None = None
        offset = 0
        with path_errors(self._file), self._file.open("rb", _BUFFER) as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    suite, row = parse_place(line)
                except ValueError as error:
                    damage = damage or _make_damaged(self._file, error)
                else:
                    found.setdefault(suite, {})[row] = offset
                offset += len(line)
        return found, damage


def _make_damaged(file: Path, error: ValueError) -> ConfigurationError:
    return ConfigurationError(f"{file} is damaged or was not written by a run: {error}")


def _make_changed(file: Path) -> ConfigurationError:
    return ConfigurationError(f"{file} changed while it was read; try again once its run has ended")
