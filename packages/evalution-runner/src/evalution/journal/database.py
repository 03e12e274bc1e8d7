"""The SQLite file of a journal: opening it, alone or with others, and what SQLite's errors mean."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError, EvalutionError

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x45564C4E
_TABLES = """
CREATE TABLE answers (
    number INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    suite TEXT NOT NULL,
    row INTEGER NOT NULL,
    position INTEGER NOT NULL,
    answer BLOB NOT NULL
);
CREATE UNIQUE INDEX answers_by_key ON answers (key, attempt);
CREATE TABLE declared (section TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
LAST_NUMBER = "SELECT max(number) FROM answers"
_MOST_LEVELS = 200
_SHARED_WAIT_S = 30.0
_RETRY_S = 0.02
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FORBIDDEN = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})


class JournalError(EvalutionError, OSError):
    """Answers can't be written or read (disk full, file gone); what was committed stays."""


class DamagedJournalError(JournalError):
    """SQLite can't read the file."""


class BusyJournalError(JournalError):
    """Another process has the file."""


def open_alone(path: Path) -> sqlite3.Connection:
    """Connect so that no other process can while it is open; any death releases the file.

    What it commits survives a power cut as well.

    Raises:
        ConfigurationError: no such file, not a journal, one of a newer version, in use, or the
            folder can't be written; or it is a link.
        DamagedJournalError: it is a journal, but a damaged one.
    """
    if path.is_symlink():  # of a stranger's folder, which SQLite would follow
        raise not_writable(path, "it is a link to another file")
    number = _find_number(path)
    try:
        # In this mode SQLite needs no shared memory beside the file, which network drives lack.
        connection = _connect(path, "EXCLUSIVE", "FULL", 0.0)
        if _find_number(path) == number:
            return connection
        connection.close()  # of a file that another process has removed
        raise BusyJournalError
    except (JournalError, ConfigurationError) as error:
        is_lost = number is None or _find_number(path) != number
        if is_lost or isinstance(error, BusyJournalError):
            raise ConfigurationError(
                f"another process, or another run of this one, is writing this run: {path}; wait "
                "for its end, or name another --output"
            ) from error
        if isinstance(error, DamagedJournalError | ConfigurationError):
            raise
        raise ConfigurationError(str(error)) from error


def _find_number(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def open_shared(path: Path) -> sqlite3.Connection:
    """Connect beside other processes; the file is made where there is none.

    What was committed last may be lost in a power cut, but never to the death of a process.

    Raises:
        ConfigurationError: as `open_alone`, or it is damaged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        # No commit waits for the disk, or each process would wait for those of the others.
        return _connect(path, "NORMAL", "NORMAL", _SHARED_WAIT_S)
    except DamagedJournalError as error:
        raise ConfigurationError(
            f"the journal {path} is damaged ({error.__cause__}); move it away, and a new one is "
            "made"
        ) from error
    except JournalError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise not_writable(path, error) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commit what is done inside, or nothing of it."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, locking: str, synchronous: str, wait_s: float) -> sqlite3.Connection:
    # SQLite would open it all the same, and fail later in ways that depend on the system.
    if not all(os.access(place, os.W_OK) for place in (path, path.parent)):
        raise not_writable(path, "the file or its folder is read-only")
    with journal_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=wait_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute(f"PRAGMA locking_mode = {locking}")
            _check_kind(connection, path)
            _enter_wal(connection, wait_s)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            with transaction(connection):  # raises now if the file can't be written
                _make_tables(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    try:
        # First: another process may make the tables, and with them the two ids, at this moment.
        is_empty = connection.execute("PRAGMA schema_version").fetchone()[0] == 0
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        is_known = application == _APPLICATION_ID and version <= SCHEMA_VERSION
        is_foreign = is_known and has_other_statements(connection, _TABLES)
    except sqlite3.DatabaseError as error:
        if primary_code(error) == sqlite3.SQLITE_NOTADB:
            raise ConfigurationError(
                f"{path} is no journal: it isn't a SQLite database; move it away"
            ) from error
        raise
    if is_foreign or (application != _APPLICATION_ID and not is_empty):
        raise ConfigurationError(
            f"{path} is no journal: it is the database of another program; move it away"
        )
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the journal {path} was written by a newer version of Evalution (its schema is "
            f"{version}, this one knows {SCHEMA_VERSION}); upgrade evalution"
        )


def has_other_statements(connection: sqlite3.Connection, tables: str) -> bool:
    """True if not all that a database defines stands in `tables`: a view or a trigger may not end.

    Raises:
        sqlite3.Error: it is damaged.
    """
    # As bytes: damage may have left no text.
    found = connection.execute("SELECT CAST(sql AS BLOB) FROM sqlite_master WHERE sql IS NOT NULL")
    return not {sql for (sql,) in found} <= {made.strip().encode() for made in tables.split(";")}


def _enter_wal(connection: sqlite3.Connection, wait_s: float) -> None:
    give_up = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # SQLite doesn't wait here while another process does the same.
            if primary_code(error) not in _BUSY or time.monotonic() >= give_up:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def _make_tables(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA schema_version").fetchone()[0]:
        return
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_sound(connection: sqlite3.Connection, path: Path) -> bool:
    """True if there is no damage in the file; closes the connection on any other error."""
    try:
        with journal_errors(path):
            if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                return False
            # SQLite has no checksum: a flipped bit in a text is no damage to it.
            for (text,) in connection.execute("SELECT value FROM declared"):
                if _is_deep(json.loads(text)):
                    return False
            return True
    except (DamagedJournalError, TypeError, ValueError, RecursionError):
        return False
    except BaseException:
        connection.close()
        raise


def _is_deep(value: object) -> bool:
    """True for more levels than any declaration has: a walk through them would not end well."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        held = [cast("dict[str, Any] | list[Any]", v) for v in level if isinstance(v, dict | list)]
        level = [each for v in held for each in (v.values() if isinstance(v, dict) else v)]
    return bool(level)


def move_aside(path: Path) -> str:
    """Rename a damaged journal with all its files; return a sentence about it for the user."""
    lost = _count_damaged(path)
    names = (path.with_name(f"{path.stem}.damaged-{n}{path.suffix}") for n in count(1))
    aside = next(name for name in names if not name.exists())
    try:
        for file, kept in zip(sqlite_files(path), sqlite_files(aside), strict=True):
            if file.exists():
                os.replace(file, kept)
    except OSError as error:
        raise not_writable(path, error) from error
    return (
        f"the journal {path} is damaged: {'all' if lost is None else lost} of its answers have to "
        f"be computed again; the damaged file is now {aside}"
    )


def _count_damaged(path: Path) -> int | None:
    """Return how many answers a damaged journal was given, None if that can't be read."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as damaged:
            damaged.execute("PRAGMA locking_mode = EXCLUSIVE")  # or it makes files beside this one
            return damaged.execute(LAST_NUMBER).fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def sqlite_files(path: Path) -> list[Path]:
    """Return the database and what SQLite may keep beside it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]


@contextmanager
def journal_errors(path: Path) -> Generator[None]:
    """Raise SQLite's errors as `JournalError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise to_journal_error(path, error) from error
    except UnicodeDecodeError as error:  # SQLite's message quotes what is damaged
        raise _make_damage_error(path, error) from error


def _make_damage_error(path: Path, error: Exception) -> DamagedJournalError:
    return DamagedJournalError(
        f"the journal {path} is damaged ({error}); run the same again, which moves it aside "
        "and computes its answers again"
    )


def to_journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """Return the error that SQLite's stands for, with what to do about it."""
    code = primary_code(error)
    if code in _DAMAGE:
        return _make_damage_error(path, error)
    if code in _BUSY:
        return BusyJournalError(f"the journal {path} is in use by another process for too long")
    if code == sqlite3.SQLITE_FULL:
        return JournalError(
            f"the journal {path} can't be written: the disk is full; what was committed is kept: "
            "make room and run the same again"
        )
    if code in _FORBIDDEN:
        return JournalError(
            f"the journal {path} can't be written: {error}; name a folder that can be"
        )
    return JournalError(
        f"the journal {path} can't be written: {error}; what was committed is kept: run the same "
        "again when that is mended"
    )


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's result code without its detail; 0 for an error of Python's own layer."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def not_writable(path: Path, error: OSError | str) -> ConfigurationError:
    """Return the error for a journal that the file system refuses to make, change or remove."""
    reason = error if isinstance(error, str) else error.strerror
    return ConfigurationError(
        f"the journal {path} can't be written: {reason}; name a folder that can be"
    )
