"""What `type: lm_eval` refuses, and when: before a model is loaded, in words that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution_core import Capability, ConfigurationError, UnsupportedRequestError
from evalution_lm_eval import LmEval
from evalution_reference import Reference


def declare(folder: Path, *tasks: str, **options: Any) -> LmEval:
    return LmEval(tasks=tasks, include_path=str(folder), include_defaults=False, **options)


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        ("tiny_sum", ConfigurationError, "no task, group or tag 'tiny_sum'; did you mean 'tiny_"),
        ("tiny_none_*", ConfigurationError, r"no task, group or tag 'tiny_none_\*'"),
        ("tiny_unsafe", ConfigurationError, "'tiny_unsafe' runs code that the model wrote"),
        ("tiny_seen", UnsupportedRequestError, "'tiny_seen' asks with images or audio"),
        (
            "tiny_odd",
            ConfigurationError,
            "task 'tiny_odd': generation setting 'repetition_penalty'",
        ),
        ("nowhere.yaml", ConfigurationError, "there is no task file nowhere.yaml"),
        ("tiny_mixed", ConfigurationError, "'tiny_mixed' sums up tasks that ask for different"),
    ],
)
def test_unsupported_task_is_refused_before_loading_a_model(
    task_folder: Path, task: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        evalution.run(engine=Reference(), model="nowhere", tests=[declare(task_folder, task)])


@pytest.mark.parametrize(
    ("task", "possible", "message"),
    [
        ("tiny_choices", 16, "has 16 to draw from; set num_fewshot to at most 16"),
        ("tiny_first", 16, "has 16 to draw from; set num_fewshot to at most 16"),
        ("tiny_unnamed", 15, "has 15 to draw from without the row that is asked; set num_fewshot"),
        ("tiny_shared", 5, "has 5 to draw from without the row that is asked; set num_fewshot to"),
    ],
)
def test_too_many_shots_are_refused_with_the_possible_number(
    task_folder: Path, task: str, possible: int, message: str
) -> None:
    (suite,) = declare(task_folder, task, num_fewshot=possible).suites()
    assert suite.check_samples() > 0
    with pytest.raises(ConfigurationError) as refused:
        declare(task_folder, task, num_fewshot=possible + 1).suites()
    assert str(refused.value).startswith(
        f"lm-eval's task '{task}' is asked with num_fewshot={possible + 1} solved rows, "
        f"and {message}"
    )


def test_file_of_a_group_is_refused_with_advice(task_folder: Path) -> None:
    file = task_folder / "tiny_group.yaml"
    with pytest.raises(ConfigurationError) as refused:
        LmEval(tasks=str(file), include_defaults=False).suites()
    assert str(refused.value) == (
        f"{file} declares the group 'tiny_group', and lm-eval takes a file in tasks for one task "
        f"alone; set tasks to 'tiny_group' and include_path to the folder {task_folder}"
    )


def test_task_file_is_named_by_its_content(task_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def text(row):\n    return row['question']\n")
    declared = (task_folder / "tiny_sums.yaml").read_text()
    written = declared.replace('"Question: {{question}}\\nAnswer:"', "!function code.text")
    assert written != declared
    (tmp_path / "mine.yml").write_text(written)
    (suite,) = LmEval(tasks=str(tmp_path / "mine.yml"), include_defaults=False).suites()
    assert suite.title == "tiny_sums"
    assert not next(suite.samples()).prompt.startswith("Question")


def test_begun_answer_in_a_chat_is_refused(task_folder: Path) -> None:
    (suite,) = declare(task_folder, "tiny_begun", apply_chat_template=True).suites()
    with pytest.raises(ConfigurationError, match=r"begins the answer \(gen_prefix\)"):
        suite.check_samples()


def test_engine_without_scoring_is_refused_before_loading(
    task_folder: Path,
) -> None:
    class Writing(Reference):
        capabilities = frozenset({Capability.GENERATE})

    with pytest.raises(
        UnsupportedRequestError, match="suite 'tiny_choices' needs loglikelihood; the capabilities"
    ):
        evalution.run(
            engine=Writing(),
            model="builtin:tiny",
            tests=[declare(task_folder, "tiny_sums", "tiny_choices")],
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": []}, "option 'tasks' of suite LmEval must name at least one task"),
        ({"tasks": "a", "limit": 0}, "option 'limit' of suite LmEval must be a count"),
        ({"tasks": "a", "limit": 1.5}, "'limit' of suite LmEval must be a count of rows above 0"),
        ({"tasks": "a", "limit": float("inf")}, "'limit' of suite LmEval must be a count of rows"),
        (
            {"tasks": "a", "include_path": "no-such-folder"},
            "'include_path' .* a folder that is",
        ),
        ({"tasks": "a", "metadata": {"at": object()}}, "'metadata' .* must be plain values"),
        ({"tasks": "a", "num_fewshot": -1}, "option 'num_fewshot' of suite LmEval must not be"),
        ({"tasks": "a", "num_shots": 1}, "no option 'num_shots'; did you mean 'num_fewshot'"),
    ],
)
def test_options_are_strict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LmEval(**options)
