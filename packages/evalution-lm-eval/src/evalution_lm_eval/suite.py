"""lm-eval's tasks as suites: `tests: [{type: lm_eval, tasks: [mmlu, arc_challenge]}]`."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, cast

from evalution.scoring.metrics import Metric, MetricAccumulator, Score
from evalution.suites.suite import AnySuite, Suite, SuiteSet
from evalution_core import Capability, ConfigurationError
from evalution_core.kinds import RequestKind
from evalution_core.redaction import redact
from evalution_core.requests import Output
from evalution_lm_eval.aggregation import TaskAccumulator
from evalution_lm_eval.documents import Document, Documents
from evalution_lm_eval.loading import LoadedTask, LoadedTasks, load_tasks
from evalution_lm_eval.options import LmEvalOptions
from evalution_lm_eval.upstream import Group

_PLACE = "config_source"
"""Key in a task's metadata under which lm-eval writes the path of its file."""
_DIGITS = 16


def describe_task(loaded: LoadedTask) -> dict[str, Any]:
    """Return version, data set and configuration of a task, JSON-safe and without credentials.

    A function is named with a digest of its file. The imports of that file and the content of the
    rows are left out: a row that changed is evaluated again.
    """
    task = loaded.task
    config = dict(task.config.to_dict(keep_callable=True))
    metadata: Any = config.get("metadata")
    if isinstance(metadata, Mapping):
        known = cast(Mapping[str, Any], metadata)
        config["metadata"] = {name: known[name] for name in known if name != _PLACE}
    return {
        "version": task.VERSION,
        "dataset": [task.DATASET_PATH, task.DATASET_NAME],
        "rows": loaded.size,
        "code": _name_code(type(task)),
        "config": redact(_name_functions(config)),
    }


def describe_group(group: Group) -> dict[str, Any]:
    """Return the members of a group and the metrics that it sums up."""
    return {
        "members": group.child_names,
        "metrics": [
            redact(_name_functions(vars(metric))) for metric in group.aggregate_metric_list or ()
        ],
    }


def _name_functions(value: Any) -> Any:
    """Return `value` with each function in it as text."""
    if callable(value):
        return _name_code(value)
    if isinstance(value, Mapping):
        return {
            key: _name_functions(member) for key, member in cast(Mapping[Any, Any], value).items()
        }
    if isinstance(value, list | tuple):
        return [_name_functions(member) for member in cast("list[Any]", value)]
    return value


def _name_code(found: Any) -> str:
    """Return `utils.py:process_docs 0a1b2c3d4e5f6071`; the name alone if it has no file."""
    name = str(getattr(found, "__qualname__", type(found).__qualname__))
    try:
        file = Path(inspect.getfile(inspect.unwrap(found)))
        content = file.read_bytes()
    except (TypeError, OSError):  # built in, or an object that can be called
        return name
    return f"{file.name}:{name} {hashlib.sha256(content).hexdigest()[:_DIGITS]}"


@dataclass(kw_only=True)
class LmEval(LmEvalOptions, SuiteSet):
    """Any tasks of lm-evaluation-harness, asked and scored by its own code.

    Each task is a suite of the run, and so is a group that has scores of its own, with those of its
    tasks beside them. Prompts, filters, metrics and standard errors are lm-eval's; requests,
    samples and the journal are the runner's. A sample without an answer counts as zero in metrics
    that lm-eval averages and of which more is better, and is left out of all others.
    """

    def suites(self) -> Sequence[AnySuite]:
        found = load_tasks(self)
        options = {f.name: getattr(self, f.name) for f in fields(LmEvalOptions)}
        suites: list[AnySuite] = []
        for loaded in found:
            own: dict[str, Any] = {**options, "tasks": loaded.name}
            if self.name is not None and len(found) > 1:
                own["name"] = f"{self.name} {loaded.name}"
            suite = TaskSuite(**own)
            suite.loaded = loaded
            _ = suite.needs  # raises for a generation setting that no engine can be asked
            suites.append(suite)
        return suites


@dataclass(kw_only=True)
class TaskSuite(LmEvalOptions, Suite[Document, Output]):
    """A task of lm-eval, or the tasks of a group; `LmEval` makes them, with what it loaded."""

    loaded: LoadedTasks | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def request_kind(self) -> RequestKind:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._loaded.kind

    @property
    def title(self) -> str:
        return self.name or self._loaded.name

    def make_metrics(self) -> Mapping[str, Metric]:
        # Known by the answers alone: a task's own code names them.
        return {}

    @property
    def needs(self) -> frozenset[Capability]:
        chat = {Capability.CHAT} if self.apply_chat_template else set[Capability]()
        return super().needs | self._loaded.needs | chat

    @property
    def provenance(self) -> Mapping[str, Any]:
        return {
            "harness": f"lm-eval {version('lm-eval')}",
            "tasks": {found.name: describe_task(found) for found in self._loaded.tasks},
            "groups": {group.name: describe_group(group) for group in self._loaded.groups},
        }

    def samples(self, limit: int | None = None) -> Iterator[Document]:
        return islice(Documents(self._loaded, self).read(), limit)

    def score(self, sample: Document, answers: Sequence[Output]) -> Score:
        return sample.score(answers)

    def make_accumulator(self) -> MetricAccumulator:
        return TaskAccumulator(self._loaded, self.bootstrap_iters)

    @property
    def _loaded(self) -> LoadedTasks:
        if self.loaded is None:
            raise ConfigurationError(
                f"{type(self).__name__} is what LmEval makes of its tasks; declare LmEval"
            )
        return self.loaded
