from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest

from evalution.journal.database import JournalError
from evalution.journal.store import Journal
from evalution_core import ConfigurationError

PAGE = 4096
COUNT = 2000
DECLARED = {"spec": {"engine": "Mock"}, "suite sums": {"rows": 2}}


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def answer(number: int) -> str:
    return f'{{"generation":{{"prompt":"p","text":"{number} {"x" * (number % 300)}"}}}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with `COUNT` answers, the last hundred of which were committed apart."""
    path = tmp_path / "journal.sqlite"
    with Journal.create(path) as journal:
        journal.declare(DECLARED)
        fill(journal, 0, COUNT - 100)
        journal.flush()
        fill(journal, COUNT - 100, COUNT)
    return path


def fill(journal: Journal, first: int, end: int) -> None:
    for number in range(first, end):
        journal.record(key(number), answer(number), suite="s", row=number, position=0)


def kept(journal: Journal) -> list[int]:
    """The answers that are served, each of which must be the one that was recorded."""
    found = {number: journal.find(key(number)) for number in range(COUNT)}
    assert all(text in (None, answer(number)) for number, text in found.items())
    return [number for number, text in found.items() if text is not None]


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def last_page(path: Path) -> None:
    overwrite(path, path.stat().st_size - PAGE, noise(PAGE))


def middle_page(path: Path) -> None:
    overwrite(path, path.stat().st_size // PAGE // 2 * PAGE, noise(PAGE))


def zeroed_pages(path: Path) -> None:
    overwrite(path, path.stat().st_size // PAGE // 3 * PAGE, bytes(3 * PAGE))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10 * PAGE)


def torn_page(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1000)


def declared_value(path: Path) -> None:
    overwrite(path, path.read_bytes().index(b'{"engine"') + 2, b"\x00")


def nested_value(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        nested = '[{"a":' * 150 + "1" + "}]" * 150
        file.execute("UPDATE declared SET value = ?", (nested,))
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize(
    "damage",
    [nested_value, declared_value, last_page, middle_page, zeroed_pages, cut_short, torn_page],
)
def test_damaged_journal_is_moved_aside_and_its_answers_are_asked_again(
    path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    damaged = path.read_bytes()
    with Journal.open(path) as journal:
        assert journal.count() == 0
        assert journal.read_declared() == {}
        aside = path.with_name("journal.damaged-1.sqlite")
        assert re.fullmatch(
            rf"the journal {re.escape(str(path))} is damaged: (all|\d+) of its answers have to be "
            rf"computed again; the damaged file is now {re.escape(str(aside))}",
            journal.notice or "",
        )
        assert aside.read_bytes() == damaged
        fill(journal, 0, COUNT)
        assert kept(journal) == list(range(COUNT))
    with Journal.open(path) as journal:
        assert journal.notice is None
        assert kept(journal) == list(range(COUNT))


def test_notice_counts_the_answers_to_be_computed_again(path: Path) -> None:
    zeroed_pages(path)
    with Journal.open(path) as journal:
        assert journal.notice is not None
        assert f"{COUNT} of its answers have to be computed again" in journal.notice


@pytest.mark.parametrize("seed", range(5))
def test_damage_anywhere_behind_the_header_ends_in_no_crash(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice([60, 5000])
    overwrite(path, chance.randrange(100, path.stat().st_size - size), noise(size, seed))
    with Journal.open(path) as journal:
        for number in range(COUNT):
            journal.find(key(number))
        fill(journal, 0, COUNT)
        assert kept(journal) == list(range(COUNT))


def test_answer_with_a_changed_bit_is_not_served(path: Path) -> None:
    content = path.read_bytes()
    start = content.index(answer(7).encode())
    size = len(answer(7))
    for place in (start, start + size - 5, start + size - 1, start + size + 1, start + size + 32):
        overwrite(path, place, bytes([content[place] ^ 1]))
        with Journal.open(path) as journal:
            assert journal.notice is None
            assert journal.find(key(7)) is None
        path.write_bytes(content)
    with Journal.open(path) as journal:
        assert kept(journal) == list(range(COUNT))


def test_answer_of_a_version_that_wrote_no_checksum_is_served(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute("UPDATE answers SET answer = ? WHERE row = 7", (answer(7).encode(),))
    with Journal.open(path) as journal:
        assert kept(journal) == list(range(COUNT))


def test_second_damage_keeps_the_first_file(path: Path) -> None:
    for _ in range(2):
        last_page(path)
        Journal.open(path).close()
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["journal.damaged-1.sqlite", "journal.damaged-2.sqlite", "journal.sqlite"]


KILLED = """
import os, signal, sys
from pathlib import Path
from evalution.journal.store import Journal
journal = Journal.create(Path(sys.argv[1]))
for number in range(300):
    text = '{"generation":{"prompt":"p","text":"%d %s"}}' % (number, "x" * (number % 300))
    journal.record(number.to_bytes(32, "big"), text, suite="s", row=number, position=0)
    if number % 10 == 9:
        journal.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a journal whose process was killed: most answers are in the log."""
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", KILLED, folder / "journal.sqlite"], check=False)
    return folder


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("at", [0, 10, 32, 0.3, 0.6, 0.99])
def test_damaged_write_ahead_log_keeps_what_came_before(
    killed: Path, tmp_path: Path, at: float, is_cut: bool
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "journal.sqlite"
    log = tmp_path / "journal.sqlite-wal"
    size = log.stat().st_size
    start = int(at * size) if isinstance(at, float) else at
    if is_cut:
        os.truncate(log, start)
    else:
        overwrite(log, start, noise(min(PAGE, size - start)))
    with Journal.open(path) as journal:
        found = kept(journal)
        assert found == list(range(len(found)))
        assert len(found) < 300
        if not is_cut and at != 0.99:  # a commit without its end may be one that never was
            lost = re.search(r"log .* is damaged: (\d+) answers that it", journal.notice or "")
            assert lost is not None
            assert int(lost[1]) == 300 - len(found)
        if isinstance(at, float):
            assert len(found) >= 300 * at * 0.5
        fill(journal, 0, COUNT)
    with Journal.open(path) as journal:
        assert kept(journal) == list(range(COUNT))


def test_damaged_cache_is_left_alone(path: Path) -> None:
    cut_short(path)
    with pytest.raises(ConfigurationError, match=r"is damaged \(.*\); move it away, and a new one"):
        Journal.open_shared(path)


def last_error_line(code: str, path: Path) -> str:
    """The last line of the errors of a process that runs `code`."""
    program = (
        "import os, resource, sys; from pathlib import Path\n"
        "from evalution.journal.store import Journal\n"
        f"path = Path(sys.argv[1])\n{code}"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    return (done.stderr.splitlines() or [""])[-1]


FILL = """
journal = Journal.open(path)
for number in range(2000, 100_000):
    journal.record(number.to_bytes(32, "big"), "x" * 200, suite="s", row=number, position=0)
    if number % 50 == 0:
        journal.flush()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows bounds no file's size")
def test_file_that_may_not_grow_keeps_what_was_committed(path: Path) -> None:
    limit = path.stat().st_size + 300_000
    line = last_error_line(
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{FILL}", path
    )
    assert line == (
        f"evalution.journal.database.JournalError: the journal {path} can't be written: disk I/O "
        "error; what was committed is kept: run the same again when that is mended"
    )
    with Journal.open(path) as journal:
        assert journal.notice is None
        assert kept(journal) == list(range(COUNT))
        assert journal.count() > COUNT
        assert (journal.count() - COUNT) % 50 == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_keeps_what_was_committed(small_disk: Path, path: Path) -> None:
    target = small_disk / path.name
    shutil.copyfile(path, target)
    line = last_error_line(FILL, target)
    assert line == (
        f"evalution.journal.database.JournalError: the journal {target} can't be written: the disk "
        "is full; what was committed is kept: make room and run the same again"
    )
    with Journal.open(target) as journal:
        assert journal.notice is None
        assert kept(journal) == list(range(COUNT))
        assert journal.count() > COUNT


def test_full_disk_in_the_background_raises_at_the_next_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Event()

    def full(connection: sqlite3.Connection) -> NoReturn:
        tried.set()
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    journal = Journal.open(path)
    with monkeypatch.context() as patched:
        patched.setattr("evalution.journal.store.transaction", full)
        fill(journal, COUNT, COUNT + 1)
        assert tried.wait(10)
        # The error is noted a moment after it came.
        with pytest.raises(JournalError, match="the disk is full"):
            fill(journal, COUNT + 1, sys.maxsize)
        with pytest.raises(JournalError, match="the disk is full"):
            journal.flush()
    journal.close()
    with Journal.open(path) as journal:
        assert journal.find(key(COUNT)) == answer(COUNT)
