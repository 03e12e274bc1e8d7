"""Documents of the runs of a report, in the form that `evalution view` serves them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from evalution.comparison.comparison import (
    Comparison,
    MetricComparison,
    SuiteComparison,
    compare_samples,
    is_binary,
)
from evalution.redaction import mask_text
from evalution.report.rendering import RunLabel
from evalution.results import MetricResult, RunResult, SuiteResult
from evalution.runs.reader import RunSamples, read_partial_suites
from evalution.sample_columns import SampleColumns
from evalution.view.documents import (
    ComparisonDocument,
    DifferenceDocument,
    RunDetailDocument,
    RunDocument,
    RunStatus,
    ScoreDocument,
    SuiteDocument,
)
from evalution_core.redaction import redact

_STATUS: Mapping[str, RunStatus] = {"done": "finished"}
_BASELINES = 8
"""Runs of a report from which on only the first can be the baseline of a comparison."""


class ReportRun:
    """A run of a report with its samples; its letter is its name in the documents.

    `partial` holds the suites that it was cut off in, which have samples and no scores.
    """

    def __init__(self, run: RunResult, label: RunLabel):
        self.run = run
        self.label = label
        self.samples = RunSamples(run)
        self.partial = read_partial_suites(run)

    @property
    def suites(self) -> list[SuiteResult]:
        return [*self.run.suites, *self.partial]

    def columns(self, suite: SuiteResult) -> SampleColumns:
        return self.samples.columns(suite)

    def judge(self, suite: SuiteResult) -> tuple[str, float] | None:
        """Return the first metric by which samples are right or wrong, and the value of right."""
        columns = self.columns(suite).metrics
        for name in suite.metrics or columns:
            if name in columns and is_binary(columns[name]):
                return name, float(_is_higher_better(suite, name))
        return None


def _is_higher_better(suite: SuiteResult, metric: str) -> bool:
    return suite.metrics[metric].higher_is_better if metric in suite.metrics else True


def make_run_document(found: ReportRun) -> RunDocument:
    """Return the run as the matrix shows it."""
    run = found.run
    scores = [score for suite in run.suites for score in _make_scores(suite)]
    scores += [score for suite in found.partial for score in _make_partial_scores(found, suite)]
    done = sum(suite.n for suite in run.suites)
    return {
        "id": found.label.letter,
        "label": found.label.legend.partition(" · ")[2],
        "model": found.label.model,
        "engine": found.label.engine,
        # A folder without an end is of a run that was killed: nobody reads a report of a live one.
        "status": _STATUS.get(run.status, "failed" if run.status == "failed" else "interrupted"),
        "started": run.started or None,
        "ended": run.finished,
        "progress": {
            "done": done + sum(len(found.columns(suite)) for suite in found.partial),
            "total": done if run.status == "done" else None,
            "rate": None,
            "tokens_per_second": None,
            "eta_s": None,
            "suite": None,
            "suite_done": 0,
            "suite_total": None,
            "suites_done": len(run.suites),
            "suites": len(run.suites) + len(found.partial),
            "failed": sum(_count_failed(found, suite) for suite in found.suites),
        },
        "scores": scores,
        "problem": None,
    }


def _make_scores(suite: SuiteResult) -> list[ScoreDocument]:
    return [
        _make_score(suite.name, name, metric, suite.failed, is_main=place == 0)
        for place, (name, metric) in enumerate(suite.metrics.items())
    ]


def _make_score(
    suite: str, name: str, metric: MetricResult, failed: int, *, is_main: bool
) -> ScoreDocument:
    low, high = metric.interval or (None, None)
    return {
        "suite": suite,
        "metric": name,
        "main": is_main,
        "value": metric.value,
        "low": low,
        "high": high,
        "count": metric.n,
        "failed": failed,
        "higher_is_better": metric.higher_is_better,
        "is_partial": False,
    }


def _make_partial_scores(found: ReportRun, suite: SuiteResult) -> list[ScoreDocument]:
    """Return the share of right rows so far; other metrics may be no means of their rows."""
    columns = found.columns(suite)
    judged = found.judge(suite)
    if judged is None:
        return []
    values = [value for value in columns.metrics[judged[0]] if math.isfinite(value)]
    score = MetricResult(sum(values) / len(values), None, True, len(values))
    made = _make_score(suite.name, judged[0], score, sum(columns.failed), is_main=True)
    return [{**made, "is_partial": True}]


def _count_failed(found: ReportRun, suite: SuiteResult) -> int:
    return suite.failed + len(suite.errors) or sum(found.columns(suite).failed)


def make_detail_document(found: ReportRun, first: RunResult) -> RunDetailDocument:
    """Return the run in full; credentials are redacted."""
    run = found.run
    return {
        "run": make_run_document(found),
        "error": None if run.error is None else mask_text(_describe_error(run.error)),
        "notices": [mask_text(text) for text in (*_compare_precision(run, first), *run.notices)],
        "model": redact(run.model),
        "engine": redact(run.engine),
        "scoring_policy": redact(run.scoring_policy),
        "versions": {name: mask_text(str(value)) for name, value in run.versions.items()},
        "limit": run.limit,
        "step": run.step,
        "timings": run.timings,
        "suites": [_make_suite_document(found, suite) for suite in found.suites],
    }


def _describe_error(error: Mapping[str, Any]) -> str:
    where = f" in suite {error['suite']}" if error.get("suite") else ""
    return f"{error.get('type', 'Error')}{where}: {error.get('message', '')}"


def _compare_precision(run: RunResult, first: RunResult) -> list[str]:
    if run.precision == first.precision:
        return []
    own, other = (side.precision or "a precision that isn't known" for side in (run, first))
    return [f"Computed in {own}, the first run in {other}: the scores differ by rounding too."]


def _make_suite_document(found: ReportRun, suite: SuiteResult) -> SuiteDocument:
    judged = found.judge(suite)
    is_finished = suite not in found.partial
    return {
        "name": suite.name,
        "type": suite.type,
        "is_finished": is_finished,
        "metrics": list(suite.metrics or found.columns(suite).metrics),
        "judged_by": judged and judged[0],
        "samples": suite.n or len(found.columns(suite)),
        "failed": suite.failed or sum(found.columns(suite).failed),
        "truncated": suite.truncated,
        "requests": suite.requests,
        "cached": suite.cached,
        "seconds": suite.seconds if is_finished else None,
        "first_failure": suite.first_failure and mask_text(suite.first_failure),
        "errors": [mask_text(error) for error in suite.errors],
        "options": redact(suite.options),
        "provenance": redact(suite.provenance),
    }


def compare_all(
    runs: Sequence[ReportRun],
) -> tuple[dict[str, ComparisonDocument], list[Comparison]]:
    """Return the comparisons by their baseline, and those of the first run with each other one."""
    documents: dict[str, ComparisonDocument] = {}
    pairs = list(combinations(range(len(runs)), 2))
    if len(runs) > _BASELINES:
        pairs = pairs[: len(runs) - 1]
    to_first: list[Comparison] = []
    for left, right in pairs:
        compared = compare_samples(runs[left].samples, runs[right].samples)
        if left == 0:
            to_first.append(compared)
        letters = runs[left].label.letter, runs[right].label.letter
        _add(documents, letters, compared, is_mirrored=False)
        if len(runs) <= _BASELINES:
            _add(documents, letters[::-1], compared, is_mirrored=True)
    return documents, to_first


def _add(
    documents: dict[str, ComparisonDocument],
    letters: tuple[str, str],
    compared: Comparison,
    *,
    is_mirrored: bool,
) -> None:
    baseline, run = letters
    empty: ComparisonDocument = {
        "baseline": baseline, "runs": [], "differences": [], "conditions": {}, "flipped": {},
    }  # fmt: skip
    known = documents.setdefault(baseline, empty)
    found = [
        make_difference(run, suite, metric, is_main=place == 0, is_mirrored=is_mirrored)
        for suite in compared.suites
        for place, metric in enumerate(suite.metrics)
    ]
    settings = [
        [each.field, *((right, left) if is_mirrored else (left, right))]
        for each in compared.differences
        for left, right in [(redact({each.field: each.left}), redact({each.field: each.right}))]
    ]
    documents[baseline] = {
        "baseline": baseline,
        "runs": [*known["runs"], run],
        "differences": [*known["differences"], *found],
        "conditions": {
            **known["conditions"],
            run: [[name, *(side[name] for side in sides)] for name, *sides in settings],
        },
        "flipped": {
            **known["flipped"],
            run: {suite.name: len(suite.flips) for suite in compared.suites if suite.flipped_by},
        },
    }


def make_difference(
    run: str, suite: SuiteComparison, metric: MetricComparison, *, is_main: bool, is_mirrored: bool
) -> DifferenceDocument:
    """Return the difference of a run, the right side, to its baseline; mirrored, of the left one."""
    sides = [metric.left, metric.right]
    base, own = [side and side.value for side in (sides[::-1] if is_mirrored else sides)]
    test, difference, winner = metric.test, metric.difference, metric.winner
    interval = test.interval if test is not None else None
    low, high = interval or (None, None)
    better = (0, 0) if test is None else (test.right_better, test.left_better)
    if is_mirrored:
        difference = None if difference is None else -difference
        low, high = (None, None) if low is None or high is None else (-high, -low)
        better = better[::-1]
    names = {"right": "baseline", "left": "run"} if is_mirrored else _WINNERS
    return {
        "run": run,
        "suite": suite.name,
        "metric": metric.name,
        "main": is_main,
        "higher_is_better": metric.higher_is_better,
        "baseline_value": base,
        "value": own,
        "difference": difference,
        "low": low,
        "high": high,
        "p_value": test.p_value if test is not None else None,
        "test": test.name if test is not None else None,
        "winner": "tie" if winner == "tie" else winner and names[winner],
        "paired": test.pairs if test is not None else suite.rows.paired,
        "gained": better[0] if test is not None else None,
        "lost": better[1] if test is not None else None,
        "remarks": list_remarks(suite),
    }


_WINNERS = {"right": "run", "left": "baseline"}


def list_remarks(suite: SuiteComparison) -> list[str]:
    """Return what limits a comparison: other options, and rows that were left out of it."""
    rows = suite.rows
    counts = (
        ("rows in one run only", rows.left_only + rows.right_only),
        ("rows that are not the same", rows.other_rows),
        ("rows asked in other words", rows.other_prompts),
        ("failed answers", rows.left_failed + rows.right_failed),
    )
    found = [f"{what}: {count:,}" for what, count in counts if count]
    options = [name for name in suite.options if name != "batch_size"]
    return [*([f"other options: {', '.join(options)}"] if options else []), *found]
