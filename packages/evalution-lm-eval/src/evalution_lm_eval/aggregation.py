"""lm-eval's sums over the documents of a task, and over the tasks of a group."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from evalution.results import MetricResult
from evalution.scoring.metrics import Measure, Score
from evalution_lm_eval.documents import ItemKey, Items
from evalution_lm_eval.loading import LoadedTask, LoadedTasks
from evalution_lm_eval.upstream import Aggregation, Group, upstream_metrics

_FEW_DRAWS = ("bleu", "chrf", "chrf++", "ter")
_DRAWS = 100
"""Most bootstrap draws of lm-eval for the standard errors of these slow metrics."""
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
    """Return True if lm-eval averages the metric, its default aggregation."""
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
    shown = (metrics.mean, metrics.perplexity, metrics.weighted_perplexity, metrics.bits_per_byte)
    return float(aggregate([value])) if aggregate in shown else None


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
    """Return a group's scores by lm-eval; tasks without documents are left out."""
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


_NO_FILTER = "none"


class TaskTally:
    """A `MetricAccumulator` whose scores, standard errors and groups are lm-eval's own."""

    def __init__(self, tasks: LoadedTasks, bootstrap_iters: int):
        self._tasks = tasks
        self._bootstrap_iters = bootstrap_iters
        self._begins = [0, *accumulate(loaded.size for loaded in tasks.tasks)]
        self._groups = {
            loaded.name: [group for group in tasks.groups if loaded.task in group.get_all_tasks()]
            for loaded in tasks.tasks
        }
        self._values: dict[int, Mapping[ItemKey, Any]] = {}
        self._failed: set[int] = set()
        self._main = _RunningMean()

    def record(self, index: int, score: Score) -> Mapping[str, float]:
        assert isinstance(score, Items)
        loaded = self._task_of(index)
        shown: dict[str, float] = {}
        for key, value in score.values.items():
            if (alone := value_alone(loaded, key[0], value)) is not None:
                shown |= dict.fromkeys(self._names(loaded, key), alone)
                if is_mean(loaded, key[0]):
                    self._main.name = self._main.name or next(iter(shown))
        self._failed.discard(index)
        self._values[index] = score.values
        self._main.note(index, shown)
        return shown

    def fail(
        self, index: int, measures: Mapping[str, Measure] | None = None
    ) -> Mapping[str, float]:
        loaded = self._task_of(index)
        shown = {name: 0.0 for key in zeroed(loaded) for name in self._names(loaded, key)}
        self._values.pop(index, None)
        self._failed.add(index)
        self._main.note(index, shown)
        return shown

    @property
    def running(self) -> tuple[str, float] | None:
        return self._main.value

    def results(self) -> dict[str, MetricResult]:
        items = {loaded.name: TaskItems(loaded) for loaded in self._tasks.tasks}
        for index in sorted([*self._values, *self._failed]):
            of_task = items[self._task_of(index).name]
            if index in self._values:
                of_task.add(self._values[index])
            else:
                of_task.add_failed()
        scores = {
            name: (of_task.loaded, of_task.scores(self._bootstrap_iters))
            for name, of_task in items.items()
        }
        found: dict[str, MetricResult] = {}
        for group in self._tasks.groups:
            for key, result in group_results(group, scores).items():
                found[self._name_in(group, key)] = result
        for loaded, of_task in scores.values():
            for key, result in of_task.results(loaded).items():
                found[self._names(loaded, key)[-1]] = result
        return found

    def _names(self, loaded: LoadedTask, key: ItemKey) -> list[str]:
        """A metric's names in results: of the groups that sum it up, and of the task itself."""
        found = [
            self._name_in(group, key)
            for group in self._groups[loaded.name]
            if key[0] in {one.metric for one in group.aggregate_metric_list or ()}
        ]
        return [*found, _name(key, loaded.name if self._tasks.groups else "")]

    def _name_in(self, group: Group, key: ItemKey) -> str:
        return _name(key, "" if group is self._tasks.groups[0] else group.name)

    def _task_of(self, index: int) -> LoadedTask:
        return self._tasks.tasks[bisect_right(self._begins, index) - 1]


class _RunningMean:
    """The mean so far of one metric, `name`; a row may be noted again."""

    def __init__(self) -> None:
        self.name = ""
        self._values: dict[int, float] = {}
        self._sum = 0.0

    def note(self, index: int, shown: Mapping[str, float]) -> None:
        self._sum -= self._values.pop(index, 0.0)
        if self.name in shown:
            self._values[index] = shown[self.name]
            self._sum += shown[self.name]

    @property
    def value(self) -> tuple[str, float] | None:
        return (self.name, self._sum / len(self._values)) if self._values else None


def _name(key: ItemKey, part: str) -> str:
    """`acc`, `acc,mmlu_stem`, `exact_match,strict-match`: lm-eval's, without its filter `none`."""
    metric, filtered = key
    return ",".join([metric, *[filtered] * (filtered != _NO_FILTER), *[part] * bool(part)])
