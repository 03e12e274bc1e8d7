"""BIG-Bench Hard: 27 tasks of many kinds (Suzgun et al. 2022, arXiv:2210.09261).

The instructions and the three worked examples of each task are the authors', from
`bbh_prompts.json`, which has their licence (MIT) in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, ClassVar

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.extraction import ChoiceFinder, NumberFinder, PhraseFinder, WordOrder
from evalution.scoring.filters import Filter, Lower, Regex, Replace
from evalution.scoring.text_metrics import ExactMatch
from evalution.suites.dataset import Dataset
from evalution.suites.generation_suite import (
    EXACT_MATCH,
    AnswerSample,
    GenerationSuite,
    Grading,
    Stop,
)
from evalution.suites.prompted_suite import FixedShotsOption, NumFewshot, TargetDelimiter
from evalution.suites.subsets import Subset, Subsets, SubsetSuite
from evalution.user_input import LARGEST
from evalution_core import GenerationOutput

TASKS = Subsets(
    {
        "": (
            "boolean_expressions",
            "causal_judgement",
            "date_understanding",
            "disambiguation_qa",
            "dyck_languages",
            "formal_fallacies",
            "geometric_shapes",
            "hyperbaton",
            "logical_deduction_five_objects",
            "logical_deduction_seven_objects",
            "logical_deduction_three_objects",
            "movie_recommendation",
            "multistep_arithmetic_two",
            "navigate",
            "object_counting",
            "penguins_in_a_table",
            "reasoning_about_colored_objects",
            "ruin_names",
            "salient_translation_error_detection",
            "snarks",
            "sports_understanding",
            "temporal_sequences",
            "tracking_shuffled_objects_five_objects",
            "tracking_shuffled_objects_seven_objects",
            "tracking_shuffled_objects_three_objects",
            "web_of_lies",
            "word_sorting",
        )
    }
)


@cache
def read_prompts() -> Mapping[str, Any]:
    """The description and the worked examples of each task, by its name.

    `phrases` has a value by the pattern of each phrase that stands for it, where answers have some.
    """
    text = files("evalution.suites.tasks").joinpath("bbh_prompts.json").read_text(encoding="utf-8")
    return json.loads(text)["tasks"]


@dataclass(kw_only=True)
class BBHFewshot(SubsetSuite[AnswerSample, GenerationOutput], GenerationSuite):
    """27 tasks that take several steps, such as logic, sums and word play, after three examples.

    `subsets` is `all`, a task (`boolean_expressions`), or a list of those. Scores are of all chosen
    rows together and of each task. The examples are the benchmark's own, without their reasoning.
    """

    task = "bbh_fewshot"
    dataset = Dataset("SaylorTwift/bbh", "test", rows=6511, licence="MIT")
    parts = TASKS
    part_noun = "task"

    num_fewshot: NumFewshot = 3
    fixed_shots: FixedShotsOption = True
    stop: Stop = ("</s>", "Q", "\n\n")

    def declare_part(self, subset: Subset) -> Dataset:
        solved = [
            {"input": one["input"], "target": self.example_answer(one["reasoning"])}
            for one in read_prompts()[subset.child]["examples"]
        ]
        return replace(super().declare_part(subset), fewshot_rows=solved)

    def description_text(self, row: Row) -> str:
        return read_prompts()[row.subset]["description"] + "\n\n"

    def question_text(self, row: Row) -> str:
        return f"Q: {row.text('input')}\nA:"

    def answer_text(self, row: Row) -> str:
        return row.text("target")

    def example_answer(self, reasoning: str) -> str:
        """An example's answer as it stands in the prompt, from its reasoning with the answer."""
        return reasoning.rpartition("answer is ")[2].removesuffix(".")


@dataclass(kw_only=True)
class BBH(BBHFewshot):
    """27 tasks that take several steps, thought about step by step after three worked examples.

    The same as lm-evaluation-harness's `bbh_cot_fewshot`: what follows "the answer is" counts.
    """

    task = "bbh"
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {
        f"{EXACT_MATCH},get-answer": (Regex("(?<=the answer is )(.*)(?=.)"),)
    }

    target_delimiter: TargetDelimiter = ""
    max_new_tokens: Annotated[
        int, Field(ge=1, le=LARGEST, description="Tokens of an answer at most, reasoning included.")
    ] = 1024

    def question_text(self, row: Row) -> str:
        return f"Q: {row.text('input')}\nA: Let's think step by step.\n"

    def example_answer(self, reasoning: str) -> str:
        return reasoning


_OVERLOOKED = (Replace(r"\.$"), Replace(","), Replace(r"\\"), Replace("\n"), Replace('"'), Lower())
_FLEXIBLE = f"{EXACT_MATCH},flexible-extract"
_STRICT = f"{EXACT_MATCH},strict-match"
_CHOICE = re.compile(r"\([A-Z]\)([^\n^(]*)")
_PATTERNS = {
    "boolean_expressions": r"\b(True|False)\b",
    "causal_judgement": r"\b(Yes|No|yes|no)\b",
    "dyck_languages": r'(?<= )([" \[\(<{}>\)\]]+)|([" \[\(<{}>\)\]]+)',
    "formal_fallacies": r"\b(valid|invalid)\b",
    "navigate": r"\b(Yes|No|yes|no)\b",
}


def make_finder(row: Row, *, last: bool) -> Filter:
    """The filter that finds the answer to a row of any task, by what the task asks for."""
    name = row.subset
    if name in _PATTERNS:
        return Regex(_PATTERNS[name], match="last" if last else "first")
    if phrases := read_prompts()[name].get("phrases"):
        return PhraseFinder(phrases, last=last)
    if name in ("multistep_arithmetic_two", "object_counting"):
        return NumberFinder(last=last)
    asked = row.text("input")
    if name == "word_sorting":
        return WordOrder(asked.partition("List:")[2].split())
    return ChoiceFinder(_CHOICE.findall(asked), last=last)


@dataclass(kw_only=True)
class BBHZeroshot(BBHFewshot):
    """27 tasks that take several steps, such as logic, sums and word play, asked as they are.

    `flexible-extract` takes the first text that can be an answer, `strict-match` the whole text.
    Case, commas, quotes, line breaks and a closing full stop are overlooked.
    """

    task = "bbh_zeroshot"
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {_STRICT: _OVERLOOKED, _FLEXIBLE: ()}
    reference_filters: ClassVar[Sequence[Filter]] = _OVERLOOKED
    takes_last: ClassVar[bool] = False

    num_fewshot: NumFewshot = 0
    stop: Stop = ("</s>", "Q:", "<|im_end|>")

    def find_gradings(self, row: Row) -> Mapping[str, Grading]:
        steps = (make_finder(row, last=self.takes_last), *_OVERLOOKED)
        return {**self.gradings, _FLEXIBLE: Grading(steps, ExactMatch())}


@dataclass(kw_only=True)
class BBHCoTZeroshot(BBHZeroshot):
    """27 tasks that take several steps, the model being asked to think step by step.

    `flexible-extract` takes the last text that can be an answer, `strict-match` what follows "the
    answer is".
    """

    task = "bbh_cot_zeroshot"
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {
        _FLEXIBLE: (),
        _STRICT: (
            Regex(
                "((?<=The answer is )(.*)(?=.)|(?<=the answer is )(.*)(?=.)|"
                "(?<=The answer: )(.*)(?=.)|(?<=The final answer: )(.*)(?=.))"
            ),
            *_OVERLOOKED,
        ),
    }
    takes_last = True

    def question_text(self, row: Row) -> str:
        return f"Q: {row.text('input')}\nA: Let's think step by step."
