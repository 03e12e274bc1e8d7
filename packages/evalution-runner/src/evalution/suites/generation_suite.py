"""Suites that compare the text a model writes with the right answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, InstanceOf

from evalution.rows.local import Row
from evalution.scoring.filters import (
    FILTERS,
    Filter,
    Reasoning,
    ReasoningSplit,
    Regex,
    Strip,
    apply_filters,
    filters_to_yaml,
    parse_filters,
    split_reasoning,
)
from evalution.scoring.metrics import Mean, Measure, Metric, Score
from evalution.scoring.steps import describe_step
from evalution.scoring.text_metrics import (
    ENDS,
    NEAR_MISSES,
    NO_NUMBER,
    NOTHING,
    RIGHT,
    TEXT_METRICS,
    ChoiceLetter,
    EditSimilarity,
    ExactMatch,
    Number,
    TextMetric,
    TokenF1,
    describe_near_misses,
    find_near_misses,
    find_runs_on,
    has_number,
)
from evalution.suites.judge import Judge
from evalution.suites.prompted_suite import LocalQuestions, PromptedSuite, Template, parse_text
from evalution.suites.row_suite import FewshotRow
from evalution.suites.suite import Sample, yaml_form
from evalution.user_input import LARGEST
from evalution_core import ConfigurationError, GenerationOutput, GenerationRequest
from evalution_core.kinds import RequestKind
from evalution_core.requests import Message

EXACT_MATCH = ExactMatch.name
_EXACT_MATCH = ExactMatch()
_THOUGHT_END = "</think>"
_EMPTY_TARGET = (
    "have an empty target, for which an empty answer is right; fill it in unless that is meant "
    "(errors and unsaved formulas of a workbook are empty too)"
)
Stop = Annotated[
    Sequence[str], Field(description="Texts that end an answer; they are no part of it.")
]
MaxNewTokens = Annotated[
    int, Field(ge=1, le=LARGEST, description="Tokens of an answer at most, reasoning included.")
]


class Grading(NamedTuple):
    """The filters that run on an answer, and the metric that then judges it."""

    filters: Sequence[Filter]
    metric: TextMetric


@dataclass(slots=True)
class AnswerSample(Sample):
    """A question with the answer it is compared with, filtered, and the row that it was made of."""

    expected: str
    row: Row


@dataclass(kw_only=True)
class GenerationSuite(PromptedSuite[AnswerSample, GenerationOutput]):
    """The model completes the prompt; an answer is right if it equals the row's, after filters.

    Each pipeline of `pipelines` runs on the model's text and gives a metric of its name;
    `reference_filters` run on `answer_text`. Nothing else is changed, not even spaces at the ends.
    Each of `text_metrics` judges the whole text, by its own rule.
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
    text_metrics: ClassVar[Sequence[TextMetric]] = ()

    max_new_tokens: MaxNewTokens = 256
    stop: Stop = ()
    think_end_token: Annotated[
        str | None,
        Field(
            description="Text that ends a model's reasoning, such as </think>; what follows it is "
            "the answer. None takes the whole text as the answer."
        ),
    ] = None
    judge: Annotated[
        InstanceOf[Judge] | None,
        Field(
            description="Second model that grades each answer by a rubric; its grades are a suite "
            "of their own, NAME-judged."
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

    def to_dict(self) -> dict[str, Any]:
        """As `Suite.to_dict`, without the judge, which changes no answer: it is with its grades."""
        return {name: value for name, value in super().to_dict().items() if name != "judge"}

    @property
    def gradings(self) -> Mapping[str, Grading]:
        """The judgements of an answer, by the name of the metric in results."""
        filtered = {name: Grading(steps, _EXACT_MATCH) for name, steps in self.pipelines.items()}
        return filtered | {metric.name: Grading((), metric) for metric in self.text_metrics}

    def find_gradings(self, row: Row) -> Mapping[str, Grading]:
        """Return the judgements of an answer to `row`, where its filters depend on the row."""
        return self.gradings

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        equal = dict.fromkeys(cls.pipelines, "The answer, after its filters, equals the target.")
        return equal | {metric.name: describe_step(type(metric)) for metric in cls.text_metrics}

    def make_metrics(self) -> Mapping[str, Metric]:
        return {name: Mean(largest=one.metric.largest) for name, one in self.gradings.items()}

    def expected_text(self, row: Row) -> str:
        """Return the text that a right answer is equal to, after filters."""
        return apply_filters(self.reference_filters, self.answer_text(row))

    def sample(self, fewshot: FewshotRow) -> AnswerSample:
        row, prompt = fewshot.row, self.build_prompt(fewshot)
        requests, expected = [self._request(prompt)], self.expected_text(row)
        try:
            for grading in self.gradings.values():
                grading.metric.check_target(expected)
        except ConfigurationError as error:
            raise ConfigurationError(f"{row.place}: {error}") from None
        target = self.answer_text(row)
        if self.judge is not None:  # what its rubric and its labels lack is said before the run
            self.judge.make_requests(row, {"prompt": "", "target": target, "prediction": ""})
            self.judge.read_label(row)
        return AnswerSample(row.index, prompt, target, requests, expected, row)

    def score(self, sample: AnswerSample, answers: Sequence[GenerationOutput]) -> Score:
        written = answers[0]
        if self.think_end_token is None:
            score = self.grade_answer(sample, written.text, written.text)
            score.remarks = [*score.remarks, *self._list_doubts(sample, written, score)]
            return score
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
        score = self.grade_answer(sample, written.text, reply.answer)
        taken = {"answer": reply.answer, "reasoning": reply.reasoning.value}
        score.extracted = {**taken, **score.extracted}
        if remark := self._remark(reply, is_cut_off=is_cut_off):
            score.remarks = [*score.remarks, remark]
        return score

    def grade_answer(self, sample: AnswerSample, text: str, answer: str) -> Score:
        """Return the score of an answer; `text` is all that was written, a thought included."""
        extracted: dict[str, str] = {}
        measures: dict[str, Measure] = {}
        remarks: list[str] = []
        takes_empty = False
        heads = [answer.partition(end)[0] for end in ENDS]
        for name, (filters, metric) in self.find_gradings(sample.row).items():
            filtered = apply_filters(filters, answer)
            found = extracted[name] = metric.extract(filtered)
            worth = metric.grade(found, sample.expected)
            measures[name] = Measure(worth)
            if name == EXACT_MATCH and isinstance(metric, ExactMatch):
                remarks = [RIGHT]
                if not worth:
                    begun = [apply_filters(filters, h) if h != answer else filtered for h in heads]
                    remarks = find_near_misses(filtered, sample.expected, begun)
                if not has_number(sample.expected):
                    remarks.append(NO_NUMBER)
            elif isinstance(metric, ChoiceLetter | Number) and len(measures) == 1:
                begun = [] if worth else [apply_filters(filters, head) for head in heads]
                taken = [metric.extract(text) for text in begun]
                remarks = find_runs_on(worth, [metric.grade(t, sample.expected) for t in taken])
            if found == NOTHING:
                remarks.append(f"hold nothing that {name} finds")
            takes_empty |= isinstance(metric, ExactMatch | TokenF1 | EditSimilarity)
        if takes_empty and self.judge is None and not sample.expected:
            remarks.append(_EMPTY_TARGET)
        return Score(measures, text, extracted, remarks)

    def list_notices(self, remarks: Mapping[str, int], samples: int) -> Iterator[str]:
        shared = {RIGHT, NO_NUMBER, *NEAR_MISSES}
        others = {remark: count for remark, count in remarks.items() if remark not in shared}
        yield from super().list_notices(others, samples)
        yield from describe_near_misses(remarks, samples)

    def _list_doubts(
        self, sample: AnswerSample, written: GenerationOutput, score: Score
    ) -> Iterator[str]:
        """Yield reasons other than the model for which an answer may be wrong."""
        name, measure = next(iter(score.measures.items()), ("", None))
        grading = self.find_gradings(sample.row).get(name)
        if measure is None or grading is None or measure.value >= grading.metric.largest:
            return
        if written.finish_reason == "length":
            score.extracted = {**score.extracted, "finish_reason": "length"}
            yield (
                f"aren't right and reached max_new_tokens ({self.max_new_tokens}), so the answer "
                "may be cut off; raise it then"
            )
        if not written.text.strip():
            yield "are empty answers"
        if _THOUGHT_END in written.text:
            yield f"contain {_THOUGHT_END}, so the thought is graded too; set think_end_token"

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
    """The model completes the prompt; `metrics` judge its answer by the target.

    `target` is a column's name, or a text with `{column}` in it. Before that `filters` run on the
    answer and `target_filters` on the target; by default both are stripped of white space at their
    ends, and nothing else is changed. Named pipelines (`{strict: [...], loose: [...]}`) each give
    metrics of their own, `exact_match,<name>`. Decoding is greedy and ends at a `stop` or after
    `max_new_tokens`.

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
            "steps, each with metrics of its own."
        ),
    ] = field(default=(Strip(),), metadata=yaml_form(parse_filters, filters_to_yaml))
    target_filters: Annotated[
        Sequence[Filter],
        Field(description="Steps that run on the target before it is compared."),
    ] = field(default=(Strip(),), metadata=yaml_form(FILTERS.parse, FILTERS.to_yaml))
    metrics: Annotated[
        Sequence[TextMetric],
        Field(description="What the answer is judged by, the main metric first."),
    ] = field(default=(ExactMatch(),), metadata=yaml_form(TEXT_METRICS.parse, TEXT_METRICS.to_yaml))

    def check_options(self) -> None:
        super().check_options()
        _ = self.prompt_template, self._target_template
        if isinstance(self.filters, Mapping) and not self.filters:
            raise self.wrong("filters", "must name at least one pipeline")
        names = [metric.name for metric in self.metrics]
        if not names or len(set(names)) < len(names):
            raise self.wrong("metrics", "must name at least one metric, and each once")

    @property
    def gradings(self) -> Mapping[str, Grading]:
        return self._gradings

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return TEXT_METRICS.describe()

    def answer_text(self, row: Row) -> str:
        return self._target_template.render(row)

    def expected_text(self, row: Row) -> str:
        text = self.answer_text(row)
        for step in self.target_filters:
            found = apply_filters([step], text)
            is_missing = isinstance(step, Regex) and found == Regex.fallback != text
            if is_missing or (text.strip() and not found.strip()):
                raise ConfigurationError(
                    f"{row.place}: filter {type(step).__name__} of target_filters leaves nothing "
                    f"of the target {text!r:.80}, so an answer that it empties would be right; "
                    "mend the target or the filter"
                )
            text = found
        return text

    @cached_property
    def _target_template(self) -> Template:
        return parse_text(self.target, "target")

    @cached_property
    def _gradings(self) -> Mapping[str, Grading]:
        named = self.filters if isinstance(self.filters, Mapping) else {"": self.filters}
        return {
            f"{metric.name},{name}" if name else metric.name: Grading(steps, metric)
            for metric in self.metrics
            for name, steps in named.items()
        }
