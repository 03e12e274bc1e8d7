"""Scores of a task over its documents, and of a group over its tasks, by lm-eval's code."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from evalution.results import MetricResult, RowRange
from evalution.scoring.intervals import normal_interval, wilson_interval
from evalution.scoring.metrics import Mean, Measure, Score
from evalution_lm_eval.documents import ItemKey, Items
from evalution_lm_eval.loading import LoadedTask, LoadedTasks
from evalution_lm_eval.upstream import Aggregation, Group, upstream_metrics

_FEW_DRAWS = ("bleu", "chrf", "chrf++", "ter")
_DRAWS = 100
"""Most bootstrap draws of lm-eval for the standard errors of these slow metrics."""
_NONE = "N/A"
_OTHER_MEANS = (("numpy", "mean"), ("statistics", "mean"), ("statistics", "fmean"))
"""Module and name of other libraries' means, which tasks with code of their own use."""

Values = Mapping[ItemKey, Any]


def list_zeroed(loaded: LoadedTask, answered: Collection[ItemKey]) -> list[ItemKey]:
    """List the metrics, by filter, in which a document without an answer counts as zero.

    They are those that lm-eval averages and of which more is better, among those of `answered`
    documents: a metric may report under other names than its own. Without one, among the declared.
    """
    better = loaded.task.higher_is_better()
    filters = [one.name for one in loaded.task._filters]  # pyright: ignore[reportPrivateUsage]
    declared = [(metric, filtered) for filtered in filters for metric in loaded.declared]
    return [
        (metric, filtered)
        for metric, filtered in answered or declared
        if is_mean(loaded, metric) and better.get(metric) is True
    ]


def is_mean(loaded: LoadedTask, metric: str) -> bool:
    """Return True if the metric is averaged: by lm-eval's default, or another library's mean."""
    mean = upstream_metrics().mean
    found: Any = loaded.task.aggregation().get(metric, mean)
    named = (getattr(found, "__module__", None), getattr(found, "__name__", None))
    return found is mean or named in _OTHER_MEANS


def find_row_range(loaded: LoadedTask, metric: str) -> RowRange | None:
    """Return the range of a document's score; open where it isn't known that it is right or wrong.

    None if lm-eval doesn't average the metric.
    """
    if not is_mean(loaded, metric):
        return None
    is_share = metric == "exact_match" or "acc" in metric.split("_")
    return (0.0, 1.0) if is_share else (None, None)


def score_alone(loaded: LoadedTask, metric: str, value: Any) -> float | None:
    """Compute the metric of one document alone; None where that says nothing, such as BLEU.

    Also None for a perplexity beyond all floats, as the whole task's need not be. Of F1 and the
    Matthews correlation, whether the document is classified rightly.
    """
    metrics = upstream_metrics()
    aggregate = loaded.task.aggregation().get(metric, metrics.mean)
    if aggregate in (metrics.f1_score, metrics.matthews_corrcoef):
        return float(value[0] == value[1])
    shown = (metrics.perplexity, metrics.weighted_perplexity, metrics.bits_per_byte)
    is_shown = is_mean(loaded, metric) or aggregate in shown
    try:
        return float(aggregate([value])) if is_shown else None
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class TaskScores:
    """A task's scores by metric and filter, their standard errors, and how many documents each has.

    Computed as `lm_eval.evaluator_utils` (0.4.13) does it.
    """

    loaded: LoadedTask
    results: Mapping[ItemKey, MetricResult]

    @classmethod
    def sum_up(
        cls, loaded: LoadedTask, documents: Sequence[Values | None], bootstrap_iters: int
    ) -> TaskScores:
        """Sum up the values of documents in their order; None is a document without an answer.

        The results are in the order of the first document that has one.
        """
        by_key: dict[ItemKey, list[Any]] = {}
        answered = dict.fromkeys(key for values in documents for key in values or ())
        zeros = dict.fromkeys(list_zeroed(loaded, answered), 0.0)
        for values in documents:
            for key, value in (zeros if values is None else values).items():
                by_key.setdefault(key, []).append(value)
        better = loaded.task.higher_is_better()
        results: dict[ItemKey, MetricResult] = {}
        for key in answered or by_key:
            items = by_key[key]
            aggregate = loaded.task.aggregation().get(key[0], upstream_metrics().mean)
            draws = min(bootstrap_iters, _DRAWS) if key[0] in _FEW_DRAWS else bootstrap_iters
            error = _estimate_error(aggregate, items, draws)
            is_better = better.get(key[0]) is not False
            value = float(aggregate(items))
            interval = (
                Mean().estimate([Measure(float(item)) for item in items]).interval
                if is_mean(loaded, key[0])
                else normal_interval(value, error)
            )
            results[key] = MetricResult(
                value,
                error,
                is_better,
                len(items),
                interval,
                row_range=find_row_range(loaded, key[0]),
            )
        return cls(loaded, results)

    def to_upstream(self) -> dict[str, Any]:
        """Return the scores as lm-eval's groups read them."""
        sizes = [result.n for result in self.results.values()]
        found: dict[str, Any] = {"sample_len": max(sizes, default=0)}
        for (metric, filtered), result in self.results.items():
            found[f"{metric},{filtered}"] = result.value
            found[f"{metric}_stderr,{filtered}"] = _NONE if result.stderr is None else result.stderr
        return found


def sum_up_group(group: Group, members: Mapping[str, TaskScores]) -> dict[ItemKey, MetricResult]:
    """Return a group's scores by lm-eval; tasks without documents are left out."""
    names = dict.fromkeys(task.task_name for task in group.get_all_tasks())
    taken = [members[name] for name in names if members[name].results]
    summed = group.aggregate({scores.loaded.name: scores.to_upstream() for scores in taken})
    found: dict[ItemKey, MetricResult] = {}
    for name, value in summed.items():
        metric, _, filtered = name.rpartition(",")
        error = summed.get(f"{metric}_stderr,{filtered}")
        if not metric or error is None:
            continue
        key, value = (metric, filtered), float(value)
        stderr = None if error == _NONE else float(error)
        size = sum(s.results[key].n for s in taken if key in s.results)
        row_range = _find_group_range(group, key, taken)
        is_share = row_range == (0.0, 1.0)  # of all documents, as they count alike
        found[key] = MetricResult(
            value,
            stderr,
            all(s.loaded.task.higher_is_better().get(metric) is not False for s in taken),
            size,
            wilson_interval(value, size) if is_share else normal_interval(value, stderr),
            row_range=row_range,
        )
    return found


def _find_group_range(group: Group, key: ItemKey, members: Sequence[TaskScores]) -> RowRange | None:
    """Return the range of a document's score, the same for each task: it goes by the metric's name.

    None if the score is no mean of all documents: some task's count more than others'.
    """
    taken = [scores for scores in members if key in scores.results]
    by_size = any(
        one.weight_by_size for one in group.aggregate_metric_list or () if one.metric == key[0]
    )
    times = Counter(task.task_name for task in group.get_all_tasks())
    sizes = (scores.to_upstream()["sample_len"] if by_size else 1 for scores in taken)
    weights = {
        times[scores.loaded.task.task_name] * size / scores.results[key].n
        for scores, size in zip(taken, sizes, strict=True)
    }
    ranges = {find_row_range(scores.loaded, key[0]) for scores in taken}
    return None if None in ranges or len(weights) > 1 else ranges.pop()


def _estimate_error(aggregate: Aggregation, items: Sequence[Any], draws: int) -> float | None:
    error = upstream_metrics().stderr_for_metric(aggregate, draws)
    if error is None or len(items) < 2:
        return None
    with _without_forks():
        return float(error(items))


@contextmanager
def _without_forks() -> Generator[None]:
    """Keep lm-eval's bootstrap from forking: the engine's threads live in this process."""
    name = "DISABLE_MULTIPROC"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


_NO_FILTER = "none"


class TaskAccumulator:
    """A `MetricAccumulator` whose scores, standard errors and groups are lm-eval's own."""

    def __init__(self, tasks: LoadedTasks, bootstrap_iters: int):
        self._tasks = tasks
        self._bootstrap_iters = bootstrap_iters
        self._begins = [0, *accumulate(loaded.size for loaded in tasks.tasks)]
        self._groups = {
            loaded.name: [
                group
                for group in tasks.groups
                if loaded.name in {task.task_name for task in group.get_all_tasks()}
            ]
            for loaded in tasks.tasks
        }
        self._values: dict[int, Values | None] = {}
        self._main = ""
        self._shown: dict[int, float] = {}
        self._sum = 0.0

    def record(self, index: int, score: Score, group: str | None = None) -> Mapping[str, float]:
        assert isinstance(score, Items)
        loaded = self._find_task(index)
        shown: dict[str, float] = {}
        for key, value in score.values.items():
            if (alone := score_alone(loaded, key[0], value)) is not None:
                shown |= dict.fromkeys(self._list_names(loaded, key), alone)
                if is_mean(loaded, key[0]):
                    self._main = self._main or next(iter(shown))
        self._values[index] = score.values
        self._note(index, shown)
        return shown

    def fail(
        self,
        index: int,
        measures: Mapping[str, Measure] | None = None,
        group: str | None = None,
    ) -> Mapping[str, float]:
        loaded = self._find_task(index)
        zeroed = list_zeroed(loaded, ())  # those that answers have may not be known yet
        shown = {name: 0.0 for key in zeroed for name in self._list_names(loaded, key)}
        self._values[index] = None
        self._note(index, shown)
        return shown

    @property
    def running(self) -> tuple[str, float] | None:
        return (self._main, self._sum / len(self._shown)) if self._shown else None

    def _note(self, index: int, shown: Mapping[str, float]) -> None:
        """Count a row, which may have been noted before, for the mean so far of the main metric."""
        self._sum -= self._shown.pop(index, 0.0)
        if self._main in shown:
            self._shown[index] = shown[self._main]
            self._sum += shown[self._main]

    def results(self) -> dict[str, MetricResult]:
        documents: dict[str, list[Values | None]] = {task.name: [] for task in self._tasks.tasks}
        for index in sorted(self._values):
            documents[self._find_task(index).name].append(self._values[index])
        scores = {
            task.name: TaskScores.sum_up(task, documents[task.name], self._bootstrap_iters)
            for task in self._tasks.tasks
        }
        found: dict[str, MetricResult] = {}
        for group in self._tasks.groups:
            for key, result in sum_up_group(group, scores).items():
                found[self._name_in(group, key)] = result
        for task in scores.values():
            for key, result in task.results.items():
                found[self._list_names(task.loaded, key)[-1]] = result
        return found

    def _list_names(self, loaded: LoadedTask, key: ItemKey) -> list[str]:
        """A metric's names in results: of the groups that sum it up, and of the task itself."""
        found = [
            self._name_in(group, key)
            for group in self._groups[loaded.name]
            if key[0] in {one.metric for one in group.aggregate_metric_list or ()}
        ]
        return [*found, _join_name(key, loaded.name if self._tasks.groups else "")]

    def _name_in(self, group: Group, key: ItemKey) -> str:
        return _join_name(key, "" if group is self._tasks.groups[0] else group.name)

    def _find_task(self, index: int) -> LoadedTask:
        return self._tasks.tasks[bisect_right(self._begins, index) - 1]


def _join_name(key: ItemKey, part: str) -> str:
    """`acc`, `acc,mmlu_stem`, `exact_match,strict-match`: lm-eval's, without its filter `none`."""
    metric, filtered = key
    return ",".join([metric, *[filtered] * (filtered != _NO_FILTER), *[part] * bool(part)])
