"""How well the model predicts texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evalution.metrics import BitsPerWeight, Measure, Metric, WeightedPerplexity
from evalution.prompts import Template, text_of
from evalution.suites.row_suite import RowSuite
from evalution.suites.suite import RequestKind, Sample, Score
from evalution_core import (
    ConfigurationError,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)

_METRICS: dict[str, Metric] = {
    "word_perplexity": WeightedPerplexity(),
    "byte_perplexity": WeightedPerplexity(),
    "bits_per_byte": BitsPerWeight(),
}
_SPACES = re.compile(r"\s+")


@dataclass(kw_only=True)
class Perplexity(RowSuite[Sample, RollingLoglikelihoodOutput]):
    r"""Each row's text is scored token by token, however long it is.

    `text` is a column's name, or a text with `{column}` in it. The metrics are those of
    lm-evaluation-harness 0.4.13's rolling tasks over all texts together: `word_perplexity` and
    `byte_perplexity` are `exp(-Σ logprob / Σ words)` and bytes, `bits_per_byte` the latter in bits.
    Words are what `re.split(r"\s+", text)` gives, bytes are those of UTF-8.
    """

    request_kind = RequestKind.ROLLING

    text: str

    def check_options(self) -> None:
        super().check_options()
        _ = self._template

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _METRICS

    def samples(self, limit: int | None = None) -> Iterator[Sample]:
        for row in self.rows(limit):
            text = self._template.render(row)
            if not text:
                raise ConfigurationError(f"{row.place}: the text is empty")
            yield Sample(row.index, "", text, [RollingLoglikelihoodRequest(text)])

    def score(self, sample: Sample, answers: Sequence[RollingLoglikelihoodOutput]) -> Score:
        logprob = answers[0].logprob
        words = Measure(logprob, len(_SPACES.split(sample.target)))
        octets = Measure(logprob, len(sample.target.encode()))
        return Score(
            {"word_perplexity": words, "byte_perplexity": octets, "bits_per_byte": octets},
            extracted={"logprob": logprob, "words": words.weight, "bytes": octets.weight},
        )

    @cached_property
    def _template(self) -> Template:
        return text_of(self.text, "text")
