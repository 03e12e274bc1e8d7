"""WinoGrande: which of two names fills the blank of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.suites.choice_suite import ContextChoiceSuite
from evalution.suites.dataset import Dataset, DatasetRows
from evalution_core import ConfigurationError


@dataclass(kw_only=True)
class WinoGrande(DatasetRows, ContextChoiceSuite):
    """The right one of two names for a blank (Sakaguchi et al. 2019, arXiv:1907.10641)."""

    task = "winogrande"
    dataset = Dataset(
        "allenai/winogrande",
        "validation",
        "winogrande_xl",
        fewshot_split="train",
        draw_extra_shot=True,
    )

    def choice_texts(self, row: Row) -> Sequence[str]:
        before, _ = _halves(row)
        return [before + row.text("option1"), before + row.text("option2")]

    def continuation_text(self, row: Row) -> str:
        return _halves(row)[1].strip()

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        if (answer := row.text("answer")) not in ("1", "2"):
            raise ConfigurationError(f"{row.place}: the answer must be 1 or 2, got {answer!r}")
        return int(answer) - 1


def _halves(row: Row) -> tuple[str, str]:
    before, blank, after = row.text("sentence").partition("_")
    if not blank:
        raise ConfigurationError(f"{row.place}: the sentence has no blank (_)")
    return before, after
