"""Suites that let the model choose: the most likely of several answers or contexts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.metrics import (
    F1,
    MatthewsCorrelation,
    Mean,
    Measure,
    Metric,
    Score,
    make_prediction,
    make_wrong_prediction,
)
from evalution.suites.prompted_suite import LocalQuestions, PromptedSuite, Template, parse_template
from evalution.suites.row_suite import FewshotRow
from evalution.suites.suite import Sample
from evalution_core import ConfigurationError, LoglikelihoodOutput, LoglikelihoodRequest
from evalution_core.kinds import RequestKind
from evalution_core.plugins import did_you_mean
from evalution_core.requests import Message

LEAST_CHOICES = 2
_LONGEST_INDEX = 9
"""Digits; Python reads no number of thousands."""
_MEANINGS = {
    "acc": "The right choice has the largest log-probability.",
    "acc_norm": "The same, each log-probability divided by the choice's characters.",
    "acc_bytes": "The same, divided by the choice's UTF-8 bytes.",
    "acc_token": "The same, divided by the choice's tokens.",
    "f1": "F1 of the class with index 1, by the choice of acc.",
    "mcc": "Matthews correlation of the choices of acc with the right ones.",
}


@dataclass(slots=True)
class ChoiceSample(Sample):
    """A question with its choices; `gold` is the index of the right one, or the first of several.

    `right` holds the indices of all right ones where a suite has several; else it is empty.
    """

    choices: Sequence[str]
    gold: int
    right: Sequence[int] = ()


@dataclass(kw_only=True)
class ChoiceSuite(PromptedSuite[ChoiceSample, LoglikelihoodOutput]):
    """Each choice is scored as a continuation of the prompt; the most likely one is the answer.

    Metrics, of which a suite names its own in `metric_names`: `acc` compares the choices'
    log-probabilities, `acc_norm` divides them by the length in characters and `acc_bytes` in UTF-8
    bytes (as lm-evaluation-harness 0.4.13 names them), `acc_token` in tokens. The first of equals
    counts. In a chat, `target_delimiter` is left out.
    """

    request_kind = RequestKind.LOGLIKELIHOOD
    metric_names: ClassVar[Sequence[str]] = ("acc",)
    known_metrics: ClassVar[Sequence[str]] = ("acc", "acc_norm", "acc_bytes", "acc_token")
    """Those that `measures` makes; a subclass that overrides it may add its own."""

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return {name: _MEANINGS.get(name, "") for name in cls.metric_names}

    def check_options(self) -> None:
        super().check_options()
        for name in self.metric_names:
            if name not in self.known_metrics:
                raise ConfigurationError(
                    f"suite {type(self).__name__}: metric_names has {name!r}"
                    f"{did_you_mean(name, self.known_metrics)} "
                    f"(possible: {', '.join(self.known_metrics)})"
                )

    @abstractmethod
    def choice_texts(self, row: Row) -> Sequence[str]:
        """The choices of a row, without the delimiter before them."""
        ...

    @abstractmethod
    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        """Return the index of the right choice."""
        ...

    def make_metrics(self) -> Mapping[str, Metric]:
        return dict.fromkeys(self.metric_names, Mean())

    def sample(self, fewshot: FewshotRow) -> ChoiceSample:
        row = fewshot.row
        choices = check_choices(row, self.choice_texts(row))
        gold = self.gold_index(row, choices)
        prompt = self.build_prompt(fewshot)
        requests = [self.request(prompt, choice) for choice in choices]
        return ChoiceSample(row.index, prompt, choices[gold], requests, choices, gold)

    def answer_text(self, row: Row) -> str:
        choices = check_choices(row, self.choice_texts(row))
        return choices[self.gold_index(row, choices)]

    def score(self, sample: ChoiceSample, answers: Sequence[LoglikelihoodOutput]) -> Score:
        sums = [answer.logprob for answer in answers]
        pairs = list(zip(answers, sample.choices, strict=True))
        chosen = {
            "acc": _highest(sums),
            "acc_norm": _highest([answer.logprob / len(text) for answer, text in pairs]),
            "acc_bytes": _highest([answer.logprob / len(text.encode()) for answer, text in pairs]),
            "acc_token": _highest([a.logprob / max(a.token_count, 1) for a in answers]),
        }
        extracted = {name: chosen.get(name, chosen["acc"]) for name in self.metric_names}
        return Score(
            self.measures(sample, chosen),
            sample.choices[chosen["acc"]],
            {**extracted, "choices": list(sample.choices), "logprobs": sums},
        )

    def measures(
        self, sample: ChoiceSample, chosen: Mapping[str, int]
    ) -> Mapping[str, Measure | None]:
        """Return a sample's measure of each metric.

        `chosen` is the index of the choice by each rule of `score`. A suite with a metric of
        another sort overrides this.
        """
        return {name: Measure(float(chosen[name] == sample.gold)) for name in self.metric_names}

    def request(self, prompt: str | list[Message], choice: str) -> LoglikelihoodRequest:
        """The request that scores `choice` after `prompt`."""
        if isinstance(prompt, str):
            return LoglikelihoodRequest(prompt, self.target_delimiter + choice)
        return LoglikelihoodRequest(continuation=choice, messages=prompt)


def check_choices(row: Row, found: Sequence[Any]) -> Sequence[str]:
    """`found`, which are the choices of `row`.

    Raises:
        ConfigurationError: they are fewer than two, or one is empty or no text.
    """
    for text in found:
        if not isinstance(text, str) or not text:
            raise ConfigurationError(
                f"{row.place}: a choice must be a text that isn't empty, got {text!r}"
            )
    if len(found) < LEAST_CHOICES:
        raise ConfigurationError(f"{row.place}: there must be at least two choices, got {found!r}")
    return cast(Sequence[str], found)


def _highest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


@dataclass(kw_only=True)
class ContextChoiceSuite(ChoiceSuite):
    """The choices are contexts, and each is scored by the same continuation after it.

    A solved row is its right context with the continuation; the prompt that a sample shows is the
    right one too.
    """

    @abstractmethod
    def continuation_text(self, row: Row) -> str:
        """Return the text that is scored after each context, without the delimiter before it."""
        ...

    def question_text(self, row: Row) -> str:
        contexts = check_choices(row, self.choice_texts(row))
        return contexts[self.gold_index(row, contexts)]

    def answer_text(self, row: Row) -> str:
        return self.continuation_text(row)

    def sample(self, fewshot: FewshotRow) -> ChoiceSample:
        row = fewshot.row
        contexts: Sequence[str] = check_choices(row, self.choice_texts(row))
        gold = self.gold_index(row, contexts)
        prompts = [self.build_prompt(fewshot, context) for context in contexts]
        continuation = self.continuation_text(row)
        requests = [self.request(prompt, continuation) for prompt in prompts]
        return ChoiceSample(row.index, prompts[gold], contexts[gold], requests, contexts, gold)


@dataclass(kw_only=True)
class SeveralRightSuite(ChoiceSuite):
    """Several choices may be right: the score is their share of the probability of all choices.

    `acc` is `Σ exp(logprob)` of the right choices over that of all, as lm-evaluation-harness 0.4.13
    computes it for `truthfulqa_mc2`; here it also holds where each probability is too small for a
    float.
    """

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return {"acc": "The probability of the right choices, as a share of that of all choices."}

    @abstractmethod
    def right_indices(self, row: Row, choices: Sequence[str]) -> Sequence[int]:
        """Return the indices of the right choices, at least one."""
        ...

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return self.right_indices(row, choices)[0]

    def sample(self, fewshot: FewshotRow) -> ChoiceSample:
        sample = super().sample(fewshot)
        sample.right = self.right_indices(fewshot.row, sample.choices)
        return sample

    def score(self, sample: ChoiceSample, answers: Sequence[LoglikelihoodOutput]) -> Score:
        score = super().score(sample, answers)
        largest = max(answer.logprob for answer in answers)
        weights = [math.exp(answer.logprob - largest) for answer in answers]
        share = math.fsum(weights[index] for index in sample.right) / math.fsum(weights)
        score.measures = {"acc": Measure(share)}
        score.extracted = {**score.extracted, "right": list(sample.right)}
        return score


_OVER_ALL: dict[str, Metric] = {"f1": F1(), "mcc": MatthewsCorrelation()}


@dataclass(kw_only=True)
class ClassificationSuite(ChoiceSuite):
    """The choices are the `classes`, the same for every row; the column `label` holds an index.

    In addition to `ChoiceSuite`'s metrics there are `f1` of the class with index 1 and `mcc`, the
    Matthews correlation, both of the choice that `acc` judges. A row without an answer counts as
    classified wrongly.
    """

    classes: ClassVar[Sequence[str]]
    known_metrics: ClassVar[Sequence[str]] = (*ChoiceSuite.known_metrics, *_OVER_ALL)

    def make_metrics(self) -> Mapping[str, Metric]:
        return {**super().make_metrics(), **self._over_all}

    def choice_texts(self, row: Row) -> Sequence[str]:
        return self.classes

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return row.index_in("label", len(choices))

    def measures(
        self, sample: ChoiceSample, chosen: Mapping[str, int]
    ) -> Mapping[str, Measure | None]:
        pair = make_prediction(chosen["acc"], sample.gold)
        by_choice = {**chosen, **dict.fromkeys(self._over_all, chosen["acc"])}
        return {**super().measures(sample, by_choice), **dict.fromkeys(self._over_all, pair)}

    def failure(self, sample: ChoiceSample) -> Mapping[str, Measure]:
        wrong = make_wrong_prediction(sample.gold, len(sample.choices))
        return {**super().failure(sample), **dict.fromkeys(self._over_all, wrong)}

    @property
    def _over_all(self) -> Mapping[str, Metric]:
        return {name: metric for name, metric in _OVER_ALL.items() if name in self.metric_names}


@dataclass(kw_only=True)
class MultipleChoice(LocalQuestions, ChoiceSuite):
    """Each choice is scored as a continuation of the prompt; the most likely one is the answer.

    `choices` is the column that holds a list of texts, or a list of texts with `{column}` in them.
    `target` is the column of the right one: its index, or its text. The metrics are all four of
    `ChoiceSuite`.
    """

    metric_names: ClassVar[Sequence[str]] = ChoiceSuite.known_metrics

    choices: Annotated[
        str | Sequence[str],
        Field(
            description="Column that contains a list of texts, or a list of texts with {column} in "
            "them."
        ),
    ]
    target: Annotated[
        str,
        Field(
            description="Column of the right choice: its index from 0, or its text. Where the "
            "choices are columns of their own, a number that could be either is refused."
        ),
    ]

    def check_options(self) -> None:
        super().check_options()
        _ = self.prompt_template, self._choice_templates
        if not self.choices:
            raise self.wrong("choices", "must not be empty")
        if not isinstance(self.choices, str) and len(self.choices) < LEAST_CHOICES:
            raise self.wrong("choices", "must hold at least two texts to choose from")

    def choice_texts(self, row: Row) -> Sequence[str]:
        if (templates := self._choice_templates) is not None:
            if row.columns.keys() >= set(self.choices):
                self._refuse_names(row)
            return [template.render(row) for template in templates]
        found = row[str(self.choices)]
        if not isinstance(found, list | tuple) or not found:
            hint = (
                '; in a table name one column for each choice: choices: ["{a}", "{b}"]'
                if isinstance(found, str)
                else ""
            )
            raise ConfigurationError(
                f"{row.place}: column {self.choices!r} holds no list of choices, but {found!r}"
                f"{hint}"
            )
        return list(cast(Sequence[Any], found))

    def measures(
        self, sample: ChoiceSample, chosen: Mapping[str, int]
    ) -> Mapping[str, Measure | None]:
        """As `ChoiceSuite.measures`; a choice whose text is the right one's is right as well."""
        right = sample.choices[sample.gold]
        return {
            name: Measure(float(sample.choices[chosen[name]] == right))
            for name in self.metric_names
        }

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        value = row[self.target]
        # A bool is an int too, but true is as likely the first of "yes" and "no".
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_text = isinstance(value, str) or (is_number and self._choice_templates is not None)
        if is_text and (text := str(value)) in choices:
            _check_meaning(row, self.target, value, choices)
            return choices.index(text)
        if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_INDEX:
            value = int(value)  # a table has texts alone
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
            return value
        raise ConfigurationError(
            f"{row.place}: column {self.target!r} holds {value!r}, which is neither the text of a "
            f"choice nor an index from 0 to {len(choices) - 1}{_hint_letters(value, len(choices))}"
        )

    def _refuse_names(self, row: Row) -> None:
        """Refuse choices that are names of columns, unless the prompt shows such a column."""
        asked = self.question_text(row)
        if not any(str(row[name]) in asked for name in self.choices):
            listed = ", ".join(f'"{{{name}}}"' for name in self.choices)
            raise ConfigurationError(
                f"{row.place}: choices are names of columns ({', '.join(self.choices)}); for their "
                f"texts write choices: [{listed}]; for the names themselves show the columns in "
                "the prompt, or rename them"
            )

    @cached_property
    def _choice_templates(self) -> list[Template] | None:
        if isinstance(self.choices, str):
            return None
        return [parse_template(text, "choices") for text in self.choices]


def _check_meaning(row: Row, column: str, value: str | float, choices: Sequence[str]) -> None:
    """Refuse a number that is a choice and the index of another.

    A text is one or the other in a row whose columns have types.
    """
    text = str(value)
    index = int(text) if text.isdecimal() and len(text) <= _LONGEST_INDEX else len(choices)
    has_types = not all(isinstance(found, str) for found in row.columns.values())
    if (isinstance(value, str) and has_types) or index >= len(choices) or choices[index] == text:
        return
    raise ConfigurationError(
        f"{row.place}: column {column!r} holds {value!r}, which is the text of choice "
        f"{choices.index(text)} and the index of {choices[index]!r:.80}; make a .jsonl file of "
        'the rows, with a list of the choices in a column: there 1 is an index and "1" a text'
    )


def _hint_letters(value: object, count: int) -> str:
    letters = ascii_uppercase[:count]
    if not isinstance(value, str) or len(value) != 1 or value not in letters:
        return ""
    return (
        f"; write its index ({value} is {letters.index(value)}), or show the letters in the prompt "
        f"and choose among them: choices: [{', '.join(letters)}]"
    )
