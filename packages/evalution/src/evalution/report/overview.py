"""What was run: a line for each run, for the head of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from evalution.report.labels import RunLabel
from evalution.report.number_texts import ABSENT, duration_text
from evalution.results import RunResult, Status
from evalution_core import scrub


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One run in short; `problems` is what a reader must know before any score."""

    label: RunLabel
    status: Status
    engine_version: str
    started: str
    duration: str
    samples: int
    failed: int
    problems: Sequence[str]


def run_overview(run: RunResult, label: RunLabel) -> RunOverview:
    """The run in short; credentials in its errors are scrubbed."""
    return RunOverview(
        label=label,
        status=run.status,
        engine_version=_engine_version(run),
        started=_moment(run.started),
        duration=duration_text(run.timings.get("total_s")),
        samples=sum(suite.n for suite in run.suites),
        failed=run.failed,
        problems=[scrub(problem) for problem in [*_errors(run), *run.notices]],
    )


def _engine_version(run: RunResult) -> str:
    name, version = run.engine.get("distribution"), run.engine.get("version")
    return " ".join(str(part) for part in (name, version) if part)


def _errors(run: RunResult) -> list[str]:
    if run.status == "running":
        return ["The run is not finished, or ended without a word: the scores are of what was."]
    if run.error is None:
        return []
    where = f" in suite {run.error['suite']}" if run.error.get("suite") else ""
    return [f"{run.error.get('type', 'Error')}{where}: {run.error.get('message', '')}"]


def _moment(text: str) -> str:
    """An ISO time as people write it, in the zone it was recorded in."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text or ABSENT
    zone = found.tzname() or ""
    return f"{found:%Y-%m-%d %H:%M} {zone}".strip()
