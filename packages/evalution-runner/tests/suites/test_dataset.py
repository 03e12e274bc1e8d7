"""Where a named suite's rows come from when they are not the Hub's."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evalution.rows.local import Row
from evalution.suites import Dataset, DatasetRows, GenerationSuite
from evalution_core import ConfigurationError

DATASET = Dataset("org/sums", "test", "main", fewshot_split="train")
ROWS = [{"q": f"q{i}", "a": f"a{i}"} for i in range(4)]
SOLVED = [{"q": f"solved {i}", "a": f"s{i}"} for i in range(3)]


@dataclass(kw_only=True)
class Sums(DatasetRows, GenerationSuite):
    """Sums."""

    task = "sums"
    dataset = DATASET

    def question_text(self, row: Row) -> str:
        return row.text("q")

    def answer_text(self, row: Row) -> str:
        return row.text("a")


class SelfTaught(Sums):
    """Its solved rows are the evaluated ones."""

    dataset = replace(DATASET, fewshot_split="test", draw_extra_shot=True)


class Taught(Sums):
    """Its solved rows are part of the suite."""

    dataset = replace(DATASET, fewshot_split=None, fewshot_rows=SOLVED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, rows in (("test", ROWS), ("train", SOLVED)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def prompts(suite: Sums) -> list[str]:
    return [str(sample.prompt) for sample in suite.samples()]


def test_rows_are_a_file_a_folder_or_in_memory(folder: Path) -> None:
    expected = ["q0", "q1", "q2", "q3"]
    for data in (str(folder), folder, str(folder / "test.jsonl"), folder / "test.jsonl", ROWS):
        assert prompts(Sums(data=data)) == expected


def test_solved_rows_are_those_of_the_other_split(folder: Path) -> None:
    suite = Sums(data=str(folder), num_fewshot=1, fixed_shots=True)
    assert prompts(suite)[0] == "solved 0 s0\n\nq0"
    drawn = Sums(data=str(folder), num_fewshot=3)
    assert all(prompt.count("solved") == 3 for prompt in prompts(drawn))


def test_solved_rows_may_be_named_apart(folder: Path) -> None:
    for data in (str(folder), str(folder / "test.jsonl"), ROWS):
        suite = Sums(data=data, fewshot_data=SOLVED[1:], num_fewshot=1, fixed_shots=True)
        assert prompts(suite)[3] == "solved 1 s1\n\nq3"


def test_solved_rows_of_the_evaluated_file_are_never_the_question(folder: Path) -> None:
    file = str(folder / "test.jsonl")
    for suite in (
        SelfTaught(data=file, num_fewshot=3),
        SelfTaught(data=str(folder), num_fewshot=3),
        Sums(data=file, fewshot_data=file, num_fewshot=3),
        Sums(data=str(folder), fewshot_data=file, num_fewshot=3),
    ):
        for row, prompt in zip(ROWS, prompts(suite), strict=True):
            assert prompt.count(row["q"]) == 1


def test_solved_rows_may_be_part_of_the_suite() -> None:
    suite = Taught(data=ROWS, num_fewshot=2, fixed_shots=True)
    assert prompts(suite)[0] == "solved 0 s0\n\nsolved 1 s1\n\nq0"
    assert suite.provenance["dataset"]["fewshot_rows"] == 3


def test_one_file_lacks_the_solved_rows_of_another_split(folder: Path) -> None:
    file = folder / "test.jsonl"
    with pytest.raises(ConfigurationError) as caught:
        Sums(data=str(file), num_fewshot=1).check_samples()
    assert str(caught.value) == (
        f"suite 'sums': solved rows come from the split 'train', and {file} holds the rows of "
        "'test' alone; name a file with solved rows in fewshot_data, a folder with both in data, "
        "or set num_fewshot to 0"
    )


def test_results_tell_the_data_set_and_the_options() -> None:
    suite = Sums(data=ROWS)
    assert suite.provenance == {
        "dataset": {
            "path": "org/sums",
            "name": "main",
            "split": "test",
            "fewshot_split": "train",
            "fewshot_rows": 0,
        }
    }
    shown = suite.to_dict()
    assert (shown["data"], shown["revision"]) == ("<4 rows in memory>", None)
    assert {"fixed_shots", "num_fewshot", "order", "row_indices", "target_delimiter"} <= set(shown)


def test_the_title_is_the_tasks_name_unless_it_has_another() -> None:
    assert (Sums(data=ROWS).title, Sums(data=ROWS, name="mine").title) == ("sums", "mine")


def test_paths_of_a_spec_start_from_its_folder(folder: Path) -> None:
    options: dict[str, Any] = {"data": "test.jsonl", "fewshot_data": "train.jsonl"}
    suite = Sums.from_options({**options, "num_fewshot": 1, "fixed_shots": True}, base=folder)
    assert prompts(suite)[0] == "solved 0 s0\n\nq0"


def test_rows_that_are_not_there_name_the_nearest(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file .*tst\.jsonl; did you mean 'test\.json"):
        Sums(data=str(folder / "tst.jsonl")).check_samples()
