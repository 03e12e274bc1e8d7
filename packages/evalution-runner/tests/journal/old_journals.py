"""A journal as this version writes it, kept for the versions to come; run it at each release.

    uv run packages/evalution-runner/tests/journal/old_journals.py

writes `released/VERSION.sqlite` beside this script: a run with answers of each kind, one of them a
failure, that was interrupted before its last one.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import evalution
from evalution import Generation, MultipleChoice, Perplexity
from evalution.journal.records import encode_answer
from evalution_core import EngineRuntimeError, RequestFailure
from evalution_enginekit.mock import Mock

FOLDER = Path(__file__).with_name("released")
ANSWERS = 8


def suites() -> list[Any]:
    rows = [{"sum": f"{n}+0=", "choices": ["0", "1"], "right": n} for n in range(3)]
    return [
        Generation(data=rows, prompt="sum", target="right", name="sums", max_new_tokens=4),
        MultipleChoice(
            data=rows[:2], prompt="sum", choices="choices", target="right", name="choice"
        ),
        Perplexity(data=rows[:2], text="sum", name="texts"),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        evalution.run(engine=Mock(), model="m", tests=suites(), output=folder)
        journal = Path(folder, "journal.sqlite")
        with closing(sqlite3.connect(journal, isolation_level=None)) as file:
            failure = encode_answer(RequestFailure(EngineRuntimeError("the runtime lost it")))
            file.execute(
                "UPDATE answers SET answer = ? WHERE suite = 'sums' AND row = 2",
                (failure.encode(),),
            )
            file.execute("DELETE FROM answers WHERE suite = 'texts' AND row = 1")
            assert file.execute("SELECT count(*) FROM answers").fetchone() == (ANSWERS,)
        FOLDER.mkdir(exist_ok=True)
        target = FOLDER / f"{version('evalution-runner')}.sqlite"
        target.write_bytes(journal.read_bytes())
        print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
