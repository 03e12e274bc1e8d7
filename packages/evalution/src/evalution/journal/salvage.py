"""A damaged journal: whether it is one, and what of it can still be read."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

from evalution.journal.database import (
    DAMAGE,
    is_whole,
    journal_errors,
    not_writable,
    open_alone,
    primary_code,
    transaction,
)
from evalution_core import EvalutionError

_LEAST_ROW = 64
"""Bytes that an answer takes at least, with its key: bounds how many there can be."""

_Row = tuple[bytes, int, str, int, int, bytes, int]
_COLUMNS = "key, attempt, suite, row, position, answer, checksum"


def is_sound(connection: sqlite3.Connection) -> bool:
    """Whether SQLite finds no fault in the file, and every answer is the one that was written."""
    try:
        if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
            return False
        rows = connection.execute("SELECT key, answer, checksum FROM answers")
        return (
            all(is_whole(*row) for row in rows)
            and len(_sections(connection))
            == (connection.execute("SELECT count(*) FROM declared").fetchone()[0])
        )
    except sqlite3.DatabaseError as error:
        if primary_code(error) in DAMAGE:
            return False
        raise


def salvage(path: Path) -> str:
    """Put a fresh journal with all that can be read in the place of a damaged one.

    Returns a sentence for the user. The damaged file stays beside the fresh one.

    Raises:
        ConfigurationError: the folder can't be written.
        JournalError: the disk is full; the damaged file still stands in its place.
    """
    draft = path.with_name(f"{path.name}.part")
    kept_as = _free_name(path)
    try:
        for leftover in sqlite_files(draft):
            leftover.unlink(missing_ok=True)
        draft.touch()
        fresh = open_alone(draft)
        try:
            kept = _copy_all(path, draft, fresh)
        finally:
            fresh.close()
        _keep(path, kept_as)
        os.replace(draft, path)
    except OSError as error:
        if isinstance(error, EvalutionError):
            raise
        raise not_writable(path, error) from error
    return (
        f"the journal {path} was damaged: {kept} of its answers could be read and are kept, the "
        f"rest is computed again; the damaged file is now {kept_as}"
    )


def sqlite_files(path: Path) -> list[Path]:
    """The database and what SQLite may keep beside it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]


def _copy_all(path: Path, draft: Path, fresh: sqlite3.Connection) -> int:
    damaged = sqlite3.connect(path, isolation_level=None)
    damaged.text_factory = partial(bytes.decode, errors="replace")
    with closing(damaged), journal_errors(draft), transaction(fresh):
        damaged.execute("PRAGMA locking_mode = EXCLUSIVE")
        # Otherwise SQLite reads nothing of a file that was cut short.
        damaged.execute("PRAGMA writable_schema = ON")
        fresh.executemany("INSERT INTO declared VALUES (?, ?, ?)", _sections(damaged))
        fresh.executemany(
            f"INSERT OR IGNORE INTO answers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            _answers(damaged, sum(f.stat().st_size for f in sqlite_files(path) if f.exists())),
        )
        return fresh.execute("SELECT count(*) FROM answers").fetchone()[0]


def _sections(connection: sqlite3.Connection) -> list[tuple[str, str, int]]:
    """What was declared, all or nothing: a run takes a part of it for that of another run."""
    try:
        found = connection.execute("SELECT section, value, checksum FROM declared").fetchall()
    except sqlite3.DatabaseError:
        return []
    is_sound = all(is_whole(str(row[0]).encode(), str(row[1]).encode(), row[2]) for row in found)
    return found if is_sound else []


def _answers(damaged: sqlite3.Connection, size: int) -> Iterator[_Row]:
    number = 0
    while number <= size // _LEAST_ROW:
        try:
            rows = damaged.execute(
                f"SELECT number, {_COLUMNS} FROM answers WHERE number >= ? ORDER BY number",
                (number,),
            )
            for found, *row in rows:
                number = found
                key, *_, answer, checksum = row
                if is_whole(key, answer, checksum):
                    yield cast(_Row, tuple(row))
        except sqlite3.DatabaseError as error:
            if primary_code(error) not in DAMAGE | {sqlite3.SQLITE_IOERR}:
                return
            number += 1
        else:
            return


def _keep(path: Path, kept_as: Path) -> None:
    # What stands in -wal would be read into the fresh file: it goes with the damaged one.
    for file, kept in zip(sqlite_files(path)[1:], sqlite_files(kept_as)[1:], strict=True):
        if file.exists():
            os.replace(file, kept)
    try:
        os.link(path, kept_as)
    except OSError:  # a file system without links
        shutil.copyfile(path, kept_as)


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}.damaged-{n}{path.suffix}") for n in count(1))
    return next(name for name in names if not name.exists())
