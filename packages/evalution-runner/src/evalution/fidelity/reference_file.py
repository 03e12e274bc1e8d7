"""A recorded reference as one SQLite file: windows with their ids, and the rows of each.

A row is kept in float16 as logits less the largest one, with the normaliser of the rounded values:
read back, it sums to 1 again, at a KL divergence of 1e-7 to 1e-6 nats from what it was. It takes
30 to 34 % of what it does in float32. Or its most likely tokens are kept, in float32.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from evalution.fidelity.divergence import Logprobs, TopRows, select_top
from evalution.fidelity.lockstep import Block, Blocks
from evalution.fidelity.requests import Window
from evalution.fidelity.result import Side
from evalution.journal.database import has_other_statements, primary_code, transaction
from evalution.runs.run_identity import find_differences, format_differences
from evalution.samples_file import ResultsNotWrittenError
from evalution.user_input import path_errors
from evalution_core import ConfigurationError

SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x45564C46
_TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE windows (
    number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, start INTEGER NOT NULL,
    token_ids BLOB NOT NULL
);
CREATE TABLE chunks (
    window INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    normalisers BLOB NOT NULL, rows BLOB NOT NULL, UNIQUE (window, first)
);
"""
_LOWEST: Final = -65_504.0
"""Of float16."""
_DECISIVE: Final = ("vocabulary", "tokenizer", "window", "texts", "top", "versions")
_CHUNK: Final = 1 << 22
"""Values of a chunk: 16 MiB when it is read back."""
_COMMAND: Final = "evalution fidelity record"


@dataclass(frozen=True, slots=True)
class Recording:
    """Circumstances under which a reference was recorded.

    `tokenizer` is a digest, `texts` has one for each suite or text by its name, `window` is the
    number of tokens that are fed at most.
    With `top`, only so many of the most likely tokens of a position are kept.
    """

    side: Side
    vocabulary: int
    tokenizer: str
    window: int
    texts: dict[str, str]
    top: int | None
    versions: dict[str, str]


class ReferenceWriter:
    """Writes a reference file, window by window; what was committed survives any death.

    Raises:
        ConfigurationError: the file is no reference file, in use, or holds another recording.
        ResultsNotWrittenError: the disk is full, or the file can't be written.
    """

    def __init__(self, path: Path, recording: Recording):
        self._path, self._recording = path, recording
        with _write_errors(path):
            self._connection = sqlite3.connect(
                path, timeout=0.0, isolation_level=None, check_same_thread=False
            )
        try:
            with _write_errors(path):
                self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                with transaction(self._connection):
                    self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def has(self, window: Window) -> bool:
        """Report whether the rows of a window are in the file."""
        with _write_errors(self._path):
            return _find_window(self._connection, window) is not None

    @contextmanager
    def add_window(self, window: Window) -> Generator[Callable[[Block], None]]:
        """Give a function that takes the window's rows in blocks, in order; commit them at the end.

        An error inside, and a kill, leave the file as it was before the window.
        """
        done = 0
        missing = len(window.scored_ids)

        def add(rows: Block) -> None:
            nonlocal done
            if not len(rows):
                return
            if done + len(rows) > missing:
                raise ValueError(f"a window of {missing} rows got {done + len(rows)}")
            with _write_errors(self._path):
                for first, count, *values in self._encode(rows, window, done):
                    self._connection.execute(
                        "INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", (number, first, count, *values)
                    )
            done += len(rows)

        with _write_errors(self._path), transaction(self._connection):
            ids = np.asarray(window.input_ids, "<i4").tobytes()
            number = self._connection.execute(
                "INSERT INTO windows (key, start, token_ids) VALUES (?, ?, ?)",
                (_make_key(window), window.start, ids),
            ).lastrowid
            yield add
            if done != missing:
                raise ValueError(f"a window of {missing} rows got {done}")

    def finish(self) -> None:
        """Note that every window is in the file."""
        with _write_errors(self._path), transaction(self._connection):
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('is_complete', 'true')")

    def _prepare(self) -> None:
        if self._connection.execute("PRAGMA schema_version").fetchone()[0]:
            self._require_same(_read_recording(self._connection, self._path))
            return
        for statement in _TABLES.split(";"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._connection.execute(
            "INSERT INTO meta VALUES ('recording', ?)",
            (json.dumps(asdict(self._recording), sort_keys=True),),
        )

    def _require_same(self, found: Recording) -> None:
        there, here = list_decisive(found), list_decisive(self._recording)
        if differences := find_differences(there, here):
            raise ConfigurationError(
                f"{self._path} holds another recording: {format_differences(differences)}; to "
                "record it again, name another --output, or move it away"
            )

    def _encode(
        self, rows: Block, window: Window, done: int
    ) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yield the first position, the number, the normalisers and the values of each chunk."""
        if isinstance(rows, np.ndarray) and rows.shape[1] != self._recording.vocabulary:
            raise ValueError(f"rows of {rows.shape[1]} tokens, not {self._recording.vocabulary}")
        top = self._recording.top
        if top is not None:
            if not isinstance(rows, TopRows):
                ids = np.asarray(window.scored_ids[done : done + len(rows)])
                rows = select_top(rows, top, ids)
            yield done, len(rows), b"", _encode_top(rows, top)
            return
        if isinstance(rows, TopRows):
            raise ValueError("a recording without top takes whole rows")
        step = max(1, _CHUNK // rows.shape[1])
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            yield done + at, len(part), *_encode_rows(part)


class ReferenceFile:
    """Reads a reference file; `recording` says what is in it.

    Raises:
        ConfigurationError: no such file, no reference file, a damaged one, or of a newer version.
    """

    def __init__(self, path: Path):
        self._path = path
        with _read_errors(path):
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro",
                timeout=0.0,
                uri=True,
                check_same_thread=False,
            )
            try:
                self.recording = _read_recording(self._connection, path)
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(self, windows: Sequence[Window]) -> Blocks:
        """Yield the rows of each window in blocks, with its index; a `RowSource`.

        Raises:
            ConfigurationError: a window isn't in the file, or the file is damaged.
        """
        for at, (window, number) in enumerate(zip(windows, self.find(windows), strict=True)):
            done = 0
            for first, rows in self._read_chunks(number):
                if first != done:
                    break
                done += len(rows)
                yield at, rows
            if done != len(window.scored_ids):
                raise _make_damage(self._path, f"rows of window {number} are missing")

    def find(self, windows: Sequence[Window]) -> list[int]:
        """Return the numbers of windows in the file; errors as `read`."""
        with _read_errors(self._path):
            found = [_find_window(self._connection, window) for window in windows]
        numbers = [number for number in found if number is not None]
        if len(numbers) < len(found):
            raise ConfigurationError(self._explain_absence())
        return numbers

    def _read_chunks(self, number: int) -> Iterator[tuple[int, Block]]:
        recording = self.recording
        with _read_errors(self._path):
            for first, count, normalisers, values in self._connection.execute(
                "SELECT first, count, normalisers, rows FROM chunks WHERE window = ? "
                "ORDER BY first",
                (number,),
            ):
                if recording.top is not None:
                    yield first, _decode_top(values, count, recording.top)
                else:
                    yield first, _decode_rows(normalisers, values, count, recording.vocabulary)

    def _explain_absence(self) -> str:
        with _read_errors(self._path):
            is_complete = self._connection.execute("SELECT 1 FROM meta WHERE name = 'is_complete'")
            if is_complete.fetchone() is None:
                return (
                    f"the reference file {self._path} isn't finished; run the same `{_COMMAND}` "
                    "again, which goes on where it was"
                )
        return (
            f"the reference file {self._path} has no rows of these ids: it was recorded with other "
            f"texts, another limit or another tokenizer; record it again (`{_COMMAND}`)"
        )


def _make_key(window: Window) -> bytes:
    ids = np.asarray(window.input_ids, "<i4").tobytes()
    return hashlib.sha256(b"%d " % window.start + ids).digest()


def _find_window(connection: sqlite3.Connection, window: Window) -> int | None:
    found = connection.execute("SELECT number FROM windows WHERE key = ?", (_make_key(window),))
    row = found.fetchone()
    return None if row is None else row[0]


def _read_recording(connection: sqlite3.Connection, path: Path) -> Recording:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    is_known = version <= SCHEMA_VERSION
    if application != _APPLICATION_ID or (is_known and has_other_statements(connection, _TABLES)):
        raise ConfigurationError(
            f"{path} is no reference file: it is the database of another program; name a file "
            f"that `{_COMMAND}` wrote"
        )
    if not is_known:
        raise ConfigurationError(
            f"the reference file {path} was written by a newer version of Evalution (its schema is "
            f"{version}, this one knows {SCHEMA_VERSION}); upgrade evalution"
        )
    value = connection.execute("SELECT value FROM meta WHERE name = 'recording'").fetchone()
    try:
        return TypeAdapter(Recording).validate_json(value[0] if value else "")
    except ValidationError as error:
        raise _make_damage(path, "its description can't be read") from error


def _encode_rows(rows: Logprobs) -> tuple[bytes, bytes]:
    """Return ln Σ exp of each row as it is kept, in float64, and the rows, compressed.

    Upper bytes stand before lower ones. Huffman's code alone makes them smaller than looking for
    repetitions does, which noise doesn't have, and in a quarter of the time.
    """
    shifted = rows - rows.max(axis=1, keepdims=True)
    np.maximum(shifted, _LOWEST, out=shifted, where=shifted > -np.inf)
    halves = shifted.astype("<f2")
    normalisers = np.log(np.exp(halves.astype(np.float32)).sum(axis=1, dtype=np.float64))
    planes = halves.view(np.uint8).reshape(-1, 2).T[::-1]
    code = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    return normalisers.astype("<f8").tobytes(), code.compress(planes.tobytes()) + code.flush()


def _decode_rows(normalisers: bytes, values: bytes, count: int, vocabulary: int) -> Logprobs:
    data = _decompress(values, 2 * count * vocabulary)
    planes = np.frombuffer(data, np.uint8).reshape(2, -1)
    halves = np.stack((planes[1], planes[0]), axis=1).view("<f2").reshape(count, vocabulary)
    rows = halves.astype(np.float32)
    rows -= np.frombuffer(normalisers, "<f8").astype(np.float32)[:, None]
    return rows


def _encode_top(rows: TopRows, count: int) -> bytes:
    """Return the ids, then the log-probabilities, then those of the text's tokens."""
    ids, logprobs = rows.token_ids[:, :count], rows.logprobs[:, :count]
    parts = (ids.astype("<i4"), logprobs.astype("<f4"), rows.text_logprobs.astype("<f4"))
    return zlib.compress(b"".join(part.tobytes() for part in parts), 1)


def _decode_top(values: bytes, count: int, top: int) -> TopRows:
    data = _decompress(values, 4 * count * (2 * top + 1))
    size = (len(data) - 4 * count) // 2
    token_ids = np.frombuffer(data, "<i4", size // 4).reshape(count, -1)
    logprobs = np.frombuffer(data, "<f4", size // 4, size).reshape(count, -1)
    return TopRows(token_ids, logprobs, np.frombuffer(data, "<f4", count, 2 * size))


def _decompress(values: bytes, most: int) -> bytes:
    """Return at most so many bytes; raises `ValueError` where there are more, or the end is cut."""
    code = zlib.decompressobj()
    data = code.decompress(values, most + 1)
    if len(data) > most or not code.eof:
        raise ValueError(f"rows are not the {most} bytes that they should be")
    return data


def check_place(path: Path) -> None:
    """Raise `ConfigurationError` where no file can be made, before a model is loaded for it."""
    with path_errors(path):
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder; name a file in it as --output")
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"{path} can't be made: there is no folder {path.parent}; make it, or name another "
                "--output"
            )


def list_decisive(recording: Recording) -> dict[str, Any]:
    """Return, as JSON, what two recordings in one file have in common.

    Left out is what two sessions of one engine may differ in, such as figures of their self checks.
    """
    engine = recording.side.engine
    decisive = {
        "model": recording.side.model,
        "engine": engine.get("name"),
        **{name: engine.get(name) for name in ("options", "identity")},
        **list_arithmetic(engine),
        **{name: getattr(recording, name) for name in _DECISIVE},
    }
    return json.loads(json.dumps(decisive))


def list_arithmetic(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device and dtype that an engine's record has as those in use."""
    execution: Mapping[str, Any] = engine.get("execution") or {}
    return {name: execution.get(name) for name in ("device", "dtype")}


def _make_damage(path: Path, reason: object) -> ConfigurationError:
    return ConfigurationError(
        f"the reference file {path} is damaged ({reason}); record it again (`{_COMMAND}`)"
    )


@contextmanager
def _write_errors(path: Path) -> Generator[None]:
    """Raise SQLite's errors while a file is written."""
    try:
        yield
    except sqlite3.Error as error:
        code = primary_code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ConfigurationError(
                f"another process is writing {path}; wait for its end, or name another --output"
            ) from error
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise ConfigurationError(
                f"{path} is no reference file, or a damaged one ({error}); name another --output, "
                "or move it away"
            ) from error
        raise ResultsNotWrittenError(
            f"{path} can't be written: {error}; what was committed is kept: run the same again"
        ) from error


@contextmanager
def _read_errors(path: Path) -> Generator[None]:
    """Raise SQLite's errors, zlib's, and those of values of other types, while a file is read."""
    try:
        yield
    except ConfigurationError:
        raise
    except (sqlite3.Error, zlib.error, ValueError, TypeError, OverflowError) as error:
        code = primary_code(error) if isinstance(error, sqlite3.Error) else None
        if code == sqlite3.SQLITE_NOTADB:
            raise ConfigurationError(
                f"{path} is no reference file: it isn't a SQLite database; name a file that "
                f"`{_COMMAND}` wrote"
            ) from error
        if code == sqlite3.SQLITE_CANTOPEN:
            raise ConfigurationError(
                f"{path} can't be opened; name a file that `{_COMMAND}` wrote"
            ) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ConfigurationError(
                f"the reference file {path} is being recorded, or its recording was killed; wait "
                f"for the end, or run the same `{_COMMAND}` again"
            ) from error
        raise _make_damage(path, error) from error
