"""LAMBADA: the last word of a passage."""

from __future__ import annotations

from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.language_modelling import ContinuationSuite


@dataclass(kw_only=True)
class LambadaOpenAI(DatasetRows, ContinuationSuite):
    """The last word of a passage, in OpenAI's version (Paperno et al. 2016, arXiv:1606.06031).

    The word is scored with the blank before it. A solved row shows two blanks before its word, as
    in lm-evaluation-harness 0.4.13: `target_delimiter` is one more.
    """

    task = "lambada_openai"
    dataset = Dataset("EleutherAI/lambada_openai", "test", "default")

    def question_text(self, row: Row) -> str:
        return row.text("text").rpartition(" ")[0]

    def answer_text(self, row: Row) -> str:
        return " " + row.text("text").rpartition(" ")[2]


@dataclass(kw_only=True)
class LambadaStandard(LambadaOpenAI):
    """The last word of a passage, as first published (Paperno et al. 2016, arXiv:1606.06031)."""

    task = "lambada_standard"
    dataset = Dataset("cimec/lambada", "test", fewshot_split="validation")
