"""lm-eval's sums over the documents of a task, and over the tasks of a group."""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from evalution.results import MetricResult
from evalution_lm_eval.documents import ItemKey
from evalution_lm_eval.loading import LoadedTask
from evalution_lm_eval.upstream import Aggregation, Group, upstream_metrics

_FEW_DRAWS = ("bleu", "chrf", "chrf++", "ter")
_DRAWS = 100
"""How often lm-eval draws for the standard errors of these metrics at most, as they take long."""
_NONE = "N/A"

Values = Mapping[ItemKey, Any]


def zeroed(loaded: LoadedTask) -> list[ItemKey]:
    """The metrics, by filter, in which a document without an answer counts as zero.

    They are those that lm-eval averages and of which more is better.
    """
    better = loaded.task.higher_is_better()
    filters = [one.name for one in loaded.task._filters]  # pyright: ignore[reportPrivateUsage]
    return [
        (metric, filtered)
        for filtered in filters
        for metric in loaded.task.aggregation()
        if is_mean(loaded, metric) and better.get(metric) is True
    ]


def is_mean(loaded: LoadedTask, metric: str) -> bool:
    """Whether lm-eval averages the metric, as it does where a task declares no aggregation."""
    mean = upstream_metrics().mean
    return loaded.task.aggregation().get(metric, mean) is mean


def value_alone(loaded: LoadedTask, metric: str, value: Any) -> float | None:
    """The metric of one document alone; None where that says nothing, such as BLEU.

    Of F1 and the Matthews correlation, whether the document is classified rightly.
    """
    metrics = upstream_metrics()
    aggregate = loaded.task.aggregation().get(metric, metrics.mean)
    if aggregate in (metrics.f1_score, metrics.matthews_corrcoef):
        return float(value[0] == value[1])
    told = (metrics.mean, metrics.perplexity, metrics.weighted_perplexity, metrics.bits_per_byte)
    return float(aggregate([value])) if aggregate in told else None


@dataclass(frozen=True, slots=True)
class TaskScores:
    """A task's scores by metric and filter, and how many documents each is of."""

    values: Mapping[ItemKey, Any]
    errors: Mapping[ItemKey, float | None]
    counts: Mapping[ItemKey, int]

    def results(self, loaded: LoadedTask) -> dict[ItemKey, MetricResult]:
        better = loaded.task.higher_is_better()
        return {
            key: MetricResult(
                float(value), self.errors[key], better.get(key[0]) is not False, self.counts[key]
            )
            for key, value in self.values.items()
        }

    @property
    def spelled(self) -> dict[str, Any]:
        """As lm-eval's groups read them."""
        found: dict[str, Any] = {"sample_len": max(self.counts.values(), default=0)}
        for (metric, filtered), value in self.values.items():
            error = self.errors[metric, filtered]
            found[f"{metric},{filtered}"] = value
            found[f"{metric}_stderr,{filtered}"] = _NONE if error is None else error
        return found


@dataclass(slots=True)
class TaskItems:
    """The values of a task's documents, in their order."""

    loaded: LoadedTask
    by_key: dict[ItemKey, list[Any]] = field(default_factory=dict[ItemKey, "list[Any]"])

    def add(self, values: Values) -> None:
        for key, value in values.items():
            self.by_key.setdefault(key, []).append(value)

    def add_failed(self) -> None:
        """Count a document without an answer, where it counts at all."""
        self.add(dict.fromkeys(zeroed(self.loaded), 0.0))

    def scores(self, bootstrap_iters: int) -> TaskScores:
        """As `lm_eval.evaluator_utils` (0.4.13) sums up a task."""
        mean = upstream_metrics().mean
        values: dict[ItemKey, Any] = {}
        errors: dict[ItemKey, float | None] = {}
        for key, items in self.by_key.items():
            aggregate = self.loaded.task.aggregation().get(key[0], mean)
            values[key] = aggregate(items)
            draws = min(bootstrap_iters, _DRAWS) if key[0] in _FEW_DRAWS else bootstrap_iters
            errors[key] = _standard_error(aggregate, items, draws)
        return TaskScores(values, errors, {key: len(items) for key, items in self.by_key.items()})


def group_results(
    group: Group, members: Mapping[str, tuple[LoadedTask, TaskScores]]
) -> dict[ItemKey, MetricResult]:
    """What lm-eval makes of the scores of a group's tasks; those without documents are left out."""
    inside = [task.task_name for task in group.get_all_tasks()]
    taken = {name: members[name] for name in inside if members[name][1].counts}
    summed = group.aggregate({name: scores.spelled for name, (_, scores) in taken.items()})
    found: dict[ItemKey, MetricResult] = {}
    for metric, filtered in _keys_in(summed):
        key = (metric, filtered)
        error = summed[f"{metric}_stderr,{filtered}"]
        better = [loaded.task.higher_is_better().get(metric) for loaded, _ in taken.values()]
        found[key] = MetricResult(
            float(summed[f"{metric},{filtered}"]),
            None if error == _NONE else float(error),
            False not in better,
            sum(scores.counts.get(key, 0) for _, scores in taken.values()),
        )
    return found


def _keys_in(summed: Mapping[str, Any]) -> list[ItemKey]:
    """Metric and filter of lm-eval's keys `metric,filter`."""
    split = (name.rpartition(",") for name in summed if "," in name)
    return [(m, filtered) for m, _, filtered in split if f"{m}_stderr,{filtered}" in summed]


def _standard_error(aggregate: Aggregation, items: Sequence[Any], draws: int) -> float | None:
    error = upstream_metrics().stderr_for_metric(aggregate, draws)
    if error is None or len(items) < 2:
        return None
    with _in_this_process():
        return float(error(items))


@contextmanager
def _in_this_process() -> Generator[None]:
    """lm-eval's bootstrap without its pool of forks: the engine's threads live in this process."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
