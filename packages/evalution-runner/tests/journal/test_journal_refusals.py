"""Files and folders that can't be a journal: reported before anything is written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
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


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (name)")
    other.close()
    with pytest.raises(ConfigurationError, match="it is the database of another program"):
        Journal.open(path)


def test_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.create(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 7")
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
