"""lm-eval's two API models against our server, beside the same requests in process.

The commands that docs/serving.md recommends are in tests/test_lm_eval_tables.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    BaseInferenceSession,
    GenerationRequest,
    LoglikelihoodRequest,
)

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval isn't installed; see tools/envs")
pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]


def sums(count: int) -> list[dict[str, Any]]:
    """Rows with a question, choices and the right one."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        first, second = 1 + number % 9, 1 + number * 7 % 9
        right = first + second
        rows.append(
            {
                "question": f"What is {first} + {second}?",
                "choices": [f" {right + offset}" for offset in (0, 1, 2, 3)],
                "answer": str(right),
            }
        )
    return rows


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


ROWS = sums(6)

CHOICE = """
task: sums_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""
GENERATE = """
task: sums_generate
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_lines(folder / "rows.jsonl", ROWS)
    for name, text in (("choice", CHOICE), ("generate", GENERATE)):
        (folder / f"{name}.yaml").write_text(text.replace("FILE", str(folder / "rows.jsonl")))
    return folder


def samples(tasks: Path, task: str, model: str, args: dict[str, Any], **more: Any) -> list[Any]:
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=model,
        model_args=args,
        tasks=[task],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        **more,
    )
    return sorted(found["samples"][task], key=lambda sample: sample["doc_id"])


@pytest.fixture
def completions(url: str) -> dict[str, Any]:
    return {
        "model": "tiny",
        "base_url": f"{url}/v1/completions",
        "num_concurrent": 4,
        "max_retries": 1,
        "max_length": 512,
        "tokenizer_backend": "remote",
    }


def test_ids_of_the_servers_tokenizer_are_scored_as_they_are(
    tasks: Path, completions: dict[str, Any], tiny: BaseInferenceSession
) -> None:
    found = samples(tasks, "sums_choice", "local-completions", completions)
    for sample, row in zip(found, ROWS, strict=True):
        pairs = [
            _pair_without_bos(tiny, *_arguments(sample, index))
            for index in range(len(row["choices"]))
        ]
        expected = tiny.loglikelihood(pairs)
        scores = [float(one[0]) for one in sample["filtered_resps"]]
        assert scores == pytest.approx([output.logprob for output in expected], abs=1e-4)
        greedy = [_is_true(one[1]) for one in sample["filtered_resps"]]
        assert greedy == [output.is_greedy for output in expected]


def _pair_without_bos(session: Any, context: str, continuation: str) -> LoglikelihoodRequest:
    before = session.tokenizer.encode(context)
    whole = session.tokenizer.encode(context + continuation)
    return LoglikelihoodRequest(
        context_input_ids=before, continuation_input_ids=whole[len(before) :]
    )


def _arguments(sample: Any, index: int) -> tuple[str, str]:
    arguments = sample["arguments"]
    if isinstance(arguments, dict):
        one = arguments[f"gen_args_{index}"]
        return one["arg_0"], one["arg_1"]
    return arguments[index][0], arguments[index][1]


def _is_true(value: Any) -> bool:
    return value in (True, "True")


def _first(value: Any) -> Any:
    while isinstance(value, list | tuple):
        value = value[0]
    return value


def test_generate_by_chat(tasks: Path, url: str, tiny: BaseInferenceSession) -> None:
    args = {
        "model": "tiny",
        "base_url": f"{url}/v1/chat/completions",
        "num_concurrent": 4,
        "max_retries": 1,
    }
    found = samples(
        tasks, "sums_generate", "local-chat-completions", args, apply_chat_template=True
    )
    asked = [
        GenerationRequest(
            messages=[{"role": "user", "content": f"Question: {row['question']}\nAnswer:"}],
            stop=["\n"],
            max_new_tokens=12,
        )
        for row in ROWS
    ]
    texts = [output.text for output in tiny.generate(asked)]
    assert [_first(sample["filtered_resps"]) for sample in found] == texts
