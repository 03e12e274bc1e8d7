"""What becomes of a suite's documents: kept until lm-eval's aggregations take them all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from evalution.results import MetricResult
from evalution.scoring.metrics import Measure, Score
from evalution_lm_eval.aggregation import (
    TaskItems,
    group_results,
    is_mean,
    value_alone,
    zeroed,
)
from evalution_lm_eval.documents import ItemKey, Items
from evalution_lm_eval.loading import LoadedTask, LoadedTasks
from evalution_lm_eval.upstream import Group

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
