"""PIQA: which of two ways reaches a goal in the physical world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from evalution.rows.local import Row
from evalution.suites.choice_suite import ChoiceSuite
from evalution.suites.dataset import Dataset, DatasetRows


@dataclass(kw_only=True)
class PIQA(DatasetRows, ChoiceSuite):
    """The right one of two ways to a goal (Bisk et al. 2019, arXiv:1911.11641)."""

    task = "piqa"
    dataset = Dataset("baber/piqa", "validation", fewshot_split="train", draw_extra_shot=True)
    metric_names: ClassVar[Sequence[str]] = ("acc", "acc_norm")

    def question_text(self, row: Row) -> str:
        return f"Question: {row.text('goal')}\nAnswer:"

    def choice_texts(self, row: Row) -> Sequence[str]:
        return [row.text("sol1"), row.text("sol2")]

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return row.index_in("label", len(choices))
