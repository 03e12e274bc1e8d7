"""Suites that compare the text a model writes with the right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.filters import (
    Filter,
    Reasoning,
    ReasoningSplit,
    apply_filters,
    filters_to_yaml,
    parse_filters,
    parse_steps,
    split_reasoning,
)
from evalution.scoring.metrics import Mean, Measure, Metric, Score
from evalution.suites.prompted_suite import LocalQuestions, PromptedSuite, Template, parse_text
from evalution.suites.row_suite import FewshotRow
from evalution.suites.suite import Sample, yaml_form
from evalution.user_input import LARGEST
from evalution_core import GenerationOutput, GenerationRequest
from evalution_core.kinds import RequestKind
from evalution_core.requests import Message

EXACT_MATCH = "exact_match"
Stop = Annotated[
    Sequence[str], Field(description="Texts that end an answer; they are no part of it.")
]


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

    With a `think_end_token`, such as `</think>`, the answer is what follows the first one, without
    white space at its front, up to a `stop`; no stop ends the thought. `max_new_tokens` count
    both. A thought that outlasts them leaves an empty answer; a text that ends by itself without
    the token is the answer, up to a `stop`. A class with a `score` of its own gets the whole text
    and takes the answer from it with `evalution.scoring.filters.split_reasoning`.
    """

    request_kind = RequestKind.GENERATION
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {EXACT_MATCH: ()}
    reference_filters: ClassVar[Sequence[Filter]] = ()

    max_new_tokens: Annotated[
        int, Field(ge=1, le=LARGEST, description="Tokens of an answer at most, reasoning included.")
    ] = 256
    stop: Stop = ()
    think_end_token: Annotated[
        str | None,
        Field(
            description="Text that ends a model's reasoning, such as </think>; what follows it is "
            "the answer. None takes the whole text as the answer."
        ),
    ] = None

    def check_options(self) -> None:
        super().check_options()
        if "" in self.stop:
            raise self.wrong("stop", "must hold no empty text")
        if self.think_end_token == "":
            raise self.wrong(
                "think_end_token", "must be the text that ends a thought, such as '</think>'"
            )

    @property
    def answer_pipelines(self) -> Mapping[str, Sequence[Filter]]:
        """The filters that run on an answer, by the metric they serve."""
        return self.pipelines

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {name: Mean() for name in self.answer_pipelines}

    def expected_text(self, row: Row) -> str:
        """Return the text that a right answer is equal to, after filters."""
        return apply_filters(self.reference_filters, self.answer_text(row))

    def sample(self, fewshot: FewshotRow) -> AnswerSample:
        row, prompt = fewshot.row, self.build_prompt(fewshot)
        requests = [self._request(prompt)]
        return AnswerSample(
            row.index, prompt, self.answer_text(row), requests, self.expected_text(row)
        )

    def score(self, sample: AnswerSample, answers: Sequence[GenerationOutput]) -> Score:
        written = answers[0]
        if self.think_end_token is None:
            return self._score(sample, written.text, written.text)
        is_cut_off = written.finish_reason == "length"
        # Templates put blank lines behind the token; one that is blank itself is taken as it is.
        closing = self.think_end_token.rstrip() or self.think_end_token
        reply = split_reasoning(
            written.text,
            self.think_end_token,
            self.stop,
            is_cut_off=is_cut_off,
            is_closed=written.prompt.rstrip().endswith(closing),
        )
        score = self._score(sample, written.text, reply.answer)
        taken = {"answer": reply.answer, "reasoning": reply.reasoning.value}
        score.extracted = {**taken, **score.extracted}
        score.remark = self._remark(reply, is_cut_off=is_cut_off)
        return score

    def _score(self, sample: AnswerSample, text: str, answer: str) -> Score:
        extracted = {
            name: apply_filters(steps, answer) for name, steps in self.answer_pipelines.items()
        }
        measures = {
            name: Measure(float(found == sample.expected)) for name, found in extracted.items()
        }
        return Score(measures, text, extracted)

    def _remark(self, reply: ReasoningSplit, *, is_cut_off: bool) -> str | None:
        match reply.reasoning:
            case Reasoning.ENDED | Reasoning.CLOSED:
                if reply.answer or not is_cut_off:
                    return None
                return (
                    f"reached the length limit right behind {self.think_end_token!r}, so the "
                    f"answer is empty; raise max_new_tokens (now {self.max_new_tokens})"
                )
            case Reasoning.UNFINISHED:
                return (
                    f"reached the length limit before {self.think_end_token!r}, so the answer is "
                    f"empty; raise max_new_tokens (now {self.max_new_tokens}), or leave "
                    "think_end_token out if the model does not think"
                )
            case Reasoning.ABSENT:
                return (
                    f"ended without {self.think_end_token!r}, so the whole text is the answer; if "
                    "the model did think, check think_end_token: a special token does not show in "
                    "a text"
                )

    def _request(self, prompt: str | list[Message]) -> GenerationRequest:
        # A stop could end the thought: with one, the answer is cut afterwards.
        stop = self.stop if self.think_end_token is None else ()
        if isinstance(prompt, str):
            return GenerationRequest(prompt, stop=stop, max_new_tokens=self.max_new_tokens)
        return GenerationRequest(messages=prompt, stop=stop, max_new_tokens=self.max_new_tokens)


@dataclass(kw_only=True)
class Generation(LocalQuestions, GenerationSuite):
    """The model completes the prompt; an answer is right if it equals the target.

    `target` is a column's name, or a text with `{column}` in it. Before the comparison `filters`
    run on the answer and `target_filters` on the target; nothing else is changed, not even spaces
    at the ends. Named pipelines (`{strict: [...], loose: [...]}`) each give a metric of their own,
    `exact_match,<name>`. Decoding is greedy and ends at a `stop` or after `max_new_tokens`.

    Of a model that thinks first, `think_end_token` is the text that ends its thought: only what
    follows it, without white space at its front, is the answer, and only there a `stop` counts.
    """

    target: Annotated[
        str, Field(description="Right answer: a column, or a text with {column} in it.")
    ]
    filters: Annotated[
        Sequence[Filter] | Mapping[str, Sequence[Filter]],
        Field(
            description="Steps that run on the answer before it is compared, or named lists of "
            "steps, each with a metric of its own."
        ),
    ] = field(default=(), metadata=yaml_form(parse_filters, filters_to_yaml))
    target_filters: Annotated[
        Sequence[Filter],
        Field(description="Steps that run on the target before it is compared."),
    ] = field(default=(), metadata=yaml_form(parse_steps, filters_to_yaml))

    def check_options(self) -> None:
        super().check_options()
        _ = self.prompt_template, self._target_template
        if isinstance(self.filters, Mapping) and not self.filters:
            raise self.wrong("filters", "must name at least one pipeline")

    @property
    def answer_pipelines(self) -> Mapping[str, Sequence[Filter]]:
        return self._pipelines

    def answer_text(self, row: Row) -> str:
        return self._target_template.render(row)

    def expected_text(self, row: Row) -> str:
        return apply_filters(self.target_filters, self.answer_text(row))

    @cached_property
    def _target_template(self) -> Template:
        return parse_text(self.target, "target")

    @cached_property
    def _pipelines(self) -> Mapping[str, Sequence[Filter]]:
        if isinstance(self.filters, Mapping):
            return {f"{EXACT_MATCH},{name}": steps for name, steps in self.filters.items()}
        return {EXACT_MATCH: self.filters}
