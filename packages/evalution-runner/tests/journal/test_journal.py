from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from evalution.journal import database
from evalution.journal.database import JournalError, open_alone, open_shared
from evalution.journal.store import Journal
from evalution_core import ConfigurationError

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal.create(path) as journal:
        yield journal


def record(journal: Journal, key: bytes, answer: str, *, suite: str = "s", row: int = 0) -> None:
    journal.record(key, answer, suite=suite, row=row, position=0)


def committed(path: Path) -> list[str]:
    """What a reader of the bytes on disk finds, though the journal holds its lock."""
    copies = [path.with_name("copy.sqlite"), path.with_name("copy.sqlite-wal")]
    for file, copy in zip((path, path.with_name(f"{path.name}-wal")), copies, strict=True):
        copy.write_bytes(_bytes_of(file))
    reader = sqlite3.connect(copies[0])
    try:
        found = reader.execute("SELECT answer FROM answers")
        return [row[0].decode().partition("\n")[0] for row in found]
    finally:
        reader.close()


def _bytes_of(file: Path) -> bytes:
    # In a process of its own: closing a file drops the locks that this process has on it.
    command = [
        sys.executable,
        "-c",
        "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())",
    ]
    return subprocess.run([*command, file], capture_output=True, check=True).stdout


def in_child(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; from pathlib import Path; from evalution.journal.store import *\n"
        "path = Path(sys.argv[1]); key = b'k' * 32\n" + code
    )
    return subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)


def test_answer_is_found_before_and_after_it_is_committed(journal: Journal) -> None:
    assert journal.find(KEY) is None
    record(journal, KEY, "a \ud83d \0")
    assert journal.find(KEY) == "a \ud83d \0"
    journal.flush()
    assert journal.find(KEY) == "a \ud83d \0"
    assert journal.find(OTHER) is None


def test_flush_puts_the_answers_on_disk(journal: Journal, path: Path) -> None:
    record(journal, KEY, "a")
    record(journal, OTHER, "b")
    journal.flush()
    assert committed(path) == ["a", "b"]


def test_commit_waits_for_the_disk_in_a_run_and_not_in_a_cache(path: Path) -> None:
    level = "PRAGMA synchronous"
    Journal.create(path).close()
    alone = open_alone(path)
    assert alone.execute(level).fetchone() == (2,)  # FULL
    alone.close()
    shared = open_shared(path)
    assert shared.execute(level).fetchone() == (1,)  # NORMAL
    shared.close()


def test_answer_is_committed_though_nothing_else_comes(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Event()
    commit = Journal._commit

    def committing(self: Journal) -> None:
        commit(self)
        done.set()

    monkeypatch.setattr(Journal, "_commit", committing)
    record(journal, KEY, "a")
    assert done.wait(10)
    assert committed(journal.path) == ["a"]


def test_last_attempt_counts(journal: Journal) -> None:
    record(journal, KEY, "a")
    record(journal, KEY, "b")
    assert journal.find(KEY) == "b"
    journal.flush()
    record(journal, KEY, "c")
    assert journal.find(KEY) == "c"
    journal.flush()
    assert journal.find(KEY) == "c"
    assert committed(journal.path) == ["a", "b", "c"]
    assert journal.count() == 1


def test_answers_outlive_the_journal(path: Path) -> None:
    with Journal.create(path) as journal:
        record(journal, KEY, "a")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with Journal.open(path) as journal:
        assert journal.find(KEY) == "a"
        assert journal.notice is None


def test_count_returns_requests_by_suite(journal: Journal) -> None:
    for number, suite in enumerate("aab"):
        record(journal, bytes([number]), "x", suite=suite, row=number)
    assert (journal.count("a"), journal.count("b"), journal.count("c")) == (2, 1, 0)
    assert journal.count() == 3


def test_which_suites_have_answers_is_read_from_the_file_once(path: Path) -> None:
    with Journal.create(path) as journal:
        record(journal, KEY, "a", suite="before")
    statements: list[str] = []
    with Journal.open(path) as journal:
        journal._connection.set_trace_callback(statements.append)
        record(journal, OTHER, "b", suite="pending")
        assert [journal.has_answers(name) for name in ("before", "pending", "new")] == [
            True,
            True,
            False,
        ]
        record(journal, b"n" * 32, "c", suite="new")
        assert journal.has_answers("new")
    assert sum(statement.startswith("SELECT") for statement in statements) == 1


def test_declarations_are_kept_by_section(path: Path) -> None:
    with Journal.create(path) as journal:
        assert journal.read_declared() == {}
        journal.declare({"spec": {"tests": [1, None], "engine": "é"}})
        journal.declare({"versions": 1})
        journal.declare({"versions": 2})
        journal.declare({"a": [], "versions": 3})
    with Journal.open(path) as journal:
        assert journal.read_declared() == {
            "spec": {"tests": [1, None], "engine": "é"},
            "versions": 3,
            "a": [],
        }
        assert journal.read_declared("a", "b", "versions") == {"versions": 3, "a": []}


def test_other_threads_recall_while_answers_come(journal: Journal) -> None:
    keys = [number.to_bytes(4, "big") for number in range(3000)]
    found: list[str | None] = []

    def find_all() -> None:
        for key in keys:
            while (answer := journal.find(key)) is None:
                pass
            found.append(answer)

    reader = Thread(target=find_all)
    reader.start()
    for number, key in enumerate(keys):
        record(journal, key, str(number))
        if number % 100 == 0:
            journal.flush()
    reader.join()
    assert found == [str(number) for number in range(3000)]


def test_closed_journal_takes_no_answer(journal: Journal) -> None:
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        record(journal, KEY, "a")
    with pytest.raises(JournalError, match="closed"):
        journal.find(KEY)


def test_create_takes_no_journal_that_is_there(journal: Journal, path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is a journal already"):
        Journal.create(path)


def test_open_needs_a_journal(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no journal"):
        Journal.open(path)


def test_journal_whose_making_was_killed_is_an_empty_one(path: Path) -> None:
    path.touch()
    with Journal.open(path) as journal:
        assert journal.count() == 0


def test_another_process_is_kept_out_of_a_run(journal: Journal, path: Path) -> None:
    for call in ("open", "delete"):
        refused = in_child(f"Journal.{call}(path)", path)
        assert "ConfigurationError: another process" in refused.stderr
        assert f"is writing this run: {path}; wait for its end, or name another" in refused.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who holds a lock")
def test_killed_process_leaves_its_committed_answers_and_no_lock(path: Path) -> None:
    killed = in_child(
        "import os, signal\n"
        "journal = Journal.create(path)\n"
        "journal.record(key, 'a', suite='s', row=0, position=0)\n"
        "journal.flush()\n"
        "journal.record(key, 'b', suite='s', row=0, position=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        path,
    )
    assert killed.returncode == -9
    with Journal.open(path) as journal:
        assert journal.find(KEY) == "a"
        assert journal.notice is None


def test_cache_is_shared_and_its_first_answer_stays(path: Path) -> None:
    cache = path.parent / "new" / "answers.sqlite"
    with Journal.open_shared(cache) as journal:
        record(journal, KEY, "a")
        journal.flush()
        code = (
            "with Journal.open_shared(path) as journal:\n"
            "    journal.record(key, 'b', suite='s', row=0, position=0)\n"
            "    journal.record(b'o' * 32, 'c', suite='s', row=1, position=0)\n"
            "    print(journal.find(key))"
        )
        assert in_child(code, cache).returncode == 0
        assert (journal.find(KEY), journal.find(OTHER)) == ("a", "c")


def test_processes_make_and_fill_one_cache_at_once(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from evalution.journal.store import Journal\n"
        "with Journal.open_shared(Path(sys.argv[1])) as journal:\n"
        "    for number in range(200):\n"
        "        key = f'{sys.argv[2]} {number}'.encode()\n"
        "        journal.record(key, 'a', suite='s', row=number, position=0)\n"
        "        if number % 10 == 0: journal.flush()\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, path, str(number)]) for number in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    with Journal.open_shared(path) as journal:
        assert journal.count() == 800


@pytest.mark.parametrize("moment", ["schema_version", "application_id"])
def test_cache_that_another_process_makes_at_this_moment_is_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    other: list[Journal] = []

    class Raced(sqlite3.Connection):
        def execute(self, sql: str, /, *values: Any) -> sqlite3.Cursor:
            found = super().execute(sql, *values)
            if sql == f"PRAGMA {moment}" and not other:
                row = found.fetchone()
                monkeypatch.undo()
                other.append(Journal.open_shared(path))
                return super().execute(f"SELECT {row[0]}")
            return found

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Raced))
    with Journal.open_shared(path) as journal:
        record(journal, KEY, "a")
        journal.flush()
        with other[0] as reader:
            assert reader.find(KEY) == "a"


def test_deleting_removes_all_files(path: Path) -> None:
    Journal.delete(path)
    killed = in_child(
        "import os, signal\n"
        "journal = Journal.create(path)\n"
        "journal.record(key, 'a', suite='s', row=0, position=0)\n"
        "journal.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        path,
    )
    assert killed.returncode == -9
    assert path.with_name(f"{path.name}-wal").exists()
    Journal.delete(path)
    assert list(path.parent.iterdir()) == []


def test_nobody_takes_a_journal_while_it_is_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal.create(path).close()
    removed, unlink = list[str](), Path.unlink

    def intrude(file: Path, *, missing_ok: bool) -> None:
        with pytest.raises(ConfigurationError, match="is writing this run"):
            Journal.open(path)
        removed.append(file.name.removeprefix(path.name))
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", intrude)
    Journal.delete(path)
    assert removed == ["-journal", "-shm", "-wal", ""]
    assert not path.exists()


@pytest.mark.parametrize("error", [None, JournalError("disk I/O error")])
def test_journal_that_another_process_removes_meanwhile_is_not_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: JournalError | None
) -> None:
    Journal.create(path).close()
    connect = database._connect

    def lose(*arguments: Any) -> sqlite3.Connection:
        connection = connect(*arguments)
        path.unlink()
        if error is not None:
            connection.close()
            raise error
        return connection

    monkeypatch.setattr(database, "_connect", lose)
    with pytest.raises(ConfigurationError, match=r"another process, .* is writing this run"):
        Journal.open(path)


@pytest.mark.parametrize("damaged", [7, "text", b"\xff\xfe"])
def test_answer_that_damage_changed_is_not_found(path: Path, damaged: object) -> None:
    with Journal.create(path) as journal:
        record(journal, KEY, "1")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE answers SET answer = ?", (damaged,))
    connection.close()
    with Journal.open(path) as journal:
        assert journal.find(KEY) is None
