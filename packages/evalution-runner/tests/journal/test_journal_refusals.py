"""Files and folders that can't be a journal: reported before anything is written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from evalution.journal.store import Journal
from evalution_core import ConfigurationError

PROGRAM = """
import os, sys
from pathlib import Path
from evalution.journal.store import Journal

if os.geteuid() == 0:  # who may write anywhere
    os.setuid(65534)
Journal.{call}(Path(sys.argv[1]))
"""


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_text("rows, rows, rows\n" * 100)
    for call in (Journal.open, Journal.open_shared, Journal.delete):
        with pytest.raises(ConfigurationError, match="is no journal: it isn't a SQLite database"):
            call(path)
    assert path.exists()


def test_journal_that_links_to_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.create(tmp_path / "other.sqlite").close()
    path.symlink_to(tmp_path / "other.sqlite")
    for call in (Journal.open, Journal.delete):
        with pytest.raises(ConfigurationError, match="can't be written: it is a link to another"):
            call(path)
    assert path.is_symlink()


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (name)")
    other.close()
    with pytest.raises(ConfigurationError, match="it is the database of another program"):
        Journal.open(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW declared AS SELECT 'a' AS section, '{}' AS value",
        "CREATE TABLE declared (section TEXT, value TEXT AS (printf('%9d', 1)))",
        "CREATE TRIGGER later AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
        "CREATE INDEX slow ON answers (length(answer))",
    ],
)
@pytest.mark.parametrize("call", [Journal.open, Journal.open_shared, Journal.delete])
def test_journal_that_a_stranger_changed_is_refused(
    tmp_path: Path, call: Callable[[Path], object], statement: str
) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.create(path).close()
    with closing(sqlite3.connect(path)) as changed:
        if "declared" in statement:
            changed.execute("DROP TABLE declared")
        changed.execute(statement)
    with pytest.raises(ConfigurationError) as caught:
        call(path)
    assert str(caught.value) == (
        f"{path} is no journal: it is the database of another program; move it away"
    )
    assert path.exists()


def test_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.create(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 7")
    newer.execute("CREATE TABLE more (name)")
    newer.close()
    with pytest.raises(
        ConfigurationError,
        match=r"was written by a newer version of Evalution \(its schema is 7, .*\); upgrade",
    ):
        Journal.open(path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no read-only folders")
@pytest.mark.parametrize("call", ["create", "open", "open_shared", "delete"])
def test_folder_that_cannot_be_written_is_reported(call: str) -> None:
    # Not below pytest's folder, which nobody but its owner can look into.
    with TemporaryDirectory() as base:
        folder = Path(base) / "run"
        target = folder / "journal.sqlite"
        folder.mkdir()
        if call in ("open", "delete"):
            Journal.create(target).close()
        Path(base).chmod(0o755)
        folder.chmod(0o555)
        program = PROGRAM.format(call=call)
        done = subprocess.run([sys.executable, "-c", program, target], stderr=subprocess.PIPE)
        folder.chmod(0o755)
    shown = done.stderr.decode().splitlines()[-1]
    start = f"evalution_core.errors.ConfigurationError: the journal {target} can't be written: "
    assert shown.startswith(start)
    assert shown.endswith("; name a folder that can be")
