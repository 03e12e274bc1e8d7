"""Whether the text a model writes is the right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from evalution.counts import count_problem
from evalution.rows.local import Row
from evalution.scoring.filters import Filter, apply_filters
from evalution.scoring.metrics import Mean, Measure, Metric, Score
from evalution.suites.prompted_suite import PromptedSuite
from evalution.suites.selection import Case
from evalution.suites.suite import RequestKind, Sample
from evalution_core import GenerationOutput, GenerationRequest, Message

EXACT_MATCH = "exact_match"


@dataclass(slots=True)
class AnswerSample(Sample):
    """A question with the answer it is compared with, filtered."""

    expected: str


@dataclass(kw_only=True)
class GenerationSuite(PromptedSuite[AnswerSample, GenerationOutput]):
    """The model completes the prompt; an answer is right if it equals the row's, after filters.

    Each pipeline of `pipelines` runs on the model's text and gives a metric of its name;
    `reference_filters` run on `answer_text`. Nothing else is changed, not even spaces at the ends.
    Decoding is greedy and ends at a `stop` or after `max_new_tokens`.
    """

    request_kind = RequestKind.GENERATION
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {EXACT_MATCH: ()}
    reference_filters: ClassVar[Sequence[Filter]] = ()

    max_new_tokens: int = 256
    stop: Sequence[str] = ()

    def check_options(self) -> None:
        super().check_options()
        if problem := count_problem(self.max_new_tokens, least=1):
            raise self.wrong("max_new_tokens", problem)
        if "" in self.stop:
            raise self.wrong("stop", "must hold no empty text")

    @property
    def answer_pipelines(self) -> Mapping[str, Sequence[Filter]]:
        """The filters that run on an answer, by the metric they serve."""
        return self.pipelines

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {name: Mean() for name in self.answer_pipelines}

    def expected_text(self, row: Row) -> str:
        """What a right answer is equal to, after filters."""
        return apply_filters(self.reference_filters, self.answer_text(row))

    def sample(self, case: Case) -> AnswerSample:
        row, prompt = case.row, self.prompt_of(case)
        requests = [self._request(prompt)]
        return AnswerSample(
            row.index, prompt, self.answer_text(row), requests, self.expected_text(row)
        )

    def score(self, sample: AnswerSample, answers: Sequence[GenerationOutput]) -> Score:
        text = answers[0].text
        extracted = {
            name: apply_filters(steps, text) for name, steps in self.answer_pipelines.items()
        }
        measures = {
            name: Measure(float(answer == sample.expected)) for name, answer in extracted.items()
        }
        return Score(measures, text, extracted)

    def _request(self, prompt: str | list[Message]) -> GenerationRequest:
        if isinstance(prompt, str):
            return GenerationRequest(prompt, stop=self.stop, max_new_tokens=self.max_new_tokens)
        return GenerationRequest(
            messages=prompt, stop=self.stop, max_new_tokens=self.max_new_tokens
        )
