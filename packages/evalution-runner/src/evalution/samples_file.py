"""The file `samples.jsonl` of a run folder: written as samples come, read one at a time.

The samples of a finished suite are in the file in the order of its rows. Those of a suite that is
running, or was cut off, are in the order of their answers and may occur twice. A last line without
its end was cut short, by a full disk or a killed process, and is no sample.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO

from evalution.sample_columns import (
    SampleColumns,
    SampleIndex,
    SuiteLines,
    collect_columns,
    find_order,
    is_ordered,
    read_checksum,
)
from evalution.samples import (
    KeptSamples,
    SampleResult,
    parse_place,
    parse_sample,
    to_line,
)
from evalution.user_input import path_errors
from evalution_core import ConfigurationError, EvalutionError

SAMPLES = "samples.jsonl"
"""The file of samples in a run folder."""

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


def open_new(path: Path) -> BinaryIO:
    """Open a file to be written from its beginning; a link in its place is removed, not followed.

    Raises:
        OSError: it can't be made, or what stands there can't be removed.
    """
    path.unlink(missing_ok=True)
    return path.open("x+b", _BUFFER)


class SamplesFile:
    """Writes the lines of suites that run one after the other, and their index.

    Every method may raise `ResultsNotWrittenError`. Held in memory: the columns of the suite at
    hand.
    """

    def __init__(self, path: Path):
        self.path = path
        self._index = SampleIndex(path)
        with write_errors(path.parent):
            self._index.delete()
            self._file = open_new(path)
        self._begin = 0
        self._end = 0
        self._checksum = 0
        self._flushed_at = 0.0
        self._suite = ""
        self._columns = SampleColumns()

    def append(self, sample: SampleResult) -> None:
        """Append one line. A crash may lose those of the last moment: the journal has all."""
        line = to_line(sample)
        if sample.suite != self._suite:  # the one before may have been cut off
            self._suite, self._columns = sample.suite, SampleColumns()
            self._begin, self._checksum = self._end, 0
        self._columns.add(sample, self._end)
        self._checksum = zlib.crc32(line, self._checksum)
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
        """Order the suite's lines by row; of several of one row, the last stays."""
        columns, self._columns = self._columns, SampleColumns()
        with write_errors(self.path.parent):
            if not is_ordered(columns.rows):
                columns = self._order(columns)
            self._file.flush()
            os.fsync(self._file.fileno())  # results that name these lines outlast a power cut
            if columns:
                lines = SuiteLines(self._begin, self._end, self._checksum)
                self._index.write(self._suite, lines, columns)
        self._begin, self._checksum = self._end, 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        with write_errors(self.path.parent):
            self._file.close()

    def _order(self, columns: SampleColumns) -> SampleColumns:
        """Write the lines again in the order of their rows; return their columns."""
        ends = array("q", [*columns.offsets[1:], self._end])
        lengths = array("q")
        draft = self.path.with_suffix(".part")
        self._file.flush()
        with open_new(draft) as ordered, self.path.open("rb", _SMALL_BUFFER) as lines:
            for at in find_order(columns.rows):
                lines.seek(columns.offsets[at])
                lengths.append(ordered.write(lines.read(ends[at] - columns.offsets[at])))
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
        found = columns.order()
        found.offsets = array("q", accumulate(lengths, initial=self._begin))
        found.offsets.pop()
        self._checksum = read_checksum(self.path, self._begin, self._end)
        return found


class FileSamples:
    """Samples of one suite in a file, read again at each iteration; errors as `SamplesReader.of`.

    Held in memory: the rows in ascending order, and the offset of each one's last line.
    """

    def __init__(self, file: Path, suite: str, rows: Sequence[int], offsets: Sequence[int]):
        self._file = file
        self._suite = suite
        self._rows = rows
        self._offsets = offsets

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __contains__(self, row: object) -> bool:
        """True if there is a sample of this row."""
        return isinstance(row, int) and self._find(row) is not None

    def __iter__(self) -> Iterator[SampleResult]:
        """Yield them in the order of the rows; of several of one row, the last."""
        return self.at(self._rows)

    def at(self, rows: Iterable[int]) -> Iterator[SampleResult]:
        """Yield the samples of these rows, in this order.

        Raises:
            ConfigurationError: the file has no such row, or changed since its rows were found.
        """
        with path_errors(self._file), self._file.open("rb", _SMALL_BUFFER) as lines:
            for row in rows:
                offset = self._find(row)
                if offset is None:
                    raise _make_changed(self._file)
                lines.seek(offset)
                yield self._parse(lines.readline(), row)

    def find_texts(self, texts: Sequence[str]) -> Iterator[int] | None:
        """Yield the rows whose lines hold ASCII texts in any case, also where they aren't shown.

        None where the lines can't be searched so: a text has other characters, or the lines aren't
        in the order of the rows.
        """
        if not all(text.isascii() for text in texts) or not is_ordered(self._offsets):
            return None
        spelled = sorted((json.dumps(text.lower())[1:-1].encode() for text in texts), key=len)
        pattern = re.compile(re.escape(spelled.pop()), re.IGNORECASE)
        return self._search(pattern, spelled)

    def _search(self, pattern: re.Pattern[bytes], others: Sequence[bytes]) -> Iterator[int]:
        with (
            path_errors(self._file),
            self._file.open("rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as lines,
        ):
            at, begin = 0, self._offsets[0]
            while at < len(self._rows) and (found := pattern.search(lines, begin)):
                at = bisect_right(self._offsets, found.start())
                begin = self._offsets[at] if at < len(self._rows) else len(lines)
                line = lines[self._offsets[at - 1] : begin].lower() if others else b""
                if all(other in line for other in others):
                    yield self._rows[at - 1]

    def _find(self, row: int) -> int | None:
        at = bisect_left(self._rows, row)
        is_there = at < len(self._rows) and self._rows[at] == row
        return self._offsets[at] if is_there else None

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
    """The file `samples.jsonl`: finished suites by its index, others scanned once, when needed."""

    def __init__(self, file: Path):
        self._file = file
        self._index = SampleIndex(file)

    @property
    def suites(self) -> list[str]:
        """The suites that have samples, in the order of their first; of a damaged file as well.

        Raises:
            ConfigurationError: the file can't be read.
        """
        return [*self._indexed, *self._scan[0]]

    def of(self, suite: str) -> FileSamples:
        """Return the samples of this suite, none if it has none there.

        Raises:
            ConfigurationError: the file can't be read, is damaged or was written by something else;
                of a line whose beginning is whole, that comes when its sample is read.
        """
        if (columns := self._read_indexed(suite)) is not None:
            return FileSamples(self._file, suite, columns.rows, columns.offsets)
        found, damage = self._scan
        if damage is not None:
            raise damage
        rows, offsets = found.get(suite, (array("q"), array("q")))
        if not is_ordered(rows):
            places = find_order(rows)
            rows, offsets = [rows[at] for at in places], [offsets[at] for at in places]
        return FileSamples(self._file, suite, rows, offsets)

    def columns(self, suite: str) -> SampleColumns:
        """Return the samples of this suite as columns in the order of the rows; errors as `of`."""
        found = self._read_indexed(suite)
        return collect_columns(self.of(suite)) if found is None else found

    def _read_indexed(self, suite: str) -> SampleColumns | None:
        if suite not in self._indexed:
            return None
        try:
            return self._index.read(suite)
        except KeyError:  # a damaged index: the lines have it all
            self._indexed = {}
            vars(self).pop("_scan", None)
            return None

    @cached_property
    def _indexed(self) -> dict[str, SuiteLines]:
        return self._index.list_suites()

    @cached_property
    def _scan(self) -> tuple[dict[str, tuple[array[int], array[int]]], ConfigurationError | None]:
        """Rows and offsets of all lines behind the index, by suite; and the first damage."""
        found: dict[str, tuple[array[int], array[int]]] = {}
        damage: ConfigurationError | None = None
        offset = max((lines.end for lines in self._indexed.values()), default=0)
        with path_errors(self._file), self._file.open("rb", _BUFFER) as content:
            content.seek(offset)
            for line in content:
                if not line.endswith(b"\n"):
                    break
                try:
                    suite, row = parse_place(line)
                except ValueError as error:
                    damage = damage or _make_damaged(self._file, error)
                else:
                    rows, offsets = found.setdefault(suite, (array("q"), array("q")))
                    rows.append(row)
                    offsets.append(offset)
                offset += len(line)
        return found, damage


class SamplesTail:
    """The lines behind the finished suites of `samples.jsonl`, read as they are written.

    `columns` has the samples so far by suite, in the order of their lines.
    """

    def __init__(self, file: Path):
        self._file = file
        self._index = SampleIndex(file)
        self._indexed: dict[str, SuiteLines] = {}
        self._offset = 0
        self._inode = 0
        self.columns: dict[str, SampleColumns] = {}

    def read_more(self, most: int) -> bool:
        """Read at most so many further bytes, a line at least; True if there is more to read.

        Lines that hold no sample are passed over: they may be half of one.

        Raises:
            ConfigurationError: the file can't be read.
        """
        with path_errors(self._file), self._file.open("rb", _BUFFER) as content:
            state = os.fstat(content.fileno())
            indexed = self._index.list_suites()
            if (indexed, self._inode) != (self._indexed, state.st_ino) or (
                state.st_size < self._offset
            ):
                self._indexed, self._inode, self.columns = indexed, state.st_ino, {}
                self._offset = max((lines.end for lines in indexed.values()), default=0)
            content.seek(self._offset)
            stop = self._offset + most
            while self._offset < stop and (line := content.readline()).endswith(b"\n"):
                with suppress(ValueError):
                    sample = parse_sample(line)
                    self.columns.setdefault(sample.suite, SampleColumns()).add(sample, self._offset)
                self._offset += len(line)
        return self._offset >= stop

    def of(self, suite: str, columns: SampleColumns) -> FileSamples:
        """Return the samples of columns that are in the order of their rows."""
        return FileSamples(self._file, suite, columns.rows, columns.offsets)


def _make_damaged(file: Path, error: ValueError) -> ConfigurationError:
    return ConfigurationError(f"{file} is damaged or was not written by a run: {error}")


def _make_changed(file: Path) -> ConfigurationError:
    return ConfigurationError(f"{file} changed while it was read; try again once its run has ended")
