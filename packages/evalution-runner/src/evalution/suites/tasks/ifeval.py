"""IFEval: prompts with instructions whose keeping a program can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from evalution.rows.local import Row
from evalution.scoring.filters import Filter
from evalution.scoring.instructions import (
    Instruction,
    check_libraries,
    list_loose_answers,
    parse_instructions,
)
from evalution.scoring.metrics import Mean, Measure, Metric, Ratio, Score
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import AnswerSample, GenerationSuite, MaxNewTokens
from evalution.suites.row_suite import FewshotRow

_METRICS = {
    "prompt_level_strict_acc": "Share of the prompts whose instructions are all followed.",
    "inst_level_strict_acc": "Share of the instructions that are followed.",
    "prompt_level_loose_acc": "As strict, or without an answer's first or last line or its stars.",
    "inst_level_loose_acc": "As strict, or without an answer's first or last line or its stars.",
}


@dataclass(kw_only=True)
class IFEval(DatasetRows, GenerationSuite):
    """Prompts with instructions such as "no commas" (Zhou et al. 2023, arXiv:2311.07911).

    A strict score takes the answer as it is; a loose one also counts what holds without its first
    line, its last line or its asterisks. The extra ifeval checks languages and sentences.
    """

    task = "ifeval"
    dataset = Dataset("google/IFEval", "train", licence="Apache-2.0")
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {}

    max_new_tokens: MaxNewTokens = 1280

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return _METRICS

    def make_metrics(self) -> Mapping[str, Metric]:
        return {name: Ratio() if name.startswith("inst") else Mean() for name in _METRICS}

    def question_text(self, row: Row) -> str:
        return row.text("prompt")

    def answer_text(self, row: Row) -> str:
        return ", ".join(row.texts("instruction_id_list"))

    def sample(self, fewshot: FewshotRow) -> AnswerSample:
        check_libraries(_read_instructions(fewshot.row))
        return super().sample(fewshot)

    def failure(self, sample: AnswerSample) -> Mapping[str, Measure]:
        broken = [False for _ in _read_instructions(sample.row)]
        return _measure("strict", broken) | _measure("loose", broken)

    def grade_answer(self, sample: AnswerSample, text: str, answer: str) -> Score:
        instructions = _read_instructions(sample.row)
        strict = [one.is_followed(answer) for one in instructions]
        forms = list_loose_answers(answer)
        loose = [any(map(one.is_followed, forms)) for one in instructions]
        broken = [one.name for one, kept in zip(instructions, strict, strict=True) if not kept]
        measures = _measure("strict", strict) | _measure("loose", loose)
        return Score(measures, text, {"not followed": broken})


def _read_instructions(row: Row) -> list[Instruction]:
    given = cast("Sequence[Mapping[str, Any]]", row["kwargs"])
    return parse_instructions(row.texts("instruction_id_list"), given)


def _measure(level: str, followed: Sequence[bool]) -> dict[str, Measure]:
    return {
        f"prompt_level_{level}_acc": Measure(float(all(followed))),
        f"inst_level_{level}_acc": Measure(float(sum(followed)), float(len(followed))),
    }
