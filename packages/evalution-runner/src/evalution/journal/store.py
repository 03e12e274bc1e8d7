"""Answers in one SQLite file, committed a tenth of a second after they came, or by `flush`.

SQLite's write-ahead log keeps what was committed, however the process ends. A file that SQLite can
no longer read is moved aside, and its answers are computed again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import RLock, Timer
from typing import Any, Self
from zlib import crc32

from evalution.journal.database import (
    LAST_NUMBER,
    DamagedJournalError,
    JournalError,
    is_sound,
    journal_errors,
    move_aside,
    not_writable,
    open_alone,
    open_shared,
    sqlite_files,
    to_journal_error,
    transaction,
)
from evalution.journal.records import (
    AnswerBase,
    UnreadableAnswerError,
    decode_answer,
    encode_answer,
    make_cache_key,
    make_request_key,
)
from evalution.journal.write_ahead_log import find_last_row
from evalution.suites.suite import Sample
from evalution_core import ConfigurationError, EvalutionError, GenerationRequest, RequestFailure
from evalution_core.requests import Output, Request

_COMMIT_S = 0.1
_FIND = "SELECT answer FROM answers WHERE key = ? ORDER BY attempt DESC LIMIT 1"
_NEXT_ATTEMPT = """
INSERT INTO answers (key, attempt, suite, row, position, answer)
SELECT key, (SELECT coalesce(max(attempt) + 1, 0) FROM answers WHERE key = given.key),
       suite, row, position, answer
FROM (SELECT ? AS key, ? AS suite, ? AS row, ? AS position, ? AS answer) AS given
"""
_FIRST_STAYS = """
INSERT OR IGNORE INTO answers (key, attempt, suite, row, position, answer)
VALUES (?, 0, ?, ?, ?, ?)
"""
_COUNT = "SELECT count(*) FROM answers WHERE attempt = 0 AND suite = coalesce(?, suite)"


class Journal:
    """Answers by key, and what a run declared about itself. Safe to use from several threads.

    A key may be recorded again: its answers are numbered as attempts, and the last one counts.
    Every call raises `JournalError` where the file can't be written or read. An answer that could
    not be committed in the background raises at the next `record`, `flush` or `close`.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, insert: str):
        self.path = path
        self.notice: str | None = None
        """A sentence for the user about damage, and how many answers it has cost."""
        self._connection = connection
        self._insert = insert
        self._lock = RLock()
        self._pending: list[tuple[bytes, str, int, int, bytes]] = []
        self._last: dict[bytes, bytes] = {}
        self._timer: Timer | None = None
        self._failure: JournalError | None = None
        self._suites: set[str] | None = None
        self._is_closed = False

    @classmethod
    def create(cls, path: Path) -> Journal:
        """Make a journal that this process alone holds until `close` or its death.

        Raises:
            ConfigurationError: there is a file already, or its folder can't be written.
        """
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            raise ConfigurationError(f"there is a journal already: {path}") from None
        except OSError as error:
            raise not_writable(path, error) from error
        return cls(path, open_alone(path), _NEXT_ATTEMPT)

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open the journal of an earlier run, held by this process alone until `close`.

        A damaged file is moved aside, an empty journal takes its place, and `notice` says so. So it
        does of answers that a damaged write-ahead log has lost.

        Raises:
            ConfigurationError: it isn't there, is no journal, was written by a newer version, or is
                in use by another process; or its folder can't be written.
        """
        if not path.is_file():
            raise ConfigurationError(f"there is no journal {path}")
        logged = find_last_row(sqlite_files(path)[1], columns=7)
        try:
            connection = open_alone(path)
        except DamagedJournalError:
            connection = None
        if connection is not None:
            if is_sound(connection, path):
                journal = cls(path, connection, _NEXT_ATTEMPT)
                journal._note_lost(logged)
                return journal
            connection.close()
        notice = move_aside(path)
        journal = cls.create(path)
        journal.notice = notice
        return journal

    @classmethod
    def open_shared(cls, path: Path) -> Journal:
        """Open the answers that several processes share; the file is made where there is none.

        The first answer to a key stays. Record no failures in it.

        Raises:
            ConfigurationError: as `open`, or the file is damaged; other processes may use it.
        """
        return cls(path, open_shared(path), _FIRST_STAYS)

    @classmethod
    def delete(cls, path: Path) -> None:
        """Remove a journal with the files that SQLite keeps beside it; nothing if there is none.

        Raises:
            ConfigurationError: it is no journal or in use by another process, or the folder can't
                be written.
        """
        if not path.exists():
            return
        with ExitStack() as held:  # or another process could take it before it is gone
            with suppress(DamagedJournalError):  # what is damaged can be removed as well
                connection = held.enter_context(closing(open_alone(path)))
                if os.name == "nt":  # which removes no open file
                    connection.close()
            try:
                for file in reversed(sqlite_files(path)):  # the others belong to who has the first
                    file.unlink(missing_ok=True)
            except OSError as error:
                raise not_writable(path, error) from error

    def find(self, key: bytes) -> str | None:
        """Return the last answer recorded under `key`, also when it isn't committed yet."""
        with self._lock:
            if (pending := self._last.get(key)) is not None:
                return pending.decode("utf-8", "surrogatepass")
            try:
                found = self._connection.execute(_FIND, (key,)).fetchone()
            except sqlite3.Error as error:
                raise to_journal_error(self.path, error) from error
        # Damage that SQLite can't see, even another type: the answer is computed again.
        if found is None or not isinstance(found[0], bytes):
            return None
        answer, newline, _ = found[0].rpartition(b"\n")
        if newline and found[0] != _seal(answer):
            return None
        try:
            return (answer if newline else found[0]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None

    def record(self, key: bytes, encoded: str, *, suite: str, row: int, position: int) -> None:
        """File an answer; it is committed within 0.1 s, or by `flush`."""
        answer = encoded.encode("utf-8", "surrogatepass")  # JSON can hold a lone surrogate
        with self._lock:
            self._raise_failure()
            if self._is_closed:
                raise JournalError(f"the journal {self.path} is closed")
            self._pending.append((key, suite, row, position, _seal(answer)))
            self._last[key] = answer
            if self._suites is not None:
                self._suites.add(suite)
            if self._timer is None:
                self._timer = Timer(_COMMIT_S, self._commit_in_background)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Commit what was recorded: it then survives the process.

        What a journal of one process has committed survives a power cut too.
        """
        with self._lock:
            self._commit()

    def close(self) -> None:
        """Commit what was recorded and release the file. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._commit()
            finally:
                with journal_errors(self.path):
                    self._connection.close()

    def declare(self, values: Mapping[str, Any]) -> None:
        """Keep JSON values by section, all of them or, if the process dies, none."""
        rows = [(name, json.dumps(value, sort_keys=True)) for name, value in values.items()]
        with self._lock, journal_errors(self.path), transaction(self._connection):
            self._connection.executemany("REPLACE INTO declared VALUES (?, ?)", rows)

    def read_declared(self, *sections: str) -> dict[str, Any]:
        """Return declared values by section: those of `sections`, or all if none is named."""
        places = ", ".join("?" * len(sections))
        chosen = f" WHERE section IN ({places})" if sections else ""
        query = f"SELECT section, value FROM declared{chosen}"
        with self._lock, journal_errors(self.path):
            found = self._connection.execute(query, sections).fetchall()
        return {section: json.loads(text) for section, text in found}

    def clear(self) -> None:
        """Forget all answers, and what was declared."""
        with self._lock, journal_errors(self.path):
            with transaction(self._connection):
                for table in ("answers", "declared"):
                    self._connection.execute(f"DELETE FROM {table}")
            self._connection.execute("VACUUM")

    def has_answers(self, suite: str) -> bool:
        """True if an answer of that suite was recorded, here or before; reads the file once."""
        with self._lock:
            if self._suites is None:
                self._commit()
                with journal_errors(self.path):
                    found = self._connection.execute("SELECT DISTINCT suite FROM answers")
                    self._suites = {name for (name,) in found}
            return suite in self._suites

    def count(self, suite: str | None = None) -> int:
        """Return how many requests have an answer, of one suite or of all."""
        with self._lock:
            self._commit()
            with journal_errors(self.path):
                return self._connection.execute(_COUNT, (suite,)).fetchone()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note_lost(self, logged: int) -> None:
        with journal_errors(self.path):
            lost = logged - (self._connection.execute(LAST_NUMBER).fetchone()[0] or 0)
        if lost > 0:
            self.notice = (
                f"the end of the write-ahead log of the journal {self.path} is damaged: {lost} "
                f"answer{'s' * (lost > 1)} that it held must be computed again"
            )

    def _commit_in_background(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                self._commit()
            except JournalError as error:
                self._failure = error

    def _commit(self) -> None:
        # What can't be committed stays pending: the next call may find more room.
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self._pending:
            return
        with journal_errors(self.path), transaction(self._connection):
            self._connection.executemany(self._insert, self._pending)
        self._pending.clear()
        self._last.clear()
        self._failure = None

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _seal(answer: bytes) -> bytes:
    """Return an answer with its CRC-32 behind it, as white space: versions that know none read it.

    One of theirs has no line break.
    """
    bits = f"{crc32(answer):032b}".translate({ord("0"): " ", ord("1"): "\t"})
    return answer + b"\n" + bits.encode()


class KnownAnswers:
    """Answers of one suite by sample and position of the request; without files it keeps nothing.

    `find` may be called from the thread on which a session reads its input.

    Args:
        suite: the suite's name in this run.
        base: who answers.
        journal: the run folder's; None without one.
        cache: answers shared by runs; None unless one was asked for.
        retry_failed: take the failed requests of an earlier attempt for unanswered.
    """

    def __init__(
        self,
        suite: str,
        base: AnswerBase,
        journal: Journal | None,
        cache: Journal | None,
        *,
        retry_failed: bool = False,
    ):
        self._suite = suite
        self._base = base
        self._journal = journal
        self._cache = cache
        self._retry_failed = retry_failed

    @property
    def is_empty(self) -> bool:
        """True if there is no answer for any sample of this suite."""
        is_new = self._journal is None or not self._journal.has_answers(self._suite)
        return is_new and self._cache is None

    def find(self, sample: Sample) -> Mapping[int, Output | RequestFailure]:
        """Return the answers that are known already, by position."""
        found: dict[int, Output | RequestFailure] = {}
        for position, request in enumerate(sample.requests):
            answer = self._find_in_journal(sample.index, position, request)
            if answer is None and (answer := self._find_in_cache(request)) is not None:
                self._record(sample.index, position, request, encode_answer(answer))
            if answer is not None:
                found[position] = answer
        return found

    def keep(self, sample: Sample, position: int, answer: Output) -> None:
        """Keep an answer.

        Raises:
            EngineRuntimeError: it holds a value that can't be written down.
        """
        if self._journal is None and self._cache is None:
            return
        request = sample.requests[position]
        encoded = encode_answer(answer)
        self._record(sample.index, position, request, encoded)
        if self._cache is not None and (key := make_cache_key(self._base, request)) is not None:
            self._cache.record(key, encoded, suite="", row=0, position=0)

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        """Keep why a request has no answer; return the error as `find` will give it."""
        if self._journal is None:
            return error
        encoded = encode_answer(RequestFailure(error))
        self._record(sample.index, position, sample.requests[position], encoded)
        return _decode_error(encoded)

    def flush(self) -> None:
        """Commit all that was kept."""
        for store in (self._journal, self._cache):
            if store is not None:
                store.flush()

    def _find_in_journal(
        self, row: int, position: int, request: Request
    ) -> Output | RequestFailure | None:
        answer = _find(self._journal, self._key(row, position, request), request)
        return None if self._retry_failed and isinstance(answer, RequestFailure) else answer

    def _find_in_cache(self, request: Request) -> Output | RequestFailure | None:
        if self._cache is None:
            return None
        return _find(self._cache, make_cache_key(self._base, request), request)

    def _record(self, row: int, position: int, request: Request, encoded: str) -> None:
        key = self._key(row, position, request)
        if self._journal is not None and key is not None:
            self._journal.record(key, encoded, suite=self._suite, row=row, position=position)

    def _key(self, row: int, position: int, request: Request) -> bytes | None:
        if self._journal is None:
            return None
        return make_request_key(
            self._base, suite=self._suite, row=row, position=position, request=request
        )


def _find(
    journal: Journal | None, key: bytes | None, request: Request
) -> Output | RequestFailure | None:
    if journal is None or key is None or (found := journal.find(key)) is None:
        return None
    try:
        return decode_answer(found, request)
    except UnreadableAnswerError:  # it is computed again
        return None


def _decode_error(encoded: str) -> EvalutionError:
    failure = decode_answer(encoded, GenerationRequest())
    assert isinstance(failure, RequestFailure)
    return failure.error
