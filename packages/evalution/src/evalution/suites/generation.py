"""Whether the text a model writes is the right answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from evalution.counts import count_problem
from evalution.filters import Filter, apply_filters, declared_filters, parse_filters, parse_steps
from evalution.metrics import Mean, Measure, Metric
from evalution.prompts import Template, text_of
from evalution.rows import Row
from evalution.suites.declaration import parsed_by
from evalution.suites.row_suite import PromptedSuite
from evalution.suites.suite import RequestKind, Sample, Score
from evalution_core import GenerationOutput, GenerationRequest

EXACT_MATCH = "exact_match"


@dataclass(slots=True)
class AnswerSample(Sample):
    """A question with the answer it is compared with, filtered."""

    expected: str


@dataclass(kw_only=True)
class Generation(PromptedSuite[AnswerSample, GenerationOutput]):
    """The model completes the prompt; an answer is right if it equals the target.

    `target` is a column's name, or a text with `{column}` in it. Before the comparison `filters`
    run on the answer and `target_filters` on the target; nothing else is changed, not even spaces
    at the ends. Named pipelines (`{strict: [...], loose: [...]}`) each give a metric of their own,
    `exact_match,<name>`. Decoding is greedy and ends at a `stop` or after `max_new_tokens`.
    """

    request_kind = RequestKind.GENERATION

    target: str
    filters: Sequence[Filter] | Mapping[str, Sequence[Filter]] = field(
        default=(), metadata=parsed_by(parse_filters, declared_filters)
    )
    target_filters: Sequence[Filter] = field(
        default=(), metadata=parsed_by(parse_steps, declared_filters)
    )
    max_new_tokens: int = 256
    stop: Sequence[str] = ()

    def check_options(self) -> None:
        super().check_options()
        _ = self._target_template
        if problem := count_problem(self.max_new_tokens, least=1):
            raise self.wrong("max_new_tokens", problem)
        if "" in self.stop:
            raise self.wrong("stop", "must hold no empty text")
        if isinstance(self.filters, Mapping) and not self.filters:
            raise self.wrong("filters", "must name at least one pipeline")

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {name: Mean() for name in self._pipelines}

    def samples(self, limit: int | None = None) -> Iterator[AnswerSample]:
        for row, prompt in self.questions(limit):
            target = self.answer_text(row)
            expected = apply_filters(self.target_filters, target)
            yield AnswerSample(row.index, prompt, target, [self._request(prompt)], expected)

    def score(self, sample: AnswerSample, answers: Sequence[GenerationOutput]) -> Score:
        text = answers[0].text
        extracted = {name: apply_filters(steps, text) for name, steps in self._pipelines.items()}
        measures = {
            name: Measure(float(answer == sample.expected)) for name, answer in extracted.items()
        }
        return Score(measures, text, extracted)

    def answer_text(self, row: Row) -> str:
        return self._target_template.render(row)

    @cached_property
    def _target_template(self) -> Template:
        return text_of(self.target, "target")

    @cached_property
    def _pipelines(self) -> Mapping[str, Sequence[Filter]]:
        if isinstance(self.filters, Mapping):
            return {f"{EXACT_MATCH},{name}": steps for name, steps in self.filters.items()}
        return {EXACT_MATCH: self.filters}

    def _request(self, prompt: Any) -> GenerationRequest:
        limits: dict[str, Any] = {"stop": self.stop, "max_new_tokens": self.max_new_tokens}
        if self.apply_chat_template:
            return GenerationRequest(messages=prompt, **limits)
        return GenerationRequest(prompt, **limits)
