"""The document of runs against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from evalution.comparison.comparison import (
    Comparison,
    Difference,
    MetricComparison,
    SuiteComparison,
    compare_samples,
)
from evalution.comparison.table import list_remarks
from evalution.redaction import mask_value
from evalution.view.documents import ComparisonDocument, DifferenceDocument
from evalution.view.runs import ViewedRun

_Winner = Literal["run", "baseline", "tie"]
_WINNERS: Mapping[str | None, _Winner | None] = {
    "left": "baseline",
    "right": "run",
    "tie": "tie",
    None: None,
}


def compare_runs(baseline: ViewedRun, runs: Sequence[ViewedRun]) -> ComparisonDocument:
    """Return the paired differences of runs to a baseline, suite by suite; the last are kept.

    Raises:
        ConfigurationError: samples can't be read.
    """
    if baseline.compared is None or baseline.compared[0] != [*runs]:
        found = [
            (run.id, compare_samples(baseline.samples, run.samples, with_texts=False))
            for run in runs
        ]
        baseline.compared = [*runs], make_comparison(baseline.id, found)
    return baseline.compared[1]


def make_comparison(
    baseline: str, comparisons: Sequence[tuple[str, Comparison]]
) -> ComparisonDocument:
    """Return comparisons, each with the id of its right-hand run, as a document."""
    return {
        "baseline": baseline,
        "runs": [run for run, _ in comparisons],
        "differences": [
            _make_difference(run, suite, metric, is_main=place == 0)
            for run, comparison in comparisons
            for suite in comparison.suites
            for place, metric in enumerate(suite.metrics)
        ],
        "conditions": {
            run: [[one.field, _mask(one, one.left), _mask(one, one.right)] for one in found]
            for run, found in ((run, comparison.differences) for run, comparison in comparisons)
        },
        "flipped": {
            run: {suite.name: len(suite.flips) for suite in comparison.suites}
            for run, comparison in comparisons
        },
        "remarks": {
            run: list(list_remarks(comparison, ("baseline", "other")))
            for run, comparison in comparisons
        },
    }


def _mask(difference: Difference, value: object) -> object:
    """Return a value without secrets, which the name of its field may say it is."""
    name = difference.field.rpartition(".")[2]
    return mask_value({name: value})[name]


def _make_difference(
    run: str, suite: SuiteComparison, metric: MetricComparison, *, is_main: bool
) -> DifferenceDocument:
    test = metric.test
    low, high = metric.shown_interval or (None, None)
    is_judged = test is not None and (test.name == "mcnemar" or suite.flipped_by == metric.name)
    return {
        "run": run,
        "suite": suite.name,
        "metric": metric.name,
        "main": is_main,
        "higher_is_better": metric.higher_is_better,
        "baseline_value": None if metric.left is None else metric.left.value,
        "value": None if metric.right is None else metric.right.value,
        "difference": metric.difference,
        "low": low,
        "high": high,
        "p_value": None if test is None else test.p_value,
        "test": None if test is None else test.name,
        "winner": _WINNERS[metric.winner],
        "contradicted": metric.is_contradicted,
        "paired": suite.rows.paired,
        "gained": test.right_better if test is not None and is_judged else None,
        "lost": test.left_better if test is not None and is_judged else None,
    }
