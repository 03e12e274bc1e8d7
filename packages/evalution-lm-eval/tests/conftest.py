"""Local tasks of lm-eval over the tiny model's rows, and lm-eval's own evaluation of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evalution.rows.local import Rows
from evalution_core import BaseInferenceSession, Model
from evalution_core.builtins import builtin_path
from evalution_reference import Reference

HERE = Path(__file__).parent
DRAWS = 200
"""For standard errors without a formula: the same draws on both sides."""
# lm-eval makes a pool of processes for them otherwise, which some of these tests leave to it.
os.environ.setdefault("DISABLE_MULTIPROC", "1")

CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True}
        for name in ("acc", "acc_norm")
    ],
}
SUMS = {
    "output_type": "generate_until",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer.split('#### ')[1]}}",
    "generation_kwargs": {"until": ["\n\n", "Question:"], "max_gen_toks": 40, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "filter_list": [
        {
            "name": "strict-match",
            "filter": [
                {"function": "regex", "regex_pattern": "#### (-?[0-9]+)"},
                {"function": "take_first"},
            ],
        },
        {
            "name": "flexible",
            "filter": [
                {"function": "regex", "group_select": -1, "regex_pattern": "(-?[0-9]+)"},
                {"function": "take_first"},
            ],
        },
    ],
}
PROSE = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [
        {"metric": "word_perplexity", "aggregation": "weighted_perplexity"},
        {"metric": "byte_perplexity", "aggregation": "weighted_perplexity"},
        {"metric": "bits_per_byte", "aggregation": "bits_per_byte"},
    ],
}
LAST_WORD = {
    "output_type": "loglikelihood",
    "doc_to_text": "{{text.rsplit(' ', 1)[0]}}",
    "doc_to_target": "{{' ' + text.rsplit(' ', 1)[1]}}",
    "metric_list": [
        {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
        {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
    ],
}
# Values that are no numbers, and sums that are no means; a bare question gets wrong answers too.
CLASSES = {
    **CHOICES,
    "doc_to_text": "{{question}}",
    "metric_list": [
        {"metric": "mcc", "aggregation": "matthews_corrcoef", "higher_is_better": True},
        {"metric": "brier_score", "aggregation": "brier_score", "higher_is_better": False},
        {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True},
    ],
}
GROUP = {"task": ["tiny_choices", "tiny_others"]}
MEAN = {"metric": "acc", "aggregation": "mean", "weight_by_size": True, "filter_list": "none"}


@pytest.fixture(scope="module")
def session() -> Iterator[BaseInferenceSession]:
    with Reference(dtype="float64").build(Model("builtin:tiny")) as session:
        yield session


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """YAML files of lm-eval's tasks; what each of them reads lies beside them."""
    folder = tmp_path_factory.mktemp("tasks")

    def task(name: str, rows: str, count: int, declared: Mapping[str, Any], **more: Any) -> None:
        source = builtin_path("builtin:tiny", f"rows/{rows}")
        found = [dict(row.columns) for row in Rows(source)][:count]
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
        files = {"test": str(data), **more.pop("files", {})}
        config = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
            "test_split": "test",
            "metadata": {"version": 1.0},
            **declared,
            **more,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")

    def group(name: str, **declared: Any) -> None:
        text = json.dumps({"group": name, "metadata": {"version": 1.0}, **declared})
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")

    shots = {"files": {"train": str(builtin_path("builtin:tiny", "rows/choices_shots"))}}
    task("tiny_choices", "choices", 24, CHOICES, **shots, training_split="train", num_fewshot=3)
    task("tiny_others", "choices_shots", 12, CHOICES)
    task("tiny_sums", "sums", 12, SUMS)
    task("tiny_prose", "prose", 8, PROSE)
    task("tiny_last_word", "prose", 12, LAST_WORD)
    task("tiny_classes", "choices", 24, CLASSES)
    sampled = {"until": [], "max_gen_toks": 4, "temperature": 0.7, "seed": 3}
    task("tiny_sampled", "sums", 4, SUMS, generation_kwargs=sampled, repeats=3)
    task("tiny_chat", "sums", 6, SUMS, description="Add up. ")
    task("tiny_begun", "sums", 2, SUMS, gen_prefix="It is")
    task("tiny_unsafe", "sums", 2, SUMS, unsafe_code=True)
    task("tiny_seen", "sums", 2, SUMS, doc_to_image=["question"])
    task("tiny_odd", "sums", 2, SUMS, generation_kwargs={"until": [], "repetition_penalty": 1.1})
    task("tiny_shared", "choices", 6, CHOICES, fewshot_split="test")
    splits = {"test_split": None, "validation_split": "test", "training_split": "train"}
    task("tiny_unnamed", "choices", 6, CHOICES, **shots, **splits)
    first = {"sampler": "first_n"}
    task("tiny_first", "choices", 6, CHOICES, **shots, **splits, fewshot_config=first)
    group("tiny_group", **GROUP, aggregate_metric_list=[MEAN])
    alike = {**MEAN, "weight_by_size": False}
    group("tiny_alike", **GROUP, aggregate_metric_list=[alike])
    group("tiny_outer", task=["tiny_group", "tiny_last_word"], aggregate_metric_list=[MEAN])
    group("tiny_pair", task=["tiny_others", "tiny_last_word"], aggregate_metric_list=[MEAN])
    group("tiny_overlap", task=["tiny_group", "tiny_pair"], aggregate_metric_list=[MEAN])
    group("tiny_bundle", task=["tiny_sums", "tiny_prose"])
    group("tiny_mixed", task=["tiny_sums", "tiny_choices"], aggregate_metric_list=[MEAN])
    return folder


@pytest.fixture(scope="session")
def evaluate(task_folder: Path) -> Callable[..., dict[str, Any]]:
    """lm-eval's own evaluation of local tasks."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(task_folder), include_defaults=False)

    def run(model: Any, *tasks: str, **options: Any) -> dict[str, Any]:
        simple_evaluate: Any = lm_eval.simple_evaluate
        found = simple_evaluate(
            model=model,
            tasks=list(tasks),
            task_manager=manager,
            bootstrap_iters=DRAWS,
            **options,
        )
        assert found is not None
        return dict(found)

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """lm-eval and datasets call what their own dependencies deprecate."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
