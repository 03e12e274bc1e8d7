"""How well the model predicts texts."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.scoring.metrics import BitsPerWeight, Measure, Metric, Score, WeightedPerplexity
from evalution.suites.row_suite import RowSuite
from evalution.suites.selection import Case
from evalution.suites.suite import RequestKind, Sample
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

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _METRICS

    def sample(self, case: Case) -> TextSample:
        row = case.row
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
