from __future__ import annotations

import json
from pathlib import Path

import pytest

import evalution
from evalution.parity import ParityResult, check_parity, read_parity, write_parity
from evalution.parity.result import PARITY_FILE
from evalution.runs.preflight import EngineAndModel
from evalution.samples_file import ResultsNotWrittenError
from evalution_core import ConfigurationError, Model
from evalution_enginekit.mock import Mock

ROWS = [
    {"question": f"{n} and", "choices": ["one", "two", "six", "ten"], "right": 0} for n in range(9)
]


@pytest.fixture(scope="module")
def result() -> ParityResult:
    """Two models that differ in everything."""
    fields = {"data": ROWS, "prompt": "question"}
    suites = [
        evalution.Generation(**fields, target="question", max_new_tokens=6),
        evalution.MultipleChoice(**fields, choices="choices", target="right"),
        evalution.Perplexity(data=ROWS, text="question"),
    ]
    found = check_parity(
        EngineAndModel(Mock(), Model("one")), EngineAndModel(Mock(), Model("three")), suites
    )
    listed = [
        (suite.worst_tokens, suite.flip_list, suite.divergence_list) for suite in found.suites
    ]
    assert all(any(lists) for lists in zip(*listed, strict=True))
    return found


def test_result_is_read_as_it_was_written(result: ParityResult, tmp_path: Path) -> None:
    folder = PARITY_FILE.make_folder(tmp_path / "new" / "folder")
    file = write_parity(result, folder)
    assert file == folder / "parity.json"
    assert read_parity(folder) == result
    assert read_parity(file).to_dict() == result.to_dict()
    assert json.loads(file.read_text(encoding="utf-8"))["is_within"] is False
    assert [path.name for path in folder.iterdir()] == ["parity.json"]


def test_draft_is_not_written_through_a_link(result: ParityResult, tmp_path: Path) -> None:
    draft, other = tmp_path / "parity.json.part", tmp_path / "other"
    draft.symlink_to(other)
    folder = PARITY_FILE.make_folder(tmp_path)
    assert not other.exists()
    other.write_text("precious")
    draft.symlink_to(other)
    assert PARITY_FILE.read(PARITY_FILE.write(result, folder)) == result
    assert other.read_text() == "precious"


def test_folder_that_can_not_be_used_is_reported(result: ParityResult, tmp_path: Path) -> None:
    write_parity(result, tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        PARITY_FILE.make_folder(tmp_path)
    assert f"{tmp_path} already holds a parity.json; name another --output" in str(caught.value)
    with pytest.raises(ConfigurationError, match="can't be written: Not a directory"):
        PARITY_FILE.make_folder(tmp_path / "parity.json" / "in it")
    with pytest.raises(ResultsNotWrittenError, match="can't be written: No such file"):
        write_parity(result, tmp_path / "gone")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no "),
        ("{", "is not JSON"),
        ("[]", "is no result of a parity check: it holds no JSON object"),
        ('{"schema_version": 9}', "newer evalution (schema 9, this one reads up to 1); upgrade"),
        ('{"schema_version": 1, "left": {}}', "is damaged: right: field required"),
    ],
)
def test_file_that_is_no_result_is_reported(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "parity.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        read_parity(tmp_path)
    assert message in str(caught.value)
    assert "parity.json" in str(caught.value)
