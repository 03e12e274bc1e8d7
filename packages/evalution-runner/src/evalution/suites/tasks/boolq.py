"""BoolQ: yes or no questions about a passage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.suites.choice_suite import ChoiceSuite
from evalution.suites.dataset import Dataset, DatasetRows


@dataclass(kw_only=True)
class BoolQ(DatasetRows, ChoiceSuite):
    """Answer no or yes to a question about a passage (Clark et al. 2019, arXiv:1905.10044)."""

    task = "boolq"
    dataset = Dataset(
        "aps/super_glue", "validation", "boolq", fewshot_split="train", draw_extra_shot=True
    )

    def question_text(self, row: Row) -> str:
        return f"{row.text('passage')}\nQuestion: {row.text('question')}?\nAnswer:"

    def choice_texts(self, row: Row) -> Sequence[str]:
        return ["no", "yes"]

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return row.index_in("label", len(choices))
