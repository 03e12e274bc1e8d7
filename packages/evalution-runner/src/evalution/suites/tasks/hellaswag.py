"""HellaSwag: how an everyday scene goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from evalution.rows.local import Row
from evalution.suites.choice_suite import ChoiceSuite
from evalution.suites.dataset import Dataset, DatasetRows

_BRACKETS = re.compile(r"\[.*?\]")


@dataclass(kw_only=True)
class HellaSwag(DatasetRows, ChoiceSuite):
    """The right one of four endings of a scene (Zellers et al. 2019, arXiv:1905.07830)."""

    task = "hellaswag"
    dataset = Dataset(
        "Rowan/hellaswag", "validation", fewshot_split="train", draw_extra_shot=True, rows=10042
    )
    metric_names: ClassVar[Sequence[str]] = ("acc", "acc_norm")

    def question_text(self, row: Row) -> str:
        scene = row.text("ctx_a") + " " + row.text("ctx_b").capitalize()
        return _clean(row.text("activity_label") + ": " + scene)

    def choice_texts(self, row: Row) -> Sequence[str]:
        return [_clean(ending) for ending in row.texts("endings")]

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return row.index_in("label", len(choices))


def _clean(text: str) -> str:
    # The brackets are left over from WikiHow, where half of the scenes come from.
    unbracketed = _BRACKETS.sub("", text.strip().replace(" [title]", ". "))
    return unbracketed.replace("  ", " ")
