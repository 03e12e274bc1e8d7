"""ARC: grade-school science questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from evalution.rows.local import Row
from evalution.suites.choice_suite import ChoiceSuite
from evalution.suites.dataset import Dataset, DatasetRows
from evalution_core import ConfigurationError


def _arc(name: str, rows: int) -> Dataset:
    return Dataset("allenai/ai2_arc", "test", name, "train", rows=rows, licence="CC-BY-SA-4.0")


@dataclass(kw_only=True)
class ARCEasy(DatasetRows, ChoiceSuite):
    """Grade-school science questions, the easy set (Clark et al. 2018, arXiv:1803.05457)."""

    task = "arc_easy"
    dataset = _arc("ARC-Easy", 2376)
    metric_names: ClassVar[Sequence[str]] = ("acc", "acc_norm")

    def question_text(self, row: Row) -> str:
        return f"Question: {row.text('question')}\nAnswer:"

    def choice_texts(self, row: Row) -> Sequence[str]:
        return _read_list(row, "text")

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        labels, key = _read_list(row, "label"), row.text("answerKey")
        if key not in labels[: len(choices)]:
            raise ConfigurationError(
                f"{row.place}: answerKey {key!r} is none of the labels {', '.join(labels)}"
            )
        return labels.index(key)


@dataclass(kw_only=True)
class ARCChallenge(ARCEasy):
    """Grade-school science questions, the hard set (Clark et al. 2018, arXiv:1803.05457)."""

    task = "arc_challenge"
    dataset = _arc("ARC-Challenge", 1172)


def _read_list(row: Row, name: str) -> list[str]:
    choices = row["choices"]
    found = cast(Mapping[str, Any], choices).get(name) if isinstance(choices, Mapping) else None
    if not isinstance(found, list):
        raise ConfigurationError(
            f"{row.place}: column 'choices' must hold lists 'text' and 'label', got {choices!r}"
        )
    return [str(text) for text in cast(list[Any], found)]
