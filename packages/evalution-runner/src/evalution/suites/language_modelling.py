"""Suites that score given texts: one continuation, or whole documents."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.metrics import (
    BitsPerWeight,
    Mean,
    Measure,
    Metric,
    Score,
    WeightedPerplexity,
)
from evalution.suites.prompted_suite import PromptedSuite, Template, parse_text
from evalution.suites.row_suite import FewshotRow, LocalRows, RowSuite
from evalution.suites.suite import Sample
from evalution_core import (
    ConfigurationError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.kinds import RequestKind

_CONTINUATION_METRICS: dict[str, Metric] = {"acc": Mean(), "perplexity": WeightedPerplexity()}


@dataclass(kw_only=True)
class ContinuationSuite(PromptedSuite[Sample, LoglikelihoodOutput]):
    """`answer_text` is scored after the prompt as it is: no delimiter stands before it.

    Metrics: `acc` is whether greedy decoding would write it, `perplexity` `exp` of the mean
    negative log-probability of a row's whole answer, as lm-evaluation-harness 0.4.13 has them.
    """

    request_kind = RequestKind.LOGLIKELIHOOD

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return {
            "acc": "Greedy decoding would write the answer.",
            "perplexity": "e to the mean loss of a whole answer in nats.",
        }

    def make_metrics(self) -> Mapping[str, Metric]:
        return _CONTINUATION_METRICS

    def sample(self, fewshot: FewshotRow) -> Sample:
        prompt, answer = self.build_prompt(fewshot), self.answer_text(fewshot.row)
        request = (
            LoglikelihoodRequest(prompt, answer)
            if isinstance(prompt, str)
            else LoglikelihoodRequest(continuation=answer, messages=prompt)
        )
        return Sample(fewshot.row.index, prompt, answer, [request])

    def score(self, sample: Sample, answers: Sequence[LoglikelihoodOutput]) -> Score:
        (answer,) = answers
        if answer.is_greedy is None:
            raise ValueError("the engine doesn't say whether the continuation is greedy")
        measures = {
            "acc": Measure(float(answer.is_greedy)),
            "perplexity": Measure(answer.logprob),
        }
        return Score(measures, extracted={"logprob": answer.logprob})


_ROLLING_METRICS: dict[str, Metric] = {
    "word_perplexity": WeightedPerplexity(),
    "byte_perplexity": WeightedPerplexity(),
    "bits_per_byte": BitsPerWeight(),
}
_SPACES = re.compile(r"\s+")


@dataclass(slots=True)
class TextSample(Sample):
    """A text to be scored, with the counts of words and bytes that its score is divided by."""

    words: int
    octets: int


@dataclass(kw_only=True)
class PerplexitySuite(RowSuite[TextSample, RollingLoglikelihoodOutput]):
    r"""Each row's text is scored token by token, however long it is.

    The metrics are those of lm-evaluation-harness 0.4.13's rolling tasks over all texts together:
    `word_perplexity` and `byte_perplexity` are `exp(-Σ logprob / Σ words)` and bytes,
    `bits_per_byte` the latter in bits. Words are what `re.split(r"\s+", text)` gives, bytes are
    those of UTF-8.
    """

    request_kind = RequestKind.ROLLING

    @abstractmethod
    def scored_text(self, row: Row) -> str:
        """The text that is scored."""
        ...

    def counted_text(self, row: Row) -> str:
        """The text whose words and bytes count: the scored one unless a suite says otherwise."""
        return self.scored_text(row)

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return {
            "word_perplexity": "e to the mean loss in nats per word.",
            "byte_perplexity": "e to the mean loss in nats per byte.",
            "bits_per_byte": "The mean loss per byte in bits.",
        }

    def make_metrics(self) -> Mapping[str, Metric]:
        return _ROLLING_METRICS

    def sample(self, fewshot: FewshotRow) -> TextSample:
        row = fewshot.row
        text, counted = self.scored_text(row), self.counted_text(row)
        if not text:
            raise ConfigurationError(f"{row.place}: the text is empty")
        return TextSample(
            row.index,
            "",
            text,
            [RollingLoglikelihoodRequest(text)],
            words=len(_SPACES.split(counted)),
            octets=len(counted.encode()),
        )

    def score(self, sample: TextSample, answers: Sequence[RollingLoglikelihoodOutput]) -> Score:
        logprob = answers[0].logprob
        words, octets = Measure(logprob, sample.words), Measure(logprob, sample.octets)
        return Score(
            {"word_perplexity": words, "byte_perplexity": octets, "bits_per_byte": octets},
            extracted={"logprob": logprob, "words": sample.words, "bytes": sample.octets},
        )


@dataclass(kw_only=True)
class Perplexity(LocalRows, PerplexitySuite):
    """Each row's `text`, a column's name or a text with `{column}` in it, is scored as a whole.

    Metrics are those of `PerplexitySuite`.
    """

    text: Annotated[
        str, Field(description="Text to score: a column, or a text with {column} in it.")
    ]

    def check_options(self) -> None:
        super().check_options()
        _ = self._template

    def scored_text(self, row: Row) -> str:
        return self._template.render(row)

    @cached_property
    def _template(self) -> Template:
        return parse_text(self.text, "text")
