"""Samples as columns of numbers, and the file `samples.index` that keeps those of finished suites.

The index saves a million samples' parsing: with it a page of them, or a comparison, reads numbers
and the few lines that are shown. It holds nothing that `samples.jsonl` lacks; where it is missing,
damaged or older than its lines, these are read instead.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import zlib
from array import array
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from evalution.journal.database import has_other_statements
from evalution.samples import SampleResult, to_json

INDEX = "samples.index"
"""The file of columns in a run folder."""

_BUFFER = 1 << 20
_APPLICATION_ID = 0x45564C49
_FORM = 3 if sys.byteorder == "little" else 4
_TABLES = """
CREATE TABLE suites (
    name BLOB PRIMARY KEY, first INTEGER, end INTEGER, checksum INTEGER, columns INTEGER
);
CREATE TABLE columns (suite BLOB, name BLOB, kind TEXT, data BLOB);
"""


def _make_integers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class SampleColumns:
    """Samples of one suite as columns, in the order in which they were given, without texts.

    `rows` holds the rows' numbers; `offsets` where their lines begin, -1 without a file; `failed`
    is 1 where there is an error; `prompts`, `targets` and `groups` hold hashes, and 0 where there
    is none; `metrics` has a value each, NaN where the sample has none and infinity where it is not
    finite (null in JSON).
    """

    rows: array[int] = field(default_factory=_make_integers)
    offsets: array[int] = field(default_factory=_make_integers)
    prompts: array[int] = field(default_factory=_make_integers)
    targets: array[int] = field(default_factory=_make_integers)
    failed: array[int] = field(default_factory=lambda: array("B"))
    metrics: dict[str, array[float]] = field(default_factory=dict[str, "array[float]"])
    groups: array[int] = field(default_factory=_make_integers)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, sample: SampleResult, offset: int = -1) -> None:
        """Append one sample."""
        for name in sample.metrics:
            if name not in self.metrics:
                self.metrics[name] = array("d", [math.nan]) * len(self.rows)
        for name, column in self.metrics.items():
            column.append(_value(sample.metrics[name]) if name in sample.metrics else math.nan)
        self.rows.append(sample.index)
        self.offsets.append(offset)
        self.failed.append(sample.error is not None)
        self.prompts.append(_digest(sample.prompt))
        self.targets.append(_digest(sample.target))
        self.groups.append(_digest(sample.group))

    def order(self) -> SampleColumns:
        """Return them in the order of the rows; of several of one row, the last."""
        if is_ordered(self.rows):
            return self
        places = find_order(self.rows)
        return SampleColumns(
            _take(self.rows, places),
            _take(self.offsets, places),
            _take(self.prompts, places),
            _take(self.targets, places),
            _take(self.failed, places),
            {name: _take(values, places) for name, values in self.metrics.items()},
            _take(self.groups, places),
        )


def collect_columns(samples: Iterable[SampleResult]) -> SampleColumns:
    """Return samples as columns, without offsets."""
    found = SampleColumns()
    for sample in samples:
        found.add(sample)
    return found


def is_ordered(rows: Iterable[int]) -> bool:
    """True if the rows ascend, each once."""
    return all(row < after for row, after in pairwise(rows))


def find_order(rows: Sequence[int]) -> list[int]:
    """Return the places of the rows in ascending order; of several of one row, the last's."""
    latest = {row: at for at, row in enumerate(rows)}
    return [latest[row] for row in sorted(latest)]


_Number = TypeVar("_Number", int, float)


def _take(column: array[_Number], places: Iterable[int]) -> array[_Number]:
    return array(column.typecode, [column[at] for at in places])


def _value(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _digest(value: object) -> int:
    """Return 64 bits, the same in every process; two texts that differ collide once in 10^19."""
    if value is None:
        return 0
    if isinstance(value, str):
        text, kind = value, b"text"
    else:  # as it reads in its line
        text, kind = json.dumps(json.loads(to_json(value)), sort_keys=True), b"messages"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=kind).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


@dataclass(frozen=True, slots=True)
class SuiteLines:
    """The part of `samples.jsonl` that holds a finished suite, in bytes; CRC-32 of its lines."""

    first: int
    end: int
    checksum: int


class SampleIndex:
    """The file `samples.index` beside a file of samples."""

    def __init__(self, samples: Path):
        self._samples = samples
        self._path = samples.with_name(INDEX)

    def delete(self) -> None:
        """Remove the file, for samples that are written again.

        Raises:
            OSError: it can't be removed.
        """
        self._path.unlink(missing_ok=True)

    def write(self, suite: str, lines: SuiteLines, columns: SampleColumns) -> None:
        """Add a suite. Where the file can't be written it is left out: the lines have it all."""
        name = _encode(suite)
        held = {
            "rows": columns.rows,
            "offsets": columns.offsets,
            "prompts": columns.prompts,
            "targets": columns.targets,
            "failed": columns.failed,
            **({"groups": columns.groups} if any(columns.groups) else {}),
        }
        numbers: list[tuple[bytes, str | bytes, str, array[Any]]] = [
            (name, label, column.typecode, column) for label, column in held.items()
        ]
        numbers += [(name, _encode(metric), "d", data) for metric, data in columns.metrics.items()]
        try:
            with self._connect("rwc") as file:
                if not file.execute("PRAGMA schema_version").fetchone()[0]:
                    file.executescript(_TABLES)
                    file.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    file.execute(f"PRAGMA user_version = {_FORM}")
                with file:
                    file.execute(
                        "INSERT INTO suites VALUES (?, ?, ?, ?, ?)",
                        (name, lines.first, lines.end, lines.checksum, _checksum(numbers)),
                    )
                    file.executemany("INSERT INTO columns VALUES (?, ?, ?, ?)", numbers)
        except (sqlite3.Error, OSError):
            with suppress(OSError):
                self._path.unlink()

    def list_suites(self) -> dict[str, SuiteLines]:
        """Return the finished suites that it holds, as far as the file of samples still has them.

        Lines that are younger than the index are read once, to compare their checksum.
        """
        try:
            with self._connect("ro") as file:
                found = [
                    (name.decode("utf-8", "surrogatepass"), SuiteLines(*lines))
                    for name, *lines, _ in file.execute("SELECT * FROM suites ORDER BY first")
                ]
            samples = self._samples.stat()
            is_younger = samples.st_mtime_ns > self._path.stat().st_mtime_ns
        except (sqlite3.Error, OSError, UnicodeDecodeError, TypeError):
            return {}
        if any(lines.end > samples.st_size for _, lines in found):
            return {}
        if is_younger and not all(self._has_lines(lines) for _, lines in found):
            return {}
        known: dict[str, SuiteLines] = {}
        end = 0
        for name, lines in found:
            if lines.first != end:  # one before it couldn't be added
                break
            known[name], end = lines, lines.end
        return known

    def read(self, suite: str) -> SampleColumns:
        """Return the columns of a suite that `list_suites` has.

        Raises:
            KeyError: they can't be read, or aren't as they were written.
        """
        held: dict[str, array[Any]] = {}
        metrics: dict[str, array[float]] = {}
        query = "SELECT suite, name, kind, data FROM columns WHERE suite = ? ORDER BY rowid"
        try:
            with self._connect("ro") as file:
                found = file.execute(query, (_encode(suite),)).fetchall()
                written = "SELECT columns FROM suites WHERE name = ?"
                if file.execute(written, (_encode(suite),)).fetchone() != (_checksum(found),):
                    raise ValueError("the columns were changed")
            for _, name, kind, data in found:
                is_metric = isinstance(name, bytes)
                label = name.decode("utf-8", "surrogatepass") if is_metric else name
                column: array[Any] = array(str(kind))
                column.frombytes(data)
                (metrics if is_metric else held)[label] = column
            if len({len(column) for column in (*held.values(), *metrics.values())}) != 1:
                raise ValueError("the columns have different lengths")
            held.setdefault("groups", array("q", bytes(8 * len(held["rows"]))))
            return SampleColumns(**held, metrics=metrics)
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            raise KeyError(suite) from error

    def _has_lines(self, lines: SuiteLines) -> bool:
        return read_checksum(self._samples, lines.first, lines.end) == lines.checksum

    @contextmanager
    def _connect(self, mode: str) -> Generator[sqlite3.Connection]:
        uri = f"{self._path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            if mode == "ro":
                application = connection.execute("PRAGMA application_id").fetchone()[0]
                form = connection.execute("PRAGMA user_version").fetchone()[0]
                is_ours = (application, form) == (_APPLICATION_ID, _FORM)
                if not is_ours or has_other_statements(connection, _TABLES):
                    raise sqlite3.DatabaseError("the database of another program")
            yield connection


def _checksum(columns: Iterable[tuple[bytes, str | bytes, str, Any]]) -> int:
    """Return the CRC-32 of columns with their names and kinds."""
    checksum = 0
    for _, name, kind, data in columns:
        checksum = zlib.crc32(data, zlib.crc32(f"{name!r} {kind} ".encode(), checksum))
    return checksum


def read_checksum(file: Path, first: int, end: int) -> int:
    """Return the CRC-32 of bytes `first` to `end` of a file.

    Raises:
        OSError: it can't be read.
    """
    checksum = 0
    with file.open("rb", 0) as content:
        content.seek(first)
        while first < end and (chunk := content.read(min(_BUFFER, end - first))):
            checksum = zlib.crc32(chunk, checksum)
            first += len(chunk)
    return checksum


def _encode(name: str) -> bytes:
    """Return a name as a blob: SQLite's texts can't hold a lone surrogate."""
    return name.encode("utf-8", "surrogatepass")
