"""A task as lm-evaluation-harness runs it, and one seeded fake model for both sides."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import pytest

from evalution.rows.local import Rows

FAMILIES = (
    "glue hellaswag piqa arc winogrande super_glue mmlu lambada wikitext gsm8k gsm8k_platinum "
    "gpqa truthfulqa mmlu_pro bbh drop hendrycks_math minerva_math humaneval mbpp ifeval "
    "translation"
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
_CLAIMS = [
    *["{x}"] * 4,
    *["So the answer is {x}."] * 3,
    "{x}.",
    *["The answer is {x}."] * 3,
    "Not {y}, but:\nthe answer is {x}\nThe answer is {y}",
    "First {x}, then {y}? No: the answer is {x}.",
    "The final answer: {x}, it seems",
    "It is {y}. Or: {x}",
    "Answer: {x}, and not {y}.",
    "nobody knows",
    "the answer is .",
]
_GUESSES = {
    "not ( False )": ["True", "False"],
    "Input: [": ["> } ]", "] } >", ">}]", "  "],
    "plausible?": ["yes", "no", "plausible", "Not plausible"],
    "truth?": ["Yes", "No", "no", "He tells the truth", "does NOT tell the truth"],
    "How many?": ["7", "twenty one", "-3", "two hundred and five", "9, 11", "someone"],
}


def guess_answers(question: str, chance: Random) -> list[str]:
    """Two texts that a model could give as answers to a question, most of them of its kind."""
    lettered = re.findall(r"^(\([A-D]\)|[A-J]\.) ([^\n]*)", question, re.M)
    if lettered:
        marks = [mark if mark[0] == "(" else f"({mark[0]})" for mark, _ in lettered]
        texts = [text for _, text in lettered]
        return chance.choices([*marks * 3, *texts, "A", "B"], k=2)
    if " points" in question:
        return chance.choices([*re.findall(r"\d[\d,]*|[A-Z]\w+", question), "3 May 1954"], k=2)
    if "List: " in question:
        words = question.rpartition("List: ")[2].partition("\n")[0].split()
        return [" ".join(sorted(words)), ", ".join(chance.sample(words, len(words)))]
    if kind := next((mark for mark in _GUESSES if mark in question), None):
        numbers = re.findall(r"\d+", question) if kind == "How many?" else []
        return chance.choices([*_GUESSES[kind], *numbers * 3], k=2)
    return ["nothing", "all"]


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
        if not asked:
            question = re.split(r"Q: |Question:|\n\n|<user>", context)[-1]
            answer, other = guess_answers(question, chance)
            is_lettered = "(A)" in question and chance.random() < 0.5
            plain = ["{x}", "The answer is {x}.", "So the answer is {x}."]
            claims = plain if is_lettered else _CLAIMS
            return chance.choice(claims).format(x=answer, y=other)
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


class CodeEval:
    """Stands for `evaluate`'s metric code_eval, which only the Hub has: each program in a process.

    pass@k by the product of Chen et al. 2021, fig. 3.
    """

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]
    ) -> tuple[dict[str, float], None]:
        means: dict[str, list[float]] = {f"pass@{n}": [] for n in k}
        for tests, candidates in zip(references, predictions, strict=True):
            right = sum(_passes(f"{candidate}\n{tests}") for candidate in candidates)
            wrong, count = len(candidates) - right, len(candidates)
            for n in k:
                missed = 1.0 if wrong >= n else 0.0
                for drawn in range(wrong + 1, count + 1):
                    missed *= 1.0 - n / drawn
                means[f"pass@{n}"].append(1.0 - missed)
        return {name: sum(values) / len(values) for name, values in means.items()}, None


@cache
def _passes(program: str) -> bool:
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True)
    return done.returncode == 0


@pytest.fixture(scope="session")
def fake_model() -> type[FakeModel]:
    return FakeModel


@pytest.fixture(scope="session")
def chat_template() -> Callable[..., str]:
    return render_chat


@pytest.fixture(scope="session")
def punkt(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Stands for NLTK's English sentence model, which is a download: a few abbreviations."""
    nltk = pytest.importorskip("nltk", reason="needs the environment lm-eval")
    from nltk.tokenize.punkt import PunktParameters, save_punkt_params

    data = tmp_path_factory.mktemp("nltk_data")
    parameters = PunktParameters()
    parameters.abbrev_types.update({"dr", "mr", "e.g", "no"})
    nltk.data.path.insert(0, str(data))
    model = data / "tokenizers" / "punkt_tab" / "english"
    model.mkdir(parents=True)
    save_punkt_params(parameters, dir=str(model))
    yield
    nltk.data.path.remove(str(data))


@pytest.fixture(scope="session")
def task_manager(punkt: None) -> Any:
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
def bbh_configs() -> dict[tuple[str, str], dict[str, Any]]:
    """The declaration of each task of BBH in each way, by both."""
    loader = pytest.importorskip("lm_eval.tasks._yaml_loader", reason="needs lm-eval 0.4.13")
    folder = Path(loader.__file__).parent / "bbh"
    return {
        (path.stem, f"bbh_{path.parent.name}"): loader.load_yaml(path, resolve_func=False)
        for path in folder.glob("*/[a-z]*.yaml")
    }


@pytest.fixture(scope="session")
def seeded_map() -> Callable[..., Any]:
    """`Dataset.map` with the shuffles of the mapped function begun as in a fresh process.

    GPQA shuffles its choices by a generator that goes on whenever the rows are loaded again, or by
    the process's own.
    """
    datasets = pytest.importorskip("datasets", reason="needs the environment lm-eval")
    plain_map = datasets.Dataset.map

    def apply(dataset: Any, function: Any, **options: Any) -> Any:
        if isinstance(function, FunctionType):
            function.__globals__.get("rng", random).seed(42)
        return plain_map(dataset, function, **options)

    return apply


@pytest.fixture(scope="session")
def their_run(task_manager: Any, seeded_map: Callable[..., Any]) -> Callable[..., TheirRun]:
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
            patch.setattr(datasets.Dataset, "map", seeded_map)
            patch.setattr(datasets, "load_dataset", lambda **_: splits(ROWS / rows))
            patch.setattr("evaluate.load", lambda name: CodeEval())
            found = task_manager.load(task)["tasks"][task]
        default_shots = found.config.num_fewshot or 0
        found.set_config("num_fewshot", shots)
        found.set_fewshot_seed(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DISABLE_MULTIPROC", "1")
            patch.setattr(datasets.Dataset, "map", seeded_map)
            results = lm_eval.evaluate(
                Answering(model),
                {"tasks": {task: found}},
                # With none, not even the errors that need no bootstrap are computed.
                bootstrap_iters=2,
                confirm_run_unsafe_code=True,
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
