"""Runs in short: a line for each run, for the head of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from evalution.redaction import mask_text
from evalution.report.rendering import ABSENT, RunLabel, flatten, format_duration, merge_in_order
from evalution.results import RunResult, Status


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One run in short; `problems` is what a reader must know before any score."""

    label: RunLabel
    status: Status
    engine_version: str
    precision: str | None
    started: str
    duration: str
    samples: int
    failed: int
    problems: Sequence[str]


def make_run_overview(run: RunResult, label: RunLabel, first: RunResult) -> RunOverview:
    """The run in short, beside the first on the page; credentials in its errors are scrubbed."""
    problems = [*_list_errors(run), *_list_precisions(run, first), *run.notices]
    return RunOverview(
        label=label,
        status=run.status,
        engine_version=_format_engine_version(run),
        precision=run.precision,
        started=_format_moment(run.started),
        duration=format_duration(run.timings.get("total_s")),
        samples=sum(suite.n for suite in run.suites),
        failed=run.failed,
        problems=[mask_text(problem) for problem in problems],
    )


def _list_precisions(run: RunResult, first: RunResult) -> list[str]:
    if run.precision == first.precision:
        return []
    own, other = (found.precision or "a precision that isn't known" for found in (run, first))
    return [f"Computed in {own}, the first run in {other}: the scores differ by rounding too."]


def _format_engine_version(run: RunResult) -> str:
    name, version = run.engine.get("distribution"), run.engine.get("version")
    return " ".join(str(part) for part in (name, version) if part)


def _list_errors(run: RunResult) -> list[str]:
    if run.status == "running":
        return ["The run is not finished, or ended without a word: the scores are of what was."]
    if run.error is None:
        return []
    where = f" in suite {run.error['suite']}" if run.error.get("suite") else ""
    return [f"{run.error.get('type', 'Error')}{where}: {run.error.get('message', '')}"]


def _format_moment(text: str) -> str:
    """An ISO time as people write it, in the zone it was recorded in."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text or ABSENT
    zone = found.tzname() or ""
    return f"{found:%Y-%m-%d %H:%M} {zone}".strip()


@dataclass(frozen=True, slots=True)
class Condition:
    """One setting with its value in each run."""

    name: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """Settings that belong together; `is_reproducible` ones differ only if somebody changed one."""

    title: str
    conditions: Sequence[Condition]
    is_reproducible: bool = True

    @property
    def differing(self) -> int:
        """Number of settings that are not the same in all runs."""
        return sum(condition.differs for condition in self.conditions)


def list_run_conditions(runs: Sequence[RunResult]) -> list[ConditionGroup]:
    """Return everything recorded about how the runs were made; credentials are redacted."""
    groups = [
        _make_group("Model", [{**run.model, "limit": run.limit} for run in runs]),
        *(
            _make_group(title, [_find_part(run, part) for run in runs])
            for part, title in _ENGINE_PARTS.items()
        ),
        _make_group("Engine", [_drop_parts(run.engine) for run in runs]),
        _make_group("Scoring policy", [run.scoring_policy for run in runs]),
        _make_group("Versions", [run.versions for run in runs]),
        _make_group("Timings", [_list_timings(run) for run in runs], is_reproducible=False),
    ]
    return [group for group in groups if group.conditions]


def list_suite_conditions(runs: Sequence[RunResult]) -> list[ConditionGroup]:
    """Return the options of every suite that any run holds; credentials are redacted."""
    options = [{suite.name: suite.options for suite in run.suites} for run in runs]
    return [
        _make_group(name, [found.get(name, {}) for found in options])
        for name in merge_in_order(options)
    ]


_ENGINE_PARTS = {
    "options": "Engine options",
    "execution": "Execution",
    "identity": "Model and tokenizer identity",
    "self_check": "Self check",
}


def _make_group(
    title: str, columns: Sequence[Mapping[str, Any]], *, is_reproducible: bool = True
) -> ConditionGroup:
    texts = [flatten(column) for column in columns]
    conditions = [
        Condition(name, [column.get(name, ABSENT) for column in texts])
        for name in merge_in_order(texts)
    ]
    return ConditionGroup(title, conditions, is_reproducible)


def _find_part(run: RunResult, name: str) -> Mapping[str, Any]:
    part: object = run.engine.get(name)
    if isinstance(part, Mapping):
        return cast("Mapping[str, Any]", part)
    return {name: part} if part else {}


def _drop_parts(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in engine.items() if name not in _ENGINE_PARTS}


def _list_timings(run: RunResult) -> Mapping[str, Any]:
    found: dict[str, Any] = {"started": run.started, "finished": run.finished, **run.timings}
    for suite in run.suites:
        found[f"{suite.name}.seconds"] = round(suite.seconds, 3)
        if suite.seconds:
            rate = round(suite.requests / suite.seconds, 2)
            found[f"{suite.name}.requests_per_second"] = rate
    return found
