"""Documents of runs: the matrix of their scores, and the details of one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalution.comparison.significance import can_judge, is_binary
from evalution.redaction import mask_text, mask_value
from evalution.results import MetricResult, RunResult, SuiteResult, to_json
from evalution.runs.progress_file import RunState
from evalution.runs.reader import RunSamples
from evalution.sample_columns import SampleColumns
from evalution.samples_file import SamplesTail
from evalution.scoring.intervals import is_wilson_interval, wilson_interval
from evalution.view.documents import (
    ComparisonDocument,
    ProgressDocument,
    RunDetailDocument,
    RunDocument,
    RunListDocument,
    RunStatus,
    ScoreDocument,
    SuiteDocument,
)
from evalution.view.labels import RunLabel, label_runs
from evalution.view.samples import SuiteView
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean

_STATUSES: Mapping[str, RunStatus] = {
    "running": "interrupted",
    "done": "finished",
    "interrupted": "interrupted",
    "failed": "failed",
}
"""Status of a run that nobody is writing, by that in its results."""
_OF_ALL_ROWS = ("f1", "mcc", "kappa")
"""Metrics of all rows at once: those of single rows say right or wrong, and have another mean."""
_NEUTRAL_OPTIONS = ("name", "batch_size", "group")
_LOWER = ("word_perplexity", "byte_perplexity", "bits_per_byte", "perplexity", "position_changed")
"""Metrics whose lower values are better: samples don't say it, and there is no result yet."""


class ViewedRun:
    """A run with its samples, those of its unfinished suites as far as they were read.

    `state` is that of a run that goes on, None of any other.
    """

    def __init__(self, id: str, result: RunResult, state: RunState | None = None):
        self.id = id
        self.result = result
        self.state = state
        self.samples = RunSamples(result)
        self.latest: dict[str, SampleColumns] = {}
        """Samples of unfinished suites in the order of their answers."""
        self.compared: tuple[list[ViewedRun], ComparisonDocument] | None = None
        """The last comparison with other runs."""
        self._tail: SamplesTail | None = None
        self._views: dict[str, SuiteView] = {}

    def update(self, tail: SamplesTail) -> None:
        """Take over what was read of unfinished suites."""
        finished = {suite.name for suite in self.result.suites}
        self._tail = tail
        self.latest = {name: one for name, one in tail.columns.items() if name not in finished}
        for name in self.latest:
            self._views.pop(name, None)

    @property
    def status(self) -> RunStatus:
        if self.state is None:
            return _STATUSES[self.result.status]
        return "running" if self.state.loading is None else "loading"

    @property
    def is_new(self) -> bool:
        """True until the model is loaded for the first time: nothing is recorded yet."""
        return self.state is not None and not self.result.started

    @property
    def suites(self) -> list[str]:
        """The suites that have scores or samples."""
        finished = [suite.name for suite in self.result.suites]
        return [*finished, *self.latest]

    def view(self, name: str) -> SuiteView:
        """Return the samples of a suite.

        Raises:
            ConfigurationError: the run has no such suite, or its samples can't be read.
        """
        if name in self._views:
            return self._views[name]
        for suite in self.result.suites:
            if suite.name == name:
                found = SuiteView(
                    self.id,
                    name,
                    self.samples.columns(suite),
                    self.samples.of(suite),
                    {metric: one.higher_is_better for metric, one in suite.metrics.items()},
                    suite.options,
                    {name for name, one in suite.metrics.items() if not can_judge(name, one)},
                )
                return self._views.setdefault(name, found)
        if self._tail is not None and name in self.latest:
            columns = self.latest[name].order()
            known = {metric: _is_higher_better(metric) for metric in columns.metrics}
            found = SuiteView(self.id, name, columns, self._tail.of(name, columns), known)
            return self._views.setdefault(name, found)
        raise ConfigurationError(
            f"run {self.id!r} has no suite {name!r}{did_you_mean(name, self.suites)} "
            f"(suites: {', '.join(self.suites) or 'none'})"
        )


def make_new_run(id: str, state: RunState) -> ViewedRun:
    """Return a run whose model is loaded for the first time."""
    model, engine = state.loading or ("", "")
    named = RunResult({"label": model}, {"name": engine}, {}, {}, status="running")
    return ViewedRun(id, named, state)


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run whose results can't be read; `problem` says why."""

    id: str
    problem: str


def list_runs(runs: Sequence[ViewedRun | UnreadableRun]) -> RunListDocument:
    """Return the matrix of runs, the newest first, unreadable ones last."""
    readable = [run for run in runs if isinstance(run, ViewedRun)]
    fresh = [run for run in readable if run.is_new]
    begun = [run for run in readable if not run.is_new]
    begun.sort(key=lambda run: run.result.started, reverse=True)
    labels = [label for run in fresh for label in label_runs([run.result])]
    labels += label_runs([run.result for run in begun])
    found = [_make_run(run, label) for run, label in zip([*fresh, *begun], labels, strict=True)]
    broken = [_make_unreadable(run) for run in runs if isinstance(run, UnreadableRun)]
    return {"runs": [*found, *broken]}


def describe_run(run: ViewedRun) -> RunDetailDocument:
    """Return the details of one run; secrets are masked."""
    result = run.result
    (label,) = label_runs([result])
    return {
        "run": _make_run(run, label),
        "error": _format_error(result.error),
        "notices": [mask_text(notice) for notice in result.notices],
        "model": mask_value(result.model),
        "engine": mask_value(result.engine),
        "scoring_policy": mask_value(result.scoring_policy),
        "versions": mask_value(result.versions),
        "limit": result.limit,
        "step": result.step,
        "timings": result.timings,
        "suites": [
            *(_make_suite(run, suite) for suite in result.suites),
            *(_make_partial_suite(run.view(name)) for name in run.latest),
        ],
    }


def _make_run(run: ViewedRun, label: RunLabel) -> RunDocument:
    return {
        "id": run.id,
        "label": ", ".join([label.title, *label.distinctions]),
        "model": label.model,
        "engine": label.engine,
        "status": run.status,
        "started": run.result.started or None,
        "ended": run.result.finished,
        "progress": _make_progress(run),
        "scores": [*_list_scores(run)],
        "problem": None,
    }


def _make_unreadable(run: UnreadableRun) -> RunDocument:
    return {
        "id": run.id,
        "label": run.id,
        "model": "",
        "engine": "",
        "status": "failed",
        "started": None,
        "ended": None,
        "progress": _count_progress([], 0, 0, {}),
        "scores": [],
        "problem": run.problem,
    }


def _make_progress(run: ViewedRun) -> ProgressDocument:
    if (state := run.state) is not None:
        return {
            "done": state.done,
            "total": state.total,
            "rate": state.rate,
            "tokens_per_second": state.tokens_per_second,
            "eta_s": state.left_s,
            "suite": state.suite,
            "suite_done": state.suite_done if state.suite else 0,
            "suite_total": state.suite_total if state.suite else None,
            "suites_done": state.suites_done,
            "suites": state.suites,
            "failed": state.failed,
        }
    partial = run.latest.values()
    failed = sum(sum(columns.failed) for columns in partial)
    planned = run.result.planned if run.status != "finished" else {}
    return _count_progress(run.result.suites, sum(map(len, partial)), failed, planned)


def _count_progress(
    suites: Sequence[SuiteResult], more: int, failed: int, planned: Mapping[str, int]
) -> ProgressDocument:
    """Return the counts of a run that doesn't go on; its totals are those planned, if any are."""
    done = sum(suite.n for suite in suites)
    spent = sum(suite.seconds for suite in suites)
    computed = sum(suite.n for suite in suites if not suite.cached)
    return {
        "done": done + more,
        "total": sum(planned.values()) or (None if more or not suites else done),
        "rate": computed / spent if spent and computed == done else None,
        "tokens_per_second": None,
        "eta_s": None,
        "suite": None,
        "suite_done": 0,
        "suite_total": None,
        "suites_done": len(suites),
        "suites": len(planned) or (None if more or not suites else len(suites)),
        "failed": sum(suite.failed for suite in suites) + failed,
    }


def _list_scores(run: ViewedRun) -> Iterator[ScoreDocument]:
    for suite in run.result.suites:
        for place, (name, metric) in enumerate(suite.metrics.items()):
            low, high = metric.interval or (None, None)
            yield {
                "suite": suite.name,
                "metric": name,
                "main": place == 0,
                "value": metric.value,
                "low": low,
                "high": high,
                "count": metric.n,
                "groups": metric.groups,
                "failed": suite.failed,
                "higher_is_better": metric.higher_is_better,
                "is_partial": False,
                "is_share": _is_share(name, metric),
                "options": _digest_options(suite.options),
            }
    for name, columns in run.latest.items():
        if columns.metrics:
            yield _make_partial_score(name, columns, run.state)


def _is_share(name: str, metric: MetricResult) -> bool:
    """Return True for a share of right rows; its interval, Wilson's, says so without samples."""
    value, interval = metric.value, metric.interval
    if name in _OF_ALL_ROWS or value is None or interval is None or not metric.n:
        return False
    if metric.row_range not in ("unknown", (0.0, 1.0)):
        return False
    if not metric.higher_is_better or not 0.0 <= value <= 1.0:
        return False
    if metric.groups is not None:  # fewer rows than n are independent
        return is_wilson_interval(value, interval)
    return all(map(math.isclose, wilson_interval(value, metric.n), interval))


def _make_partial_score(
    suite: str, columns: SampleColumns, state: RunState | None
) -> ScoreDocument:
    """Return the main metric of a suite so far: a share of right samples, or what the run says."""
    metric, values = next(iter(columns.metrics.items()))
    known = [value for value in values if math.isfinite(value)]
    value = low = high = None
    is_share = bool(known) and is_binary(known) and metric not in _OF_ALL_ROWS
    if is_share:
        value = math.fsum(known) / len(known)
        if not any(columns.groups):
            low, high = wilson_interval(value, len(known))
    elif state is not None and state.suite == suite and state.running is not None:
        metric, value = state.running
    return {
        "suite": suite,
        "metric": metric,
        "main": True,
        "value": value,
        "low": low,
        "high": high,
        "count": len(known),
        "groups": None,
        "failed": sum(columns.failed),
        "higher_is_better": _is_higher_better(metric),
        "is_partial": True,
        "is_share": is_share,
        "options": "",
    }


def _is_higher_better(metric: str) -> bool:
    """Return it of a suite that has no result yet; a metric may be one of a part."""
    return metric.partition(",")[0] not in _LOWER


def _digest_options(options: Mapping[str, Any]) -> str:
    """Return a text that is the same for options that ask and score alike."""
    kept = {name: value for name, value in options.items() if name not in _NEUTRAL_OPTIONS}
    return hashlib.blake2b(to_json(kept).encode(), digest_size=6).hexdigest()


def _make_suite(run: ViewedRun, suite: SuiteResult) -> SuiteDocument:
    return {
        "name": suite.name,
        "type": suite.type,
        "is_finished": True,
        "metrics": list(suite.metrics),
        "judged_by": run.view(suite.name).judged_by,
        "samples": suite.n,
        "failed": suite.failed,
        "truncated": suite.truncated,
        "requests": suite.requests,
        "cached": suite.cached,
        "seconds": suite.seconds,
        "first_failure": suite.first_failure and mask_text(suite.first_failure),
        "errors": [mask_text(error) for error in suite.errors],
        "options": mask_value(suite.options),
        "provenance": mask_value(suite.provenance),
    }


def _make_partial_suite(view: SuiteView) -> SuiteDocument:
    return {
        "name": view.name,
        "type": "",
        "is_finished": False,
        "metrics": list(view.metrics),
        "judged_by": view.judged_by,
        "samples": len(view.columns),
        "failed": sum(view.columns.failed),
        "truncated": None,
        "requests": 0,
        "cached": 0,
        "seconds": None,
        "first_failure": None,
        "errors": [],
        "options": {},
        "provenance": {},
    }


def _format_error(error: Mapping[str, Any] | None) -> str | None:
    if error is None:
        return None
    suite = error.get("suite")
    where = f" in suite {suite}" if suite else ""
    if error.get("type") == KeyboardInterrupt.__name__:
        return f"interrupted{where}"
    return mask_text(f"{error.get('type')}{where}: {error.get('message')}")
