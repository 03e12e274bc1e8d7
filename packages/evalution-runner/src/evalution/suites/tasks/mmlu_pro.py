"""MMLU-Pro: exam questions with up to ten choices (Wang et al. 2024, arXiv:2406.01574)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.filters import Filter, Regex
from evalution.suites.dataset import Dataset
from evalution.suites.generation_suite import EXACT_MATCH, AnswerSample, GenerationSuite, Stop
from evalution.suites.prompted_suite import FixedShotsOption, NumFewshot
from evalution.suites.row_suite import Split
from evalution.suites.subsets import ColumnParts, Subset, Subsets, SubsetSuite
from evalution.user_input import LARGEST
from evalution_core import GenerationOutput

CATEGORIES = Subsets(
    {
        "": (
            "biology",
            "business",
            "chemistry",
            "computer_science",
            "economics",
            "engineering",
            "health",
            "history",
            "law",
            "math",
            "other",
            "philosophy",
            "physics",
            "psychology",
        )
    }
)
_LETTERS = "ABCDEFGHIJ"
_THINK = "Let's think step by step."


@dataclass(kw_only=True)
class MMLUPro(SubsetSuite[AnswerSample, GenerationOutput], GenerationSuite):
    """Exam questions of 14 categories with up to ten choices, thought about step by step.

    `subsets` is `all`, a category (`computer_science`), or a list of those. The letter after
    "answer is" counts, of all chosen questions together and of each category. Solved questions are
    the first of the category's in the validation split, with the reasoning that the data set gives.
    """

    task = "mmlu_pro"
    dataset = Dataset(
        "TIGER-Lab/MMLU-Pro", "test", fewshot_split="validation", rows=12032, licence="MIT"
    )
    parts = CATEGORIES
    part_noun = "category"
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {
        f"{EXACT_MATCH},custom-extract": (Regex(r"answer is \(?([ABCDEFGHIJ])\)?"),)
    }

    num_fewshot: NumFewshot = 5
    fixed_shots: FixedShotsOption = True
    stop: Stop = ("Question:",)
    max_new_tokens: Annotated[
        int, Field(ge=1, le=LARGEST, description="Tokens of an answer at most, reasoning included.")
    ] = 2048

    def check_data(self) -> None:
        """Take any `data`: the categories are a column of one file."""

    def make_part(self, subset: Subset) -> Split:
        rows, solved = self._sources
        category = subset.child.replace("_", " ")
        return Split(
            rows.select(category),
            None if solved is None else solved.select(category),
            name=subset.name,
        )

    def description_text(self, row: Row) -> str:
        return (
            "The following are multiple choice questions (with answers) about "
            f"{row.text('category')}. Think step by step and then finish your answer with "
            '"the answer is (X)" where X is the correct letter choice.\n'
        )

    def question_text(self, row: Row) -> str:
        options = [
            f"{letter}. {text.strip()}"
            for letter, text in zip(_LETTERS, row.texts("options"), strict=False)
        ]
        lines = ["Question:", row.text("question"), "Options:", *options, f"Answer: {_THINK}"]
        return "\n".join(lines)

    def answer_text(self, row: Row) -> str:
        reasoning = row.text("cot_content").replace(f"A: {_THINK} ", "")
        return reasoning or row.text("answer")

    def expected_text(self, row: Row) -> str:
        return row.text("answer")

    @cached_property
    def _sources(self) -> tuple[ColumnParts, ColumnParts | None]:
        split = self.make_split(self.dataset, self.data)
        texts = [name.replace("_", " ") for name in CATEGORIES.groups[""]]
        solved = None if split.fewshot is None else ColumnParts(split.fewshot, "category", texts)
        return ColumnParts(split.rows, "category", texts), solved
