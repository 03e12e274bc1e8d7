"""The same tasks by four ways: lm-eval's `hf`, its command with two engines, and our runner."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution_core.builtins import builtin_path
from evalution_lm_eval import LmEval
from lm_eval_tables import run_command

torch = pytest.importorskip("torch", reason="lm-eval's hf model takes torch")

pytestmark = pytest.mark.slow

TASKS = ("tiny_choices", "tiny_sums", "tiny_prose")
TOLERANCE = 1e-4
DRAWS = 200
Scores = dict[str, dict[str, float]]


def plain(results: dict[str, Any]) -> Scores:
    """Scores and standard errors; those that don't exist are left out."""
    return {
        task: {
            key: float(value)
            for key, value in results["results"][task].items()
            if "," in key and value != "N/A"
        }
        for task in TASKS
    }


@pytest.fixture(scope="module")
def right(evaluate: Callable[..., dict[str, Any]]) -> Scores:
    """Through `hf`: with BOS, but for whole texts, where it would score the BOS token too."""
    from lm_eval.models import huggingface

    hf: Any = huggingface.HFLM
    folder = str(builtin_path("builtin:tiny", "safetensors"))
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "batch_size": 8}
    found = evaluate(hf(pretrained=folder, **options), "tiny_choices", "tiny_sums")
    whole = evaluate(hf(pretrained=folder, add_bos_token=False, **options), "tiny_prose")
    return plain({"results": found["results"] | whole["results"]})


@pytest.mark.parametrize("engine", ["transformers,dtype=float32", "llama-cpp"])
def test_scores_of_the_command_equal_those_of_hf(
    engine: str, right: Scores, task_folder: Path, tmp_path: Path
) -> None:
    if engine == "llama-cpp":
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    command = [
        "evalution-lm-eval",
        *("--model", "evalution", "--model_args", f"engine={engine},pretrained=builtin:tiny"),
        *("--tasks", ",".join(TASKS), "--include_path", str(task_folder)),
        *("--output_path", str(tmp_path)),
    ]
    run_command(command, tmp_path)
    (file,) = tmp_path.rglob("results_*.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["config"]["evalution"]["failed_requests"] == 0
    scores = plain(found)
    for task in TASKS:
        assert scores[task] == pytest.approx(right[task], rel=TOLERANCE, abs=TOLERANCE), task


def test_scores_of_the_runner_equal_those_of_hf(right: Scores, task_folder: Path) -> None:
    from evalution_transformers import Transformers

    test = LmEval(
        tasks=TASKS, include_path=str(task_folder), include_defaults=False, bootstrap_iters=DRAWS
    )
    found = evalution.run(engine=Transformers(dtype="float32"), model="builtin:tiny", tests=[test])
    for task in TASKS:
        scores: dict[str, float] = {}
        for name, metric in found[task].metrics.items():
            key, _, filtered = name.partition(",")
            told = {"": metric.value, "_stderr": metric.stderr}
            scores |= {
                f"{key}{what},{filtered or 'none'}": value
                for what, value in told.items()
                if value is not None
            }
        assert scores == pytest.approx(right[task], rel=TOLERANCE, abs=TOLERANCE), task


def test_command_reports_a_wrong_argument_in_one_line(task_folder: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("evalution-lm-eval")),
        *("--model", "evalution", "--model_args", "engine=Reference,dtyp=float64"),
        *("--tasks", "tiny_prose", "--include_path", str(task_folder)),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("evalution-lm-eval: ConfigurationError: model_args has 'dtyp'")
