"""A run of lm-eval's tasks that was killed goes on: what was answered isn't asked again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution.runs.options import RunOptions
from evalution.runs.run import Run
from evalution_core import ConfigurationError
from evalution_lm_eval import LmEval
from evalution_reference import Reference

SCRIPT = Path(__file__).with_name("killed_lm_eval_run.py")


def run(folder: Path, tasks: Path, answers: int) -> int:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(tasks), str(answers)], check=False
    )
    return done.returncode


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    suites = json.loads((folder / "results.json").read_text(encoding="utf-8"))["suites"]
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    samples = sorted(map(json.loads, lines), key=lambda one: (one["suite"], one["index"]))
    return suites, samples


def test_killed_run_resumes_to_the_same_scores(task_folder: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "killed", task_folder, 9) == -signal.SIGKILL
    assert run(tmp_path / "killed", task_folder, 0) == 0
    assert run(tmp_path / "whole", task_folder, 0) == 0
    (killed, samples), (whole, right) = read(tmp_path / "killed"), read(tmp_path / "whole")
    for sample, other in zip(samples, right, strict=True):
        # What shares a pass moves the last digits of float64.
        del sample["extracted"], other["extracted"]
        assert sample == other
    for suite, other in zip(killed, whole, strict=True):
        for name, metric in suite["metrics"].items():
            right = other["metrics"][name]
            assert metric.pop("interval") == pytest.approx(right.pop("interval"), rel=1e-9)
            assert metric.pop("row_range") == right.pop("row_range")
            assert metric == pytest.approx(right, rel=1e-9)
    choices, sums = (suite["timings"]["cached"] for suite in killed)
    assert choices == killed[0]["requests"]
    assert 0 < sums < killed[1]["requests"]


CODE = "def text(row):\n    return 'Question: ' + row['question'] + '\\nAnswer:'\n"


@pytest.fixture
def own_tasks(task_folder: Path, tmp_path: Path) -> Path:
    """Two tasks and their group, in files of this test's own."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name in ("tiny_choices", "tiny_others", "tiny_group"):
        text = (task_folder / f"{name}.yaml").read_text(encoding="utf-8")
        assert text.count("Question: {{question}}") == (name != "tiny_group")
        text = text.replace('"Question: {{question}}\\nAnswer:"', "!function code.text")
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "code.py").write_text(CODE, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        (
            "tiny_choices.yaml",
            '"metric": "acc"',
            '"metric": "acc_norm"',
            "tasks.tiny_choices.config.metric_list was ",
        ),
        ("code.py", "Question", "Asked", "tasks.tiny_choices.config.doc_to_text was 'code.py:text"),
        (
            "tiny_group.yaml",
            '"weight_by_size": true',
            '"weight_by_size": false',
            "groups.tiny_group.metrics was ",
        ),
    ],
)
def test_run_with_changed_task_files_is_not_resumed(
    own_tasks: Path, tmp_path: Path, file: str, before: str, after: str, message: str
) -> None:
    def go_on() -> None:
        with Run(Reference(), "builtin:tiny", RunOptions(output=tmp_path / "run")) as run:
            run.run(
                LmEval(
                    tasks="tiny_group", include_path=str(own_tasks), include_defaults=False, limit=2
                )
            )
            raise InterruptedError

    for _ in range(2):
        with pytest.raises(InterruptedError):
            go_on()
    text = (own_tasks / file).read_text(encoding="utf-8")
    changed = text.replace(before, after, 1)
    assert changed != text
    (own_tasks / file).write_text(changed, encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        go_on()
    text = str(refused.value)
    assert text.startswith(
        f"{tmp_path / 'run'} holds a run of another spec: suite tiny_group.{message}"
    )
    assert text.endswith("name another --output, or start over with --fresh")
