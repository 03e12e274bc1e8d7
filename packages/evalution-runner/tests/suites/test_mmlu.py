"""MMLU: its subjects, their unions, and the scores of subjects and groups."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evalution
from evalution.rows.local import Row
from evalution.scoring.metrics import Mean, Measure
from evalution.suites.dataset import Dataset
from evalution.suites.language_modelling import PerplexitySuite
from evalution.suites.subsets import Subsets, SubsetSuite
from evalution.suites.tasks.mmlu import MMLU, SUBJECTS
from evalution_core import ConfigurationError, LoglikelihoodOutput
from evalution_enginekit.mock import Mock

SMALL = Subsets({"a": ("x_1", "y"), "b": ("z",)})
NAMES = ["a.x_1", "a.y", "b.z"]


def chosen(names: Any, subsets: Subsets = SMALL) -> list[str]:
    return [subset.name for subset in subsets.select(names)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two questions of each of three subjects, the answer of each number `i` being `i`."""
    for subject in ("abstract_algebra", "us_foreign_policy", "anatomy"):
        for split, count in (("test", 2), ("dev", 5)):
            rows = [
                {"question": f" {split} {subject} {i} ", "choices": list("wxyz"), "answer": i % 4}
                for i in range(count)
            ]
            path = tmp_path / subject / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


def mmlu(folder: Path, *subsets: str, **options: Any) -> MMLU:
    return MMLU(data=str(folder), subsets=list(subsets), **options)


def test_all_the_subjects_of_lm_eval_are_there() -> None:
    assert {group: len(children) for group, children in SUBJECTS.groups.items()} == {
        "stem": 19,
        "other": 13,
        "social_sciences": 12,
        "humanities": 13,
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("all", NAMES),
        ("a", NAMES[:2]),
        (["b", "a.y", "b.z"], ["a.y", "b.z"]),
        (["A.X-1", " b "], ["a.x_1", "b.z"]),
        (["a", "all"], NAMES),
    ],
)
def test_a_union_has_each_subset_once_in_one_order(names: Any, expected: list[str]) -> None:
    assert chosen(names) == expected


@given(st.lists(st.sampled_from(["all", "a", "b", *NAMES]), min_size=1))
def test_a_union_is_that_of_its_members(names: list[str]) -> None:
    members = {name for wanted in names for name in chosen(wanted)}
    assert chosen(names) == [name for name in NAMES if name in members]


@pytest.mark.parametrize(
    ("subsets", "message"),
    [
        (
            "stm",
            "option 'subsets' of suite MMLU must be among all, stem, other, social_sciences, "
            "humanities or a part of one, such as stem.abstract_algebra (did you mean 'stem' for "
            "'stm'?), got 'stm'",
        ),
        ("abstract_algebra", "(did you mean 'stem.abstract_algebra' for 'abstract_algebra'?)"),
        (["stem", "stem.anatomi"], "(did you mean 'stem.anatomy' for 'stem.anatomi'?)"),
        ("other.virus", "must be among other.business_ethics, other.clinical_knowledge, other."),
        ([], "must name at least one of all, stem, other"),
        (3, "option 'subsets' of suite MMLU"),
    ],
)
def test_a_subset_that_is_none_names_what_is_possible(subsets: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MMLU(subsets=subsets)
    assert message in str(caught.value)


@dataclass(kw_only=True)
class Texts(SubsetSuite, PerplexitySuite):
    """The perplexity of texts of two parts."""

    task = "texts"
    dataset = Dataset("org/texts", "test")
    parts = Subsets({"": ("one", "two")})
    part_noun = "part"

    def scored_text(self, row: Row) -> str:
        return row.text("text")


def test_parts_of_a_perplexity_have_scores_of_their_own(tmp_path: Path) -> None:
    for part in ("one", "two"):
        (tmp_path / part).mkdir()
        lines = (json.dumps({"text": f"hello {part} {row}"}) + "\n" for row in range(3))
        (tmp_path / part / "test.jsonl").write_text("".join(lines))
    result = evalution.run(engine=Mock(), model="m", tests=[Texts(data=str(tmp_path))])
    metrics = result.suites[0].metrics
    counts = {name: metrics[f"word_perplexity{name}"].n for name in ("", ",one", ",two")}
    assert counts == {"": 6, ",one": 3, ",two": 3}


def test_a_question_stands_after_what_it_is_about(folder: Path) -> None:
    sample = next(mmlu(folder, "social_sciences.us_foreign_policy").samples())
    assert sample.prompt == (
        "The following are multiple choice questions (with answers) about us foreign policy.\n\n"
        "test us_foreign_policy 0\nA. w\nB. x\nC. y\nD. z\nAnswer:"
    )
    continuations = [request.continuation for request in sample.requests]  # pyright: ignore[reportAttributeAccessIssue]
    assert continuations == [" A", " B", " C", " D"]


def test_solved_questions_are_the_first_of_the_subjects_own(folder: Path) -> None:
    suite = mmlu(folder, "stem.anatomy", "social_sciences.us_foreign_policy", num_fewshot=2)
    prompts = [str(sample.prompt) for sample in suite.samples()]
    for prompt, subject in zip(prompts[::2], ("anatomy", "us_foreign_policy"), strict=True):
        assert prompt.count("(with answers)") == 1
        assert f"dev {subject} 0\nA. w\nB. x\nC. y\nD. z\nAnswer: A\n\ndev {subject} 1\n" in prompt
        assert prompt.endswith(f"Answer: B\n\ntest {subject} 0\nA. w\nB. x\nC. y\nD. z\nAnswer:")


def test_in_a_chat_the_description_is_the_systems(folder: Path) -> None:
    suite = mmlu(folder, "stem.anatomy", num_fewshot=1, apply_chat_template=True)
    messages: Any = next(suite.samples()).prompt
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"].endswith("(with answers) about anatomy.\n\n")
    assert messages[2]["content"] == "A"


def test_numbers_run_on_from_subject_to_subject(folder: Path) -> None:
    suite = mmlu(folder, "social_sciences.us_foreign_policy", "stem.anatomy")
    found = [(sample.index, sample.subset) for sample in suite.samples()]
    first, second = "stem.anatomy", "social_sciences.us_foreign_policy"
    assert found == [(0, first), (1, first), (2, second), (3, second)]
    assert [s.index for s in mmlu(folder, first, second, row_indices=[3, 0]).samples()] == [3, 0]
    assert [s.index for s in mmlu(folder, first, second, max_rows=3).samples()] == [0, 1, 2]


def test_scores_of_subjects_and_of_whole_groups(folder: Path) -> None:
    suite = mmlu(folder, "stem.anatomy", "humanities")
    assert list(suite.make_metrics())[:3] == ["acc", "acc,humanities", "acc,stem.anatomy"]
    assert len(suite.make_metrics()) == 2 + 1 + 13
    assert "acc,stem" not in suite.make_metrics()
    sample = next(mmlu(folder, "stem.anatomy").samples())
    measures = suite.score(sample, answers(0)).measures
    assert set(measures) == set(suite.make_metrics())
    assert {name: m for name, m in measures.items() if m} == {
        "acc": Measure(1.0),
        "acc,stem.anatomy": Measure(1.0),
    }
    assert suite.failure(sample) == {"acc": Measure(0.0), "acc,stem.anatomy": Measure(0.0)}


def test_a_part_of_the_subjects_is_no_score_of_their_group(folder: Path) -> None:
    both = ("stem.anatomy", "stem.abstract_algebra")
    parts = Subsets({"stem": ("abstract_algebra", "anatomy"), "other": ("virology",)})

    def score(limit: int | None) -> tuple[dict[str, int], list[str]]:
        suite = mmlu(folder, *both)
        suite.parts = parts  # pyright: ignore[reportAttributeAccessIssue]
        tally, remarks = suite.make_accumulator(), Counter[str]()
        for sample in suite.samples(limit):
            found = suite.score(sample, answers(0))
            remarks.update(found.remarks)
            tally.record(sample.index, found)
        counts = {name: result.n for name, result in tally.results().items()}
        failed = tally.results()["acc"].n + 1  # of a subset that isn't known
        assert not list(suite.list_notices(remarks, failed))
        return counts, list(suite.list_notices(remarks, tally.results()["acc"].n))

    names = ["acc", "acc,stem", "acc,stem.abstract_algebra", "acc,stem.anatomy"]
    assert score(None) == (dict(zip(names, (4, 4, 2, 2), strict=True)), [])
    assert score(2) == (
        dict(zip(names, (2, 0, 2, 0), strict=True)),
        [
            "rows of 1 of 2 subsets alone were scored: acc is no score of mmlu; leave out a limit "
            "or row_indices, which count the rows of all subsets together (lm-eval's limit those "
            "of each), or name fewer subsets"
        ],
    )


def test_a_group_is_weighted_by_the_sizes_of_its_subjects() -> None:
    sizes, scores = {"x_1": 3, "y": 1}, {"x_1": [1.0, 0.0, 1.0], "y": [0.0]}
    together = Mean().estimate([Measure(v) for values in scores.values() for v in values]).value
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    weighted = sum(means[name] * sizes[name] for name in sizes) / sum(sizes.values())
    assert together == weighted == 0.5


def test_all_subjects_have_all_metrics() -> None:
    names = list(MMLU().make_metrics())
    assert names[:5] == ["acc", "acc,stem", "acc,other", "acc,social_sciences", "acc,humanities"]
    assert len(names) == 1 + 4 + 57


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subsets": "stem.virology"}, "must be among stem.abstract_algebra"),
        ({"data": [{"question": "?"}]}, "'data' of suite MMLU must be a folder with one folder"),
        ({"data": "no/such/place"}, "'data' of suite MMLU must be a folder with one folder"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MMLU(**options)
    assert message in str(caught.value)


def test_a_folder_without_a_subject_says_which(folder: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        mmlu(folder, "stem").check_samples()
    assert str(caught.value) == (
        f"suite 'mmlu': {folder} holds no folder astronomy, which is a subject of the subsets "
        "['stem']; choose others with subsets"
    )


def test_a_question_without_four_choices_is_named(folder: Path) -> None:
    row = {"question": "?", "choices": ["a", "b"], "answer": 0}
    (folder / "anatomy" / "test.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r"test\.jsonl, line 1: there must be four choices"
    ):
        mmlu(folder, "stem.anatomy").check_samples()


def answers(best: int) -> list[LoglikelihoodOutput]:
    return [LoglikelihoodOutput(-1.0 if n == best else -2.0, False, 1) for n in range(4)]
