"""A task as lm-evaluation-harness runs it, and one seeded fake model for both sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from evalution.rows.local import Rows

FAMILIES = (
    "glue hellaswag piqa arc winogrande super_glue mmlu lambada wikitext gsm8k gsm8k_platinum"
    " hendrycks_math minerva_math"
)
ROWS = Path(__file__).parents[1] / "data" / "rows"

# What models write, with {n} for the number that is right more often than not.
_PLAIN = " So it is {n}. The answer is {n}. The final answer is {n}.\n#### {n}"
_COMPLETIONS = [
    "{n}",
    " {n}.",
    "#### {n}",
    " 2 + 3 = 5\n#### {n:,}\n",
    "#### ${n}",
    "####{n} #### 7 #### 8",
    "The answer is {n}.",
    " So it is 12, then 13. The answer is {n:,}.\n\n",
    "The answer is {n}",
    "The answer is -{n}. The answer is 4.",
    "The answer is {n}. The answer is 4.\n#### {n}\n#### 4",
    "The answer is .,. again",
    "The final answer is {n}",
    "The final answer is ${n:,}.00",
    "The final answer is [{n}] or The final answer is {n}.",
    "The final answer is 3. No: The final answer is {n}.",
    "The answer is {n}. The final answer is {n}. The final answer is 3",
    "the ANSWER IS {n}.",
    "1,2,3 and -4.5, $6",
    "{n}$",
    "$",
    "...",
    "-",
    "",
    " \n ",
    "no number at all",
    "Арабские ٣٤ и {n}, and a ² or ½",
    "x -{n}- y",
]


@dataclass(frozen=True)
class FakeModel:
    """Answers that depend on the request's text and a seed alone; many of them tie."""

    seed: int

    def loglikelihood(self, context: str, continuation: str) -> tuple[float, bool]:
        chance = self._chance("score", context, continuation)
        return -chance.randrange(1, 12) / 4, chance.random() < 0.5

    def rolling(self, text: str) -> float:
        return -self._chance("rolling", text).uniform(0.5, 4.0) * len(text)

    def completion(self, context: str) -> str:
        chance = self._chance("generate", context)
        asked = re.findall(r"has (\d+) \w+ and gets (\d+)", context)
        right = sum(map(int, asked[-1])) if asked else 5
        number = right if chance.random() < 0.7 else right + chance.randrange(-3, 4)
        text = _PLAIN if chance.random() < 0.3 else chance.choice(_COMPLETIONS)
        return text.format(n=number)

    def _chance(self, *parts: str) -> Random:
        return Random("\0".join([str(self.seed), *parts]))


def render_chat(messages: Sequence[Mapping[str, Any]], *, generation_prompt: bool = True) -> str:
    turns = [f"<{message['role']}>{message['content']}</>" for message in messages]
    return "".join(turns) + "<assistant>" * generation_prompt


@dataclass(frozen=True)
class TheirRun:
    """A task's data set and solved rows, what was asked for each row, the scores of the answers."""

    dataset: tuple[str, str | None]
    default_shots: int
    requests: list[list[tuple[Any, ...]]]
    scores: Mapping[str, float]
    higher_is_better: Mapping[str, bool]
    samples: list[Mapping[str, Any]]


@pytest.fixture(scope="session")
def fake_model() -> type[FakeModel]:
    return FakeModel


@pytest.fixture(scope="session")
def chat_template() -> Callable[..., str]:
    return render_chat


@pytest.fixture(scope="session")
def task_manager() -> Any:
    tasks = pytest.importorskip("lm_eval.tasks", reason="needs the environment lm-eval")
    folder = Path(tasks.__file__).parent
    families = [folder / family for family in FAMILIES.split()]
    return tasks.TaskManager(include_path=families, include_defaults=False)


@pytest.fixture(scope="session")
def mmlu_configs() -> list[dict[str, Any]]:
    """The declaration of each subject, from the folder of YAML files."""
    loader = pytest.importorskip("lm_eval.tasks._yaml_loader", reason="needs lm-eval 0.4.13")
    folder = Path(loader.__file__).parent / "mmlu" / "default"
    return [loader.load_yaml(path) for path in sorted(folder.glob("mmlu_*.yaml"))]


@pytest.fixture(scope="session")
def their_run(task_manager: Any) -> Callable[..., TheirRun]:
    """Runs a task of lm-eval on the rows of a folder, with its own `evaluate`."""
    lm_eval = pytest.importorskip("lm_eval", reason="needs the environment lm-eval")
    datasets = pytest.importorskip("datasets", reason="needs the environment lm-eval")
    from lm_eval.api.model import LM

    class Answering(LM):
        def __init__(self, model: FakeModel) -> None:
            super().__init__()
            self.model = model

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return [self.model.loglikelihood(*request.args) for request in requests]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            return [self.model.rolling(*request.args) for request in requests]

        def generate_until(self, requests: list[Any]) -> list[str]:
            return [self.model.completion(request.args[0]) for request in requests]

        @property
        def tokenizer_name(self) -> str:
            return "none"

        def apply_chat_template(
            self, chat_history: list[Any], add_generation_prompt: bool = True
        ) -> str:
            return render_chat(chat_history, generation_prompt=add_generation_prompt)

    def splits(folder: Path) -> dict[str, Any]:
        return {
            path.stem: datasets.Dataset.from_list([dict(row.columns) for row in Rows(path)])
            for path in folder.glob("*.jsonl")
        }

    def run(
        task: str, rows: str, model: FakeModel, *, shots: int, seed: int, chat: bool
    ) -> TheirRun:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets, "load_dataset", lambda **_: splits(ROWS / rows))
            found = task_manager.load(task)["tasks"][task]
        default_shots = found.config.num_fewshot or 0
        found.set_config("num_fewshot", shots)
        found.set_fewshot_seed(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DISABLE_MULTIPROC", "1")
            results = lm_eval.evaluate(
                Answering(model),
                {"tasks": {task: found}},
                # With none, not even the errors that need no bootstrap are computed.
                bootstrap_iters=2,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat,
            )
        by_row: dict[int, list[tuple[Any, ...]]] = {}
        for instance in found.instances:
            by_row.setdefault(instance.doc_id, []).append(instance.args)
        requests = [by_row[row] for row in sorted(by_row)]
        dataset = (found.DATASET_PATH, found.DATASET_NAME)
        scores, samples = results["results"][task], results["samples"][task]
        higher_is_better = results["higher_is_better"][task]
        return TheirRun(dataset, default_shots, requests, scores, higher_is_better, samples)

    return run
