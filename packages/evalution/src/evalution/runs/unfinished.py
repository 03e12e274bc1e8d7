"""Suites that a run was cut off in, or is at: without scores, but their samples are there."""

from __future__ import annotations

from pathlib import Path

from evalution.paths import path_errors
from evalution.results import RunResult, SuiteResult
from evalution.runs.folder import SAMPLES
from evalution.samples.reader import SamplesReader


def unfinished_suites(run: RunResult) -> list[SuiteResult]:
    """Those that have samples and no scores: a name and where its samples are, and no more.

    Raises:
        ConfigurationError: `samples.jsonl` can't be opened.
    """
    file = None if run.folder is None else run.folder / SAMPLES
    if file is None or run.status == "done":
        return []
    with path_errors(file):
        if not file.is_file():
            return []
    finished = {suite.name for suite in run.suites}
    return [_begun(name, file) for name in SamplesReader(file).suites if name not in finished]


def _begun(name: str, file: Path) -> SuiteResult:
    return SuiteResult(
        name=name,
        type="",
        options={},
        metrics={},
        n=0,
        failed=0,
        truncated=None,
        requests=0,
        seconds=0.0,
        samples_file=file,
    )
