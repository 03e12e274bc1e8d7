"""Which of several answers the model finds most likely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from evalution.metrics import Mean, Measure, Metric
from evalution.prompts import Template, parse_template
from evalution.rows import Row
from evalution.suites.row_suite import PromptedSuite
from evalution.suites.suite import RequestKind, Sample, Score
from evalution_core import ConfigurationError, LoglikelihoodOutput, LoglikelihoodRequest


@dataclass(slots=True)
class ChoiceSample(Sample):
    """A question with its choices; `gold` is the index of the right one."""

    choices: Sequence[str]
    gold: int


_LEAST_CHOICES = 2

_METRICS: dict[str, Metric] = {
    "acc": Mean(),
    "acc_norm": Mean(),
    "acc_bytes": Mean(),
    "acc_token": Mean(),
}


@dataclass(kw_only=True)
class MultipleChoice(PromptedSuite[ChoiceSample, LoglikelihoodOutput]):
    """Each choice is scored as a continuation of the prompt; the most likely one is the answer.

    `choices` is the column that holds a list of texts, or a list of texts with `{column}` in them.
    `target` is the column of the right one: its index, or its text.

    Metrics: `acc` compares the choices' log-probabilities, `acc_norm` divides them by the length
    in characters and `acc_bytes` in UTF-8 bytes (as lm-evaluation-harness 0.4.13 names them),
    `acc_token` in tokens. The first of equals counts. In a chat, `target_delimiter` is left out.
    """

    request_kind = RequestKind.LOGLIKELIHOOD

    choices: str | Sequence[str]
    target: str

    def check_options(self) -> None:
        super().check_options()
        _ = self._choice_templates
        if not self.choices:
            raise self.wrong("choices", "must not be empty")
        if not isinstance(self.choices, str) and len(self.choices) < _LEAST_CHOICES:
            raise self.wrong("choices", "must hold at least two texts to choose from")

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _METRICS

    def samples(self, limit: int | None = None) -> Iterator[ChoiceSample]:
        for row, prompt in self.questions(limit):
            choices = self._choices(row)
            gold = self._gold(row, choices)
            requests = [self._request(prompt, choice) for choice in choices]
            yield ChoiceSample(row.index, prompt, choices[gold], requests, choices, gold)

    def score(self, sample: ChoiceSample, answers: Sequence[LoglikelihoodOutput]) -> Score:
        sums = [answer.logprob for answer in answers]
        pairs = list(zip(answers, sample.choices, strict=True))
        chosen = {
            "acc": _highest(sums),
            "acc_norm": _highest([answer.logprob / len(text) for answer, text in pairs]),
            "acc_bytes": _highest([answer.logprob / len(text.encode()) for answer, text in pairs]),
            "acc_token": _highest([a.logprob / max(a.token_count, 1) for a in answers]),
        }
        measures = {name: Measure(float(index == sample.gold)) for name, index in chosen.items()}
        return Score(measures, sample.choices[chosen["acc"]], {**chosen, "logprobs": sums})

    def answer_text(self, row: Row) -> str:
        choices = self._choices(row)
        return choices[self._gold(row, choices)]

    @cached_property
    def _choice_templates(self) -> list[Template] | None:
        if isinstance(self.choices, str):
            return None
        return [parse_template(text, "choices") for text in self.choices]

    def _request(self, prompt: Any, choice: str) -> LoglikelihoodRequest:
        if self.apply_chat_template:
            return LoglikelihoodRequest(continuation=choice, messages=prompt)
        return LoglikelihoodRequest(prompt, self.target_delimiter + choice)

    def _choices(self, row: Row) -> list[str]:
        templates = self._choice_templates
        if templates is not None:
            found: Any = [template.render(row) for template in templates]
        else:
            found = row[str(self.choices)]
        if isinstance(found, tuple):
            found = list(cast(tuple[Any, ...], found))
        if not isinstance(found, list) or not found:
            raise ConfigurationError(
                f"{row.place}: column {self.choices!r} holds no list of choices, but {found!r}"
            )
        for text in (texts := cast(list[Any], found)):
            if not isinstance(text, str) or not text:
                raise ConfigurationError(
                    f"{row.place}: a choice must be a text that isn't empty, got {text!r}"
                )
        if len(texts) < _LEAST_CHOICES:
            raise ConfigurationError(
                f"{row.place}: there must be at least two choices, got {texts!r}"
            )
        return texts

    def _gold(self, row: Row, choices: Sequence[str]) -> int:
        value = row[self.target]
        if isinstance(value, str) and value in choices:
            return choices.index(value)
        if isinstance(value, int) and 0 <= value < len(choices):
            return int(value)
        raise ConfigurationError(
            f"{row.place}: column {self.target!r} holds {value!r}, which is neither the text of a "
            f"choice nor an index from 0 to {len(choices) - 1}"
        )


def _highest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)
