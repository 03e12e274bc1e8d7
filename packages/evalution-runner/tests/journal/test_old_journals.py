"""Journals of released versions, as `old_journals.py` wrote them: their runs go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.journal.records import decode_answer
from evalution.journal.store import Journal
from evalution_core import (
    GenerationRequest,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
)
from evalution_enginekit.mock import Mock

HERE = Path(__file__).parent
RELEASED = sorted((HERE / "released").iterdir())
REQUESTS = {
    "sums": GenerationRequest("a"),
    "choice": LoglikelihoodRequest("a", "b"),
    "texts": RollingLoglikelihoodRequest("a"),
}


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    return __import__("old_journals")


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
def test_answers_of_a_released_version_are_read(released: Path, tmp_path: Path, old: Any) -> None:
    file = shutil.copy(released, tmp_path)
    with Journal.open(Path(file)) as journal:
        assert journal.count() == old.ANSWERS
        found = journal._connection.execute("SELECT suite, answer FROM answers").fetchall()
    answers = [decode_answer(text.decode(), REQUESTS[suite]) for suite, text in found]
    assert sum(isinstance(answer, RequestFailure) for answer in answers) == 1


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
def test_run_of_a_released_version_goes_on(released: Path, tmp_path: Path, old: Any) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(released, folder / "journal.sqlite")
    resumed = evalution.run(engine=Mock(), model="m", tests=old.suites(), output=folder)
    whole = evalution.run(engine=Mock(), model="m", tests=old.suites())
    assert [suite.cached for suite in resumed.suites] == [3, 4, 1]
    assert resumed["sums"].failed == 1
    assert resumed["sums"].first_failure == "row 2: EngineRuntimeError: the runtime lost it"
    for name in ("choice", "texts"):
        assert resumed[name].metrics == whole[name].metrics
