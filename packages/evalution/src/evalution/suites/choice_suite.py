"""Which of several answers the model finds most likely."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from evalution.rows.local import Row
from evalution.scoring.metrics import Mean, Measure, Metric, Score
from evalution.suites.prompted_suite import PromptedSuite
from evalution.suites.selection import Case
from evalution.suites.suite import RequestKind, Sample
from evalution_core import ConfigurationError, LoglikelihoodOutput, LoglikelihoodRequest, Message

LEAST_CHOICES = 2


@dataclass(slots=True)
class ChoiceSample(Sample):
    """A question with its choices; `gold` is the index of the right one.

    `subset` is the part of the suite that it belongs to.
    """

    choices: Sequence[str]
    gold: int
    subset: str = ""


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

    @abstractmethod
    def choice_texts(self, row: Row) -> Sequence[str]:
        """The choices of a row, without the delimiter before them."""
        ...

    @abstractmethod
    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        """Which choice is right."""
        ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return dict.fromkeys(self.metric_names, Mean())

    def sample(self, case: Case) -> ChoiceSample:
        row = case.row
        choices = checked_choices(row, self.choice_texts(row))
        gold = self.gold_index(row, choices)
        prompt = self.prompt_of(case)
        requests = [self.request(prompt, choice) for choice in choices]
        return ChoiceSample(
            row.index, prompt, choices[gold], requests, choices, gold, subset=row.subset
        )

    def answer_text(self, row: Row) -> str:
        choices = checked_choices(row, self.choice_texts(row))
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
        extracted = {name: index for name, index in chosen.items() if name in self.metric_names}
        return Score(
            self.measures(sample, chosen),
            sample.choices[chosen["acc"]],
            {**extracted, "logprobs": sums},
        )

    def measures(
        self, sample: ChoiceSample, chosen: Mapping[str, int]
    ) -> Mapping[str, Measure | None]:
        """What a sample adds to each metric, from the choice made by each of the four rules."""
        return {name: Measure(float(chosen[name] == sample.gold)) for name in self.metric_names}

    def request(self, prompt: str | list[Message], choice: str) -> LoglikelihoodRequest:
        """The request that scores `choice` after `prompt`."""
        if isinstance(prompt, str):
            return LoglikelihoodRequest(prompt, self.target_delimiter + choice)
        return LoglikelihoodRequest(continuation=choice, messages=prompt)


def checked_choices(row: Row, found: Sequence[Any]) -> Sequence[str]:
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
