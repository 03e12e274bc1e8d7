"""Suites whose answers are judged by more than their filters, against lm-evaluation-harness's own.

Each side asks one scripted model, which knows right and wrong answers to every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from evalution.rows.local import Rows
from evalution.suites.discovery import load_suite
from evalution_core import GenerationOutput

pytest.importorskip("lm_eval", reason="needs the environment lm-eval of tools/envs")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

ROWS = Path(__file__).parents[1] / "data" / "rows"
LEAST_ROWS = 20


@dataclass(frozen=True)
class ScriptedModel:
    """Answers the last question of a prompt with one of its replies, by a seed."""

    replies: Mapping[str, Sequence[str]]
    seed: int

    def completion(self, context: str) -> str:
        asked = max(self.replies, key=context.rfind)
        assert asked in context
        return Random(f"{self.seed}{asked}").choice(self.replies[asked])


def rows_of(name: str, split: str = "test") -> list[Mapping[str, Any]]:
    return [row.columns for row in Rows(ROWS / name / f"{split}.jsonl")]


def math_replies() -> dict[str, list[str]]:
    spelt = dict(make_rows().RESULTS)
    return {
        row["problem"]: [
            reply.format(form)
            for form in (row["answer"], spelt[row["answer"]])
            for reply in (
                "{0}",
                " ${0}$",
                "We take $y=2$ and then ${0}$",
                "So it is \\boxed{{{0}}}.",
                "Final Answer: The final answer is ${0}$. I hope it is correct.",
                "Final Answer: The final answer is {0}. I hope it is correct.",
                "Final Answer: The final answer is $x = {0}$. I hope it is correct. No!",
            )
        ]
        + [
            "",
            "$",
            "$7$",
            "It is 7/0",
            "Final Answer: The final answer is $7$. I hope it is",
            "\\frac",
        ]
        for row in rows_of("math500")
    }


def make_rows() -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_rows", ROWS / "make_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Case:
    """A task, its rows, the model's replies, and our names of lm-eval's metrics."""

    task: str
    rows: str
    replies: Callable[[], Mapping[str, Sequence[str]]]
    metrics: Mapping[str, str]
    shots: tuple[int, ...] = (0,)


CASES = [
    Case("hendrycks_math500", "math500", math_replies, {"exact_match": "exact_match"}, (0, 2)),
    Case(
        "minerva_math500",
        "math500",
        math_replies,
        {"exact_match": "exact_match", "math_verify": "math_verify"},
        (0, 4),
    ),
]
RUNS = [(case, shots) for case in CASES for shots in case.shots]


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize(("case", "shots"), RUNS, ids=lambda one: getattr(one, "task", one))
def test_a_suite_asks_and_judges_as_lm_eval(
    case: Case,
    shots: int,
    chat: bool,
    their_run: Callable[..., Any],
    chat_template: Callable[..., str],
) -> None:
    kind: Any = load_suite(case.task)
    suite = kind(data=ROWS / case.rows, num_fewshot=shots, apply_chat_template=chat)
    seen: dict[str, set[Any]] = {ours: set() for ours in case.metrics.values()}
    theirs: Any = None
    for seed in range(3):
        model = ScriptedModel(case.replies(), seed)
        theirs = their_run(case.task, case.rows, model, shots=shots, seed=1234, chat=chat)
        samples = list(suite.samples())
        assert len(samples) == len(theirs.requests) >= LEAST_ROWS
        measures: list[Any] = []
        for sample, asked, judged in zip(samples, theirs.requests, theirs.samples, strict=True):
            (request,) = sample.requests
            prompt = chat_template(request.messages) if chat else request.prompt
            wanted = normalized(asked[0][1])
            # Where lm-eval shows the question itself, solved, another row stands in its place.
            leaks = shots and asked[0][0].count(sample_question(sample)) > 1
            assert leaks or prompt == asked[0][0], f"row {sample.index}"
            assert (list(request.stop), request.max_new_tokens, request.do_sample) == wanted
            answer = model.completion(prompt)
            score = suite.score(sample, [GenerationOutput(prompt, answer)])
            measures.append(score.measures)
            for their_name, our_name in case.metrics.items():
                found = score.measures[our_name]
                assert found.value == their_value(judged[their_name]), (
                    our_name,
                    answer,
                    sample.target,
                )
                seen[our_name].add(found.value)
        for our_name, metric in suite.make_metrics().items():
            their_name = next(one for one, name in case.metrics.items() if name == our_name)
            (value,) = (v for k, v in theirs.scores.items() if k.split(",")[0] == their_name)
            found = metric.estimate([measure[our_name] for measure in measures])
            assert found.value == pytest.approx(value), our_name
    assert all(len(values) > 1 for values in seen.values()), "all right, or all wrong"
    assert (suite.dataset.path, suite.dataset.name) == theirs.dataset
    assert kind().num_fewshot == theirs.default_shots


def sample_question(sample: Any) -> str:
    text = sample.prompt if isinstance(sample.prompt, str) else sample.prompt[-1]["content"]
    return text.rpartition("Problem:")[2].partition("\n\nSolution:")[0].removesuffix("\nAnswer:")


def normalized(arguments: Any) -> tuple[list[str], int, bool]:
    """With what lm-eval's models make of `generation_kwargs` where it leaves things open."""
    from lm_eval.models.utils import normalize_gen_kwargs

    wanted = normalize_gen_kwargs(arguments)
    return wanted["until"], wanted["max_gen_toks"], wanted["do_sample"]


def their_value(value: Any) -> float:
    return float(sum(value)) if isinstance(value, list) else float(value)
