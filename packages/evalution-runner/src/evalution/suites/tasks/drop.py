"""DROP: questions about a passage that take counting, sorting or sums (arXiv:1903.00161)."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from evalution.rows.local import Row
from evalution.scoring.metrics import Mean, Measure, Metric, Score
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import AnswerSample, GenerationSuite, Stop
from evalution_core import ConfigurationError

Spans = tuple[str, ...]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(kw_only=True)
class DROP(DatasetRows, GenerationSuite):
    """Questions about a passage that take counting, sorting or sums (Dua et al. 2019).

    `em` and `f1` are the best that any of a row's right answers gives: `em` of the whole answer,
    `f1` of its words, 0 where a right number is missing. Case, articles and punctuation are
    overlooked, and `1,000.0` is `1000`.
    """

    task = "drop"
    dataset = Dataset(
        "EleutherAI/drop", "validation", fewshot_split="train", licence="CC-BY-SA-4.0"
    )
    stop: Stop = (".",)

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return {
            "em": "The answer equals one of the right ones, normalised.",
            "f1": "Words that the answer shares with the nearest right one.",
        }

    def make_metrics(self) -> Mapping[str, Metric]:
        return {"em": Mean(), "f1": Mean()}

    def question_text(self, row: Row) -> str:
        return f"{row.text('passage')} {row.text('question')}"

    def answer_text(self, row: Row) -> str:
        return ", ".join(read_answers(row)[0])

    def grade_answer(self, sample: AnswerSample, text: str, answer: str) -> Score:
        # An answer of blanks alone counts for nothing, as in the official script.
        right = [spans for spans in read_answers(sample.row) if spans[0].strip()]
        scores = [compare_spans(answer, spans) for spans in right]
        em = max((exact for exact, _ in scores), default=0.0)
        f1 = max((overlap for _, overlap in scores), default=0.0)
        return Score(
            {"em": Measure(em), "f1": Measure(f1)}, text, {"normalized": normalize(answer)}
        )


def read_answers(row: Row) -> list[Spans]:
    """The right answers of a row, each once: its own, then those of people who checked it.

    Raises:
        ConfigurationError: a column lacks a number, a date or spans.
    """
    found: list[Any] = []
    try:
        found = [row["answer"], *_split_columns(row["validated_answers"])]
        return list(dict.fromkeys(_read_answer(answer) for answer in found))
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigurationError(
            f"{row.place}: 'answer' and 'validated_answers' must hold number, date and spans, got "
            f"{found or row['validated_answers']!r}"
        ) from error


def _split_columns(answers: Mapping[str, Sequence[Any]]) -> Iterator[Mapping[str, Any]]:
    columns = ("number", "date", "spans")
    for values in zip(*(answers[column] for column in columns), strict=True):
        yield dict(zip(columns, values, strict=True))


def _read_answer(answer: Mapping[str, Any]) -> Spans:
    if answer["number"] != "":
        return (str(answer["number"]),)
    if answer["spans"]:
        if isinstance(answer["spans"], str):
            raise TypeError
        return tuple(cast(Sequence[str], answer["spans"]))
    return (" ".join(answer["date"][part] for part in ("day", "month", "year")).strip(),)


def compare_spans(answer: str, right: Spans) -> tuple[float, float]:
    """Exact match and F1 of one answer and the spans of a right one.

    The answer is one span: it is aligned with the nearest of them, and the others count 0. F1 is
    rounded to two digits, as in the official script.
    """
    found, wanted = normalize(answer), [normalize(span) for span in right]
    best = max(_compare_words(set(found.split()), set(span.split())) for span in wanted)
    # Rounded as numpy does it: round(x, 2) is of the decimal number, and differs at some ties.
    return float([found] == wanted), round(best / len(wanted) * 100) / 100


def _compare_words(found: set[str], right: set[str]) -> float:
    numbers = {word for word in right if _is_number(word)}
    if numbers and not numbers & found:
        return 0.0
    shared = len(found & right)
    precision = shared / len(found) if found else 1.0
    recall = shared / len(right) if right else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def normalize(text: str) -> str:
    """A text in lower case, without articles and punctuation, its numbers as floats write them."""
    words = (_normalize_word(word) for word in re.split(" |-", text.lower()))
    return " ".join(word for word in words if word)


def _normalize_word(word: str) -> str:
    plain = word if _is_number(word) else word.translate(_NO_PUNCTUATION)
    number = str(float(plain)) if _is_number(plain) else plain
    return " ".join(_ARTICLES.sub(" ", number).split())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
