"""GPQA: questions of biology, physics and chemistry (Rein et al. 2023, arXiv:2311.12022).

The choices of a row are shuffled by `Random(42)`, which serves the rows one after the other: a row
has the same order in every run and every suite, wherever it is among the rows that run.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import ClassVar, NamedTuple

from evalution.rows.local import Row
from evalution.scoring.extraction import ChoiceFinder
from evalution.scoring.filters import Filter, Lower, Regex, Replace
from evalution.scoring.text_metrics import ExactMatch
from evalution.suites.choice_suite import ChoiceSuite
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import EXACT_MATCH, GenerationSuite, Grading, Stop

_COLUMNS = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3", "Correct Answer")
_LETTERS = ("(A)", "(B)", "(C)", "(D)")
_SEED = 42
_ROWS = {"diamond": 198, "main": 448, "extended": 546}
_EXAMPLES = (
    "Here are some example questions from experts. Answer the final question yourself, following "
    "the format of the previous questions exactly.\n"
)


def _gpqa(subset: str) -> Dataset:
    return Dataset(
        "Idavidrein/gpqa",
        "train",
        f"gpqa_{subset}",
        draw_extra_shot=True,
        rows=_ROWS[subset],
        licence="CC-BY-4.0",
    )


class _Question(NamedTuple):
    choices: Sequence[str]
    right: int


class GPQARows(DatasetRows):
    """The rows of a subset, each with its choices in their shuffled order."""

    def read_question(self, row: Row) -> _Question:
        """The choices in the order in which they are asked, with the index of the right one."""
        texts = [_clean(row, column) for column in _COLUMNS]
        choices = [texts[place] for place in self._find_order(row.index)]
        return _Question(choices, choices.index(texts[-1]))

    def list_choices(self, row: Row) -> str:
        """The choices as they stand in a prompt, one in a line."""
        choices = self.read_question(row).choices
        return "\n".join(f"{name} {text}" for name, text in zip(_LETTERS, choices, strict=True))

    def _find_order(self, index: int) -> Sequence[int]:
        random, orders = self._shuffles
        while len(orders) <= index:
            order = list(range(len(_COLUMNS)))
            random.shuffle(order)
            orders.append(order)
        return orders[index]

    @cached_property
    def _shuffles(self) -> tuple[Random, list[list[int]]]:
        return Random(_SEED), []


def _clean(row: Row, column: str) -> str:
    if row[column] is None:
        return " "
    return row.text(column).strip().replace(" [title]", ". ").replace("  ", " ")


@dataclass(kw_only=True)
class GPQADiamondZeroshot(GPQARows, ChoiceSuite):
    """Questions that experts answer and others can't look up, asked as they are: diamond set."""

    task = "gpqa_diamond_zeroshot"
    dataset = _gpqa("diamond")
    metric_names: ClassVar[Sequence[str]] = ("acc", "acc_norm")

    def question_text(self, row: Row) -> str:
        return (
            f"What is the correct answer to this question:{row.text('Question')}\n"
            f"Choices:\n{self.list_choices(row)}\nAnswer:"
        )

    def choice_texts(self, row: Row) -> Sequence[str]:
        return _LETTERS

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return self.read_question(row).right


@dataclass(kw_only=True)
class GPQADiamondNShot(GPQADiamondZeroshot):
    """Questions that experts answer, asked after `num_fewshot` solved ones: diamond set."""

    task = "gpqa_diamond_n_shot"

    def description_text(self, row: Row) -> str:
        return _EXAMPLES

    def question_text(self, row: Row) -> str:
        return f"Question: {row.text('Question')}\nChoices:\n{self.list_choices(row)}\nAnswer:"


_STRICT = Regex("(?<=The answer is )(.*)(?=.)")
_OVERLOOKED = (Lower(), Replace(f"[{re.escape(string.punctuation)}]"))
_FLEXIBLE = f"{EXACT_MATCH},flexible-extract"


@dataclass(kw_only=True)
class GPQADiamondCoTZeroshot(GPQARows, GenerationSuite):
    """Questions that experts answer, the model being asked to think step by step: diamond set.

    `strict-match` takes what follows "The answer is", `flexible-extract` the last choice that is
    named by its letter, or else by its text. Case and punctuation are overlooked.
    """

    task = "gpqa_diamond_cot_zeroshot"
    dataset = _gpqa("diamond")
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {
        f"{EXACT_MATCH},strict-match": (_STRICT, *_OVERLOOKED),
        _FLEXIBLE: (),
    }
    reference_filters: ClassVar[Sequence[Filter]] = _OVERLOOKED

    stop: Stop = ("</s>",)

    def find_gradings(self, row: Row) -> Mapping[str, Grading]:
        finder = ChoiceFinder(self.read_question(row).choices, last=True)
        return {**self.gradings, _FLEXIBLE: Grading((finder, *_OVERLOOKED), ExactMatch())}

    def question_text(self, row: Row) -> str:
        return (
            f"What is the correct answer to this question:{row.text('Question')}\n"
            f"Choices:\n{self.list_choices(row)}\nLet's think step by step: "
        )

    def answer_text(self, row: Row) -> str:
        return _LETTERS[self.read_question(row).right]


@dataclass(kw_only=True)
class GPQADiamondCoTNShot(GPQADiamondCoTZeroshot):
    """Questions that experts answer, thought about after solved ones: diamond set."""

    task = "gpqa_diamond_cot_n_shot"

    def description_text(self, row: Row) -> str:
        return _EXAMPLES

    def question_text(self, row: Row) -> str:
        return (
            f"Question: {row.text('Question')}\nChoices:\n{self.list_choices(row)}\n"
            "Let's think step by step: "
        )


@dataclass(kw_only=True)
class GPQADiamondGenerativeNShot(GPQADiamondCoTNShot):
    """Questions that experts answer, the model writing its answer: diamond set."""

    task = "gpqa_diamond_generative_n_shot"
    stop: Stop = ("</s>", "Question:", "<|im_end|>")

    def question_text(self, row: Row) -> str:
        return f"Question: {row.text('Question')}\nChoices:\n{self.list_choices(row)}\nAnswer:"


def _take(subset: str, suite: type[GPQARows]) -> type[GPQARows]:
    """Define a suite of the diamond set for another subset."""
    body = {
        "__module__": __name__,
        "__doc__": str(suite.__doc__).replace("diamond set", f"{subset} set"),
        "task": suite.task.replace("diamond", subset),
        "dataset": _gpqa(subset),
    }
    return type(suite.__name__.replace("Diamond", subset.title()), (suite,), body)


GPQAMainZeroshot = _take("main", GPQADiamondZeroshot)
GPQAMainNShot = _take("main", GPQADiamondNShot)
GPQAMainCoTZeroshot = _take("main", GPQADiamondCoTZeroshot)
GPQAMainCoTNShot = _take("main", GPQADiamondCoTNShot)
GPQAMainGenerativeNShot = _take("main", GPQADiamondGenerativeNShot)
GPQAExtendedZeroshot = _take("extended", GPQADiamondZeroshot)
GPQAExtendedNShot = _take("extended", GPQADiamondNShot)
GPQAExtendedCoTZeroshot = _take("extended", GPQADiamondCoTZeroshot)
GPQAExtendedCoTNShot = _take("extended", GPQADiamondCoTNShot)
GPQAExtendedGenerativeNShot = _take("extended", GPQADiamondGenerativeNShot)
