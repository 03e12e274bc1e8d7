"""Suites of translations, scored over the whole corpus by sacreBLEU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

from evalution.hints import import_extra
from evalution.results import MetricResult
from evalution.scoring.filters import Filter
from evalution.scoring.intervals import NORMAL_QUANTILE
from evalution.scoring.metrics import Measure, Metric, MetricAccumulator, Score
from evalution.suites.generation_suite import AnswerSample, GenerationSuite
from evalution.suites.row_suite import FewshotRow

_METRICS = {
    "bleu": "Corpus BLEU, 0 to 100: runs of up to four words in common.",
    "ter": "Corpus TER: edits in a hundred words of the reference; lower is better.",
    "chrf": "Corpus chrF, 0 to 100: runs of up to six characters in common.",
}
_LOWER_IS_BETTER = {"ter"}
_RESAMPLES = 1000
_DIGITS = 9


@dataclass(slots=True)
class TranslationScore(Score):
    """A translation with its reference, for scores that only the corpus has."""

    translation: str = ""
    reference: str = ""


@dataclass(kw_only=True)
class TranslationSuite(GenerationSuite):
    """The model translates a text; the corpus of all answers is scored by sacreBLEU (extra text).

    A row's line shows the same metrics of that row alone. The interval is sacreBLEU's bootstrap
    over rows. A row whose request failed isn't counted.
    """

    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {}

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return _METRICS

    def check_options(self) -> None:
        super().check_options()
        if self.group is not None:
            raise self.wrong("group", "must be left out: sacreBLEU's bootstrap draws single rows")

    def make_metrics(self) -> Mapping[str, Metric]:
        return {}

    def make_accumulator(self) -> MetricAccumulator:
        return CorpusAccumulator()

    def sample(self, fewshot: FewshotRow) -> AnswerSample:
        _load_metrics()
        return super().sample(fewshot)

    def grade_answer(self, sample: AnswerSample, text: str, answer: str) -> TranslationScore:
        return TranslationScore({}, text, {}, (), answer, sample.expected)


class CorpusAccumulator:
    """Collects translations and references, and scores them together."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[str, str]] = {}

    def record(self, index: int, score: Score, group: str | None = None) -> Mapping[str, float]:
        assert isinstance(score, TranslationScore)
        self._pairs[index] = (score.translation, score.reference)
        return {
            name: metric.sentence_score(score.translation, [score.reference]).score
            for name, metric in _load_row_metrics().items()
        }

    def fail(
        self, index: int, measures: Mapping[str, Measure], group: str | None = None
    ) -> Mapping[str, float]:
        return {}

    @property
    def running(self) -> tuple[str, float] | None:
        return None

    def results(self) -> dict[str, MetricResult]:
        pairs = [self._pairs[index] for index in sorted(self._pairs)]
        return {
            name: _score_corpus(metric, pairs, higher_is_better=name not in _LOWER_IS_BETTER)
            for name, metric in _load_metrics().items()
        }


def _score_corpus(
    metric: Any, pairs: Sequence[tuple[str, str]], *, higher_is_better: bool
) -> MetricResult:
    if not pairs:
        return MetricResult(None, None, higher_is_better, 0, row_range=None)
    translations, references = ([pair[side] for pair in pairs] for side in (0, 1))
    resamples = _RESAMPLES if len(pairs) > 1 else 1
    found = metric.corpus_score(translations, [references], n_bootstrap=resamples)
    bounds = json.loads(found.format(width=_DIGITS, signature="a:b", is_json=True))
    if not (margin := bounds.get("confidence_var")):
        return MetricResult(found.score, None, higher_is_better, len(pairs), row_range=None)
    mean = bounds["confidence_mean"]
    most = 100.0 if higher_is_better else math.inf
    interval = (max(0.0, mean - margin), min(most, mean + margin))
    known = (higher_is_better, len(pairs), interval)
    return MetricResult(found.score, margin / NORMAL_QUANTILE, *known, row_range=None)


@cache
def _load_metrics() -> Mapping[str, Any]:
    library = _import_library()
    found = {"bleu": library.BLEU(), "ter": library.TER(), "chrf": library.CHRF()}
    for metric in found.values():
        # Its bootstrap averages the floats of 32 bits that numpy 2 gives beside Python's, which
        # `statistics.mean` refuses: sacreBLEU 2.6.0.
        compute = metric._compute_score_from_stats
        metric._compute_score_from_stats = partial(_compute_float, compute)
    return found


def _compute_float(compute: Callable[[Any], Any], statistics: Any) -> Any:
    found = compute(statistics)
    found.score = float(found.score)
    return found


@cache
def _load_row_metrics() -> Mapping[str, Any]:
    """Return metrics of single rows: a BLEU whose row may be shorter than four words."""
    return {**_load_metrics(), "bleu": _import_library().BLEU(effective_order=True)}


def _import_library() -> Any:
    return import_extra("sacrebleu.metrics", "text", "a suite of translations", "sacrebleu")
