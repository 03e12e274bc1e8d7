"""Suites whose answers are judged by more than their filters, against lm-evaluation-harness's own.

Each side asks one scripted model, which knows right and wrong answers to every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from evalution.rows.local import Rows
from evalution.scoring.instructions import KINDS, parse_instructions
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


def humaneval_replies() -> dict[str, list[str]]:
    return {
        row["prompt"]: [
            row["canonical_solution"],
            f"    {body}\n" if body else "",
            "    return (a",
            "    import math\n    return math.nan\n",
            "pass",
        ]
        for row, body in zip(rows_of("humaneval"), wrong_programs(), strict=True)
    }


def mbpp_replies() -> dict[str, list[str]]:
    return {
        row["text"]: [
            row["code"],
            f"{row['code']}\n\nprint({row['test_list'][0]!r})",
            f"def {row['code'].split()[1].partition('(')[0]}(a, b):\n  {body}",
            f"```python\n{row['code']}\n```",
            "def f(:",
            "",
        ]
        for row, body in zip(rows_of("mbpp"), wrong_programs(), strict=True)
    }


def humaneval_instruct_replies() -> dict[str, list[str]]:
    return {
        prompt: [*replies, f"{replies[0]}```\nIt returns `{prompt}`", f"{replies[0]}\n```", "```"]
        for prompt, replies in humaneval_replies().items()
    }


def mbpp_instruct_replies() -> dict[str, list[str]]:
    # Behind the fence that begins an answer, lm-eval takes a first word for a language: " def".
    return {
        text: [f"\n{reply}{end}" for reply in replies for end in ("", "\n```", "\n```\nSo `a`.")]
        for text, replies in mbpp_replies().items()
    }


def wrong_programs() -> list[str]:
    programs = make_rows().PROGRAMS
    return [f"return {programs[index % len(programs)][2]}" for index in range(21)]


ANSWERS = [
    "",
    "  \n ",
    "The boat lies in the harbour. Another BOAT is gone, too! No storm?",
    "the boat, the boat and a rainy day in the harbour",
    "Das Boot liegt im Hafen und der Regen hört heute nicht mehr auf.",
    "HERE IS A LONG SENTENCE IN CAPITAL LETTERS ABOUT THE WEATHER AND THE HARBOUR",
    "here is a long sentence in small letters about the weather and the harbour",
    "Dr. Li came. She saw it, e.g. there. Mr. No. 5 went",
    "*** One paragraph. *** Another one. ***",
    "One.\n***\n \n***\nThree.",
    'First we go.\n\n"Then, we come back.',
    "First we go.\n\nthen\n\n\n\nLast",
    "Dear [name], I live in [place].\n\nP.S. I like it",
    "Well.\n p. p. s. And more",
    "* one\n- two\n",
    "Intro\n* one\n* two\n** three **",
    "  My answer is yes. ",
    "*one* and **two** and ** ** here",
    "Section 1\nHello\nSECTION 2\nSection 2 more",
    '```json\n{"a": [1, 2]}\n```',
    "{'a': 1}",
    "<<A title>> and text",
    "<< >>",
    "yes ****** no",
    "******same****** same ",
    "yes ****** ****** no",
    "where is the boat? It is here.",
    "Sure:\nWhere is the boat? It is here. That is all.",
    'It is here. that is all."',
    '"All of it is quoted, I think."',
    '"',
    "NATO and the UN and a U.S. ship, 12 A",
    "12 34 56",
    "Okay\n*NATO* *UN* boat Boat boat\nThat is all.",
]


def ifeval_replies() -> dict[str, list[str]]:
    return {row["prompt"]: ANSWERS for row in rows_of("ifeval", "train")}


def test_every_kind_of_instruction_is_checked_as_lm_eval_does(punkt: None) -> None:
    from lm_eval.tasks.ifeval import instructions_registry

    table = make_rows().INSTRUCTIONS
    assert {name for name, _ in table} == set(KINDS) == set(instructions_registry.INSTRUCTION_DICT)
    for name, arguments in table:
        (ours,) = parse_instructions([name], [arguments])
        theirs = instructions_registry.INSTRUCTION_DICT[name](name)
        theirs.build_description(**arguments)
        found = [(ours.is_followed(text), text) for text in ANSWERS if text.strip()]
        assert found == [
            (bool(theirs.check_following(text)), text) for text in ANSWERS if text.strip()
        ], name
        assert len({is_followed for is_followed, _ in found}) > 1, name


def translation_replies(pair: str, source: str, into: str) -> dict[str, list[str]]:
    rows = [row["translation"] for row in rows_of(f"wmt/{pair}")]
    return {
        row[source]: [
            f" {row[into]}",
            row[into],
            " ".join(reversed(row[into].split())),
            row[into].lower().replace("some", "all the"),
            row[source],
            "",
        ]
        for row in rows
    }


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("source_into", ["de-en", "en-de", "en-ro", "ro-en", "en-fr", "fr-en"])
def test_a_translation_suite_asks_and_scores_as_lm_eval(
    source_into: str, shots: int, their_run: Callable[..., Any], chat_template: Callable[..., str]
) -> None:
    source, into = source_into.split("-")
    rows = f"wmt/{source if into == 'en' else into}-en"
    task = f"wmt{14 if 'fr' in source_into else 16}-{source_into}"
    kind: Any = load_suite(task)
    suite = kind(data=ROWS / rows, num_fewshot=shots)
    model = ScriptedModel(translation_replies(rows.partition("/")[2], source, into), 5)
    theirs = their_run(task, rows, model, shots=shots, seed=1234, chat=False)
    accumulator = suite.make_accumulator()
    samples = list(suite.samples())
    assert len(samples) == len(theirs.requests) >= LEAST_ROWS
    for sample, asked in zip(samples, theirs.requests, strict=True):
        (request,) = sample.requests
        assert request.prompt == asked[0][0]
        found = (list(request.stop), request.max_new_tokens, request.do_sample)
        assert found == normalized(asked[0][1])
        answer = GenerationOutput(request.prompt, model.completion(request.prompt))
        accumulator.record(sample.index, suite.score(sample, [answer]))
    for name, result in accumulator.results().items():
        assert result.value == pytest.approx(theirs.scores[f"{name},none"]), name
        assert result.higher_is_better == theirs.higher_is_better[name]
        assert result.interval is not None
        assert result.interval[0] < result.value < result.interval[1]
    assert (suite.dataset.path, suite.dataset.name) == theirs.dataset


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
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


RUN = {"execute": "sandbox", "time_limit_s": 30.0}
IFEVAL = [
    f"{part}_level_{level}_acc" for part in ("prompt", "inst") for level in ("strict", "loose")
]
CASES = [
    Case("ifeval", "ifeval", ifeval_replies, {name: name for name in IFEVAL}),
    Case("hendrycks_math500", "math500", math_replies, {"exact_match": "exact_match"}, (0, 2)),
    Case(
        "minerva_math500",
        "math500",
        math_replies,
        {"exact_match": "exact_match", "math_verify": "math_verify"},
        (0, 4),
    ),
    Case("humaneval", "humaneval", humaneval_replies, {"pass@1": "pass@1"}, (0,), RUN),
    Case("mbpp", "mbpp", mbpp_replies, {"pass_at_1": "pass@1"}, (0, 3), RUN),
    Case(
        "humaneval_instruct",
        "humaneval",
        humaneval_instruct_replies,
        {"pass@1": "pass@1"},
        (0,),
        RUN,
    ),
    Case("mbpp_instruct", "mbpp", mbpp_instruct_replies, {"pass_at_1": "pass@1"}, (0, 3), RUN),
]
RUNS = [
    (case, shots, chat)
    for case in CASES
    for shots in case.shots
    for chat in (False, True)
    if not (chat and case.task.endswith("_instruct"))  # no engine goes on within a message
]


@pytest.mark.parametrize(
    ("case", "shots", "chat"),
    RUNS,
    ids=[f"{case.task}-{shots}-{'chat' if chat else 'text'}" for case, shots, chat in RUNS],
)
def test_a_suite_asks_and_judges_as_lm_eval(
    case: Case,
    shots: int,
    chat: bool,
    their_run: Callable[..., Any],
    chat_template: Callable[..., str],
) -> None:
    kind: Any = load_suite(case.task)
    suite = kind(data=ROWS / case.rows, num_fewshot=shots, apply_chat_template=chat, **case.options)
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
