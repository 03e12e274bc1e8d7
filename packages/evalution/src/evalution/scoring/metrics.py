"""Scores over samples, each with its standard error.

The same values give the same digits in whatever order they came: sums are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Measure(NamedTuple):
    """What one sample adds to a metric; a plain mean leaves the weight at one."""

    value: float
    weight: float = 1.0


@dataclass(slots=True)
class Score:
    """What the answers of a sample are worth: a measure for each of the suite's metrics.

    None is for a metric that the sample says nothing of, such as another subset's. `extracted` is
    what was compared with the target, by metric or by filter. `remark` is what makes the answer
    worth a look, to follow "3 of 20 samples"; a run tells each one once a suite, with the count.
    """

    measures: Mapping[str, Measure | None]
    prediction: str | None = None
    extracted: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remark: str | None = None


class Estimate(NamedTuple):
    """A score and its standard error; None where too few samples allow one."""

    value: float | None
    stderr: float | None


class Metric(Protocol):
    """How samples become one score."""

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def failed(self) -> float | None:
        """What a sample whose request failed counts as; None leaves it out."""
        ...

    def of_sample(self, measure: Measure) -> float:
        """The metric of that sample alone, as its line in `samples.jsonl` shows it."""
        ...

    def estimate(self, measures: Sequence[Measure]) -> Estimate: ...


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean, with the sample standard deviation over √n: lm-evaluation-harness's `mean_stderr`.

    With `failed=0.0`, the default, a failed request counts as a wrong answer.
    """

    higher_is_better: bool = True
    failed: float | None = 0.0

    def of_sample(self, measure: Measure) -> float:
        return measure.value

    def estimate(self, measures: Sequence[Measure]) -> Estimate:
        count = len(measures)
        if not count:
            return Estimate(None, None)
        mean = math.fsum(measure.value for measure in measures) / count
        if count == 1:
            return Estimate(mean, None)
        squares = math.fsum((measure.value - mean) ** 2 for measure in measures)
        return Estimate(mean, math.sqrt(squares / (count - 1) / count))


@dataclass(frozen=True, slots=True)
class WeightedPerplexity:
    """`exp(-Σ logprob / Σ weight)`, the weight being a text's words or bytes.

    With a weight of one it is the perplexity of single answers. The standard error is by the delta
    method: that of the ratio, times the slope of `exp(-ratio)`. lm-evaluation-harness bootstraps.
    """

    higher_is_better: bool = False
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        return _exp(-measure.value / measure.weight)

    def estimate(self, measures: Sequence[Measure]) -> Estimate:
        ratio, stderr = ratio_of_totals(measures)
        if ratio is None:
            return Estimate(None, None)
        value = _exp(-ratio)
        if stderr is None or math.isinf(value):
            return Estimate(value, None)
        return Estimate(value, stderr * value)


@dataclass(frozen=True, slots=True)
class BitsPerWeight:
    """`-Σ logprob / Σ weight` in bits; the standard error as in `WeightedPerplexity`."""

    higher_is_better: bool = False
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        return -measure.value / measure.weight / math.log(2)

    def estimate(self, measures: Sequence[Measure]) -> Estimate:
        ratio, stderr = ratio_of_totals(measures)
        if ratio is None:
            return Estimate(None, None)
        return Estimate(-ratio / math.log(2), None if stderr is None else stderr / math.log(2))


def ratio_of_totals(measures: Sequence[Measure]) -> Estimate:
    """`Σ value / Σ weight` and its standard error; None for the ratio where the weights are zero.

    Cochran, Sampling Techniques, 3rd ed. 1977, §6.4: residuals `value - ratio·weight`, over n - 1.
    """
    total = math.fsum(measure.weight for measure in measures)
    if not total:
        return Estimate(None, None)
    ratio = math.fsum(measure.value for measure in measures) / total
    count = len(measures)
    if count == 1 or not math.isfinite(ratio):
        return Estimate(ratio, None)
    squares = math.fsum((m.value - ratio * m.weight) ** 2 for m in measures)
    return Estimate(ratio, math.sqrt(squares * count / (count - 1)) / total)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 709.0 else math.inf
