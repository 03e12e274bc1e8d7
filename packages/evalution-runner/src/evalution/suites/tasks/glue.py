"""Tasks of the GLUE benchmark (Wang et al. 2018, arXiv:1804.07461)."""

from __future__ import annotations

from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.suites.choice_suite import ClassificationSuite
from evalution.suites.dataset import Dataset, DatasetRows


def _glue(name: str, split: str = "validation", rows: int | None = None) -> Dataset:
    return Dataset(
        "nyu-mll/glue", split, name, fewshot_split="train", draw_extra_shot=True, rows=rows
    )


@dataclass(kw_only=True)
class SST2(DatasetRows, ClassificationSuite):
    """Decide whether a sentence of a film review is negative or positive."""

    task = "sst2"
    dataset = _glue("sst2")
    classes = ("negative", "positive")

    def question_text(self, row: Row) -> str:
        question = "Is this sentence positive or negative?"
        return f"{row.text('sentence')}\nQuestion: {question}\nAnswer:"


@dataclass(kw_only=True)
class CoLA(DatasetRows, ClassificationSuite):
    """Decide whether a sentence is acceptable English."""

    task = "cola"
    dataset = _glue("cola", rows=1043)
    classes = ("no", "yes")
    metric_names = ("mcc",)

    def question_text(self, row: Row) -> str:
        return f"{row.text('sentence')}\nQuestion: Does this sentence make sense?\nAnswer:"


@dataclass(kw_only=True)
class MRPC(DatasetRows, ClassificationSuite):
    """Decide whether two sentences of the news say the same."""

    task = "mrpc"
    dataset = _glue("mrpc")
    classes = ("no", "yes")
    metric_names = ("acc", "f1")

    def question_text(self, row: Row) -> str:
        return (
            f"Sentence 1: {row.text('sentence1')}\nSentence 2: {row.text('sentence2')}\n"
            "Question: Do both sentences mean the same thing?\nAnswer:"
        )


@dataclass(kw_only=True)
class QQP(DatasetRows, ClassificationSuite):
    """Decide whether two questions ask the same."""

    task = "qqp"
    dataset = _glue("qqp")
    classes = ("no", "yes")
    metric_names = ("acc", "f1")

    def question_text(self, row: Row) -> str:
        return (
            f"Question 1: {row.text('question1')}\nQuestion 2: {row.text('question2')}\n"
            "Question: Do both questions ask the same thing?\nAnswer:"
        )


@dataclass(kw_only=True)
class QNLI(DatasetRows, ClassificationSuite):
    """Decide whether a sentence holds the answer to a question."""

    task = "qnli"
    dataset = _glue("qnli")
    classes = ("yes", "no")

    def question_text(self, row: Row) -> str:
        return (
            f"{row.text('question')}\n{row.text('sentence')}\n"
            "Question: Does this response answer the question?\nAnswer:"
        )


@dataclass(kw_only=True)
class RTE(DatasetRows, ClassificationSuite):
    """Decide whether a sentence follows from a text."""

    task = "rte"
    dataset = _glue("rte")
    classes = ("True", "False")

    def question_text(self, row: Row) -> str:
        question = f"Question: {row.text('sentence2')} True or False?"
        return f"{row.text('sentence1')}\n{question}\nAnswer:"


@dataclass(kw_only=True)
class WNLI(RTE):
    """Decide whether a sentence follows once its pronoun is resolved."""

    task = "wnli"
    dataset = _glue("wnli")
    classes = ("False", "True")


@dataclass(kw_only=True)
class MNLI(DatasetRows, ClassificationSuite):
    """Decide whether a hypothesis follows from a premise, contradicts it, or neither."""

    task = "mnli"
    dataset = _glue("mnli", "validation_matched", rows=9815)
    classes = ("True", "Neither", "False")

    def question_text(self, row: Row) -> str:
        hypothesis = row.text("hypothesis").strip()
        stop = "" if hypothesis.endswith(".") else "."
        question = f"Question: {hypothesis}{stop} True, False or Neither?"
        return f"{row.text('premise')}\n{question}\nAnswer:"
