"""Reads what a run left in its folder back into the values that wrote it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalution.results import (
    SCHEMA_VERSION,
    MetricResult,
    RunResult,
    Status,
    SuiteResult,
)
from evalution.runs.folder import JOURNAL, RESULTS, SAMPLES
from evalution.samples import SampleColumns, SamplesReader, SuiteSamples
from evalution.user_input import path_errors, typed_path
from evalution_core import ConfigurationError

_RUNS_SHOWN = 3
_FAULTS_SHOWN = 3


def read_run(path: str | os.PathLike[str]) -> RunResult:
    """The result of a run from its folder, or from the `results.json` in it.

    `status` says whether the run was finished: a folder is readable from the moment its model was
    loaded. Samples are read from `samples.jsonl` when `SuiteResult.samples` is asked for them;
    where that file is missing there are none, and the scores can still be read.

    Raises:
        ConfigurationError: there is no such folder or no results in it, or the file is damaged, of
            a newer version, or was written by something else.
    """
    file = _results_file(typed_path(os.fspath(path)))
    document = _document(file)
    samples = file.with_name(SAMPLES)
    return document.as_result(file.parent, samples if samples.is_file() else None)


class _Part(BaseModel):
    """Of a result; what a later version of the same schema adds is left alone."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Metric(_Part):
    value: float | None
    stderr: float | None
    higher_is_better: bool
    n: int
    note: str = ""

    def as_result(self) -> MetricResult:
        value = self.value
        if value is None and "inf" in self.note:  # JSON has no infinity, so it stands in words
            value = -math.inf if "-inf" in self.note else math.inf
        return MetricResult(value, self.stderr, self.higher_is_better, self.n)


class _SuiteTimings(_Part):
    seconds: float
    recalled: int = 0


class _Suite(_Part):
    name: str
    type: str
    options: dict[str, Any]
    provenance: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, _Metric]
    n: int
    failed: int
    truncated: int | None
    requests: int
    first_failure: str | None
    errors: list[str]
    timings: _SuiteTimings

    def as_result(self, samples: Path | None) -> SuiteResult:
        return SuiteResult(
            name=self.name,
            type=self.type,
            options=self.options,
            provenance=self.provenance,
            metrics={name: metric.as_result() for name, metric in self.metrics.items()},
            n=self.n,
            failed=self.failed,
            truncated=self.truncated,
            requests=self.requests,
            seconds=self.timings.seconds,
            recalled=self.timings.recalled,
            first_failure=self.first_failure,
            errors=self.errors,
            samples_file=samples,
        )


class _RunTimings(BaseModel):
    """When the run was, and whatever durations it has."""

    model_config = ConfigDict(strict=True, extra="allow")

    started: str
    finished: str | None


class _Document(_Part):
    status: Status
    error: dict[str, Any] | None
    notices: list[str] = Field(default_factory=list)
    model: dict[str, Any]
    engine: dict[str, Any]
    scoring_policy: dict[str, Any]
    limit: int | None
    step: int | None = None
    suites: list[_Suite]
    versions: dict[str, Any]
    timings: _RunTimings

    def as_result(self, folder: Path, samples: Path | None) -> RunResult:
        return RunResult(
            model=self.model,
            engine=self.engine,
            scoring_policy=self.scoring_policy,
            versions=self.versions,
            limit=self.limit,
            step=self.step,
            status=self.status,
            started=self.timings.started,
            finished=self.timings.finished,
            error=self.error,
            notices=self.notices,
            timings=dict(self.timings.model_extra or {}),
            suites=[suite.as_result(samples) for suite in self.suites],
            folder=folder,
        )


def _results_file(path: Path) -> Path:
    with path_errors(path):
        if path.is_file():
            return path
        if not path.exists():
            raise ConfigurationError(
                f"there is no run folder {path}; name the folder that `evalution run` printed as "
                "its results"
            )
        if (path / RESULTS).is_file():
            return path / RESULTS
        runs = sorted(child.parent for child in path.glob(f"*/{RESULTS}"))
    if runs:
        names = ", ".join(str(run) for run in runs[-_RUNS_SHOWN:])
        raise ConfigurationError(f"{path} holds {len(runs)} runs; name one of them: {names}")
    if (path / JOURNAL).is_file():
        raise ConfigurationError(
            f"{path} holds no {RESULTS} yet: the model of the run in it was never loaded; "
            f"`evalution run SPEC --output {path}` goes on with it"
        )
    raise ConfigurationError(f"{path} holds no {RESULTS}, so it is no folder of a run")


def _document(file: Path) -> _Document:
    found = _json(file)
    version: object = found.get("schema_version")
    if type(version) is not int or version < 1:
        raise ConfigurationError(f"{file} is no result of a run: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{file} was written by a newer evalution (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade: pip install --upgrade evalution"
        )
    try:
        return _Document.model_validate(found)
    except ValidationError as error:
        raise ConfigurationError(f"{file} is damaged: {_faults(error)}") from None


def _json(file: Path) -> dict[str, Any]:
    with path_errors(file):
        content = file.read_bytes()
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{file} is no result of a run: it holds no JSON object")
    return cast(dict[str, Any], found)


def _faults(error: ValidationError) -> str:
    """Which fields are missing or of another type, as `suites[0].metrics.acc.value`."""
    faults = error.errors(include_url=False)
    shown = [f"{_place(fault['loc'])}: {_reason(fault)}" for fault in faults[:_FAULTS_SHOWN]]
    more = len(faults) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _reason(fault: Any) -> str:
    return "the field is missing" if fault["type"] == "missing" else str(fault["msg"]).lower()


def _place(location: Sequence[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


class RunSamples:
    """Looks through the run's file once, however many suites are in it.

    Every method may raise `ConfigurationError`: the file can't be read, is damaged or was written
    by something else.
    """

    def __init__(self, run: RunResult):
        self.run = run
        self._readers: dict[Path, SamplesReader] = {}
        self._columns: dict[str, SampleColumns] = {}

    def of(self, suite: SuiteResult) -> SuiteSamples:
        """The samples of a suite, unfinished or not; none where they weren't kept."""
        file = suite.samples_file
        if file is None:
            return suite.stored_samples
        return self._readers.setdefault(file, SamplesReader(file)).of(suite.name)

    def columns(self, suite: SuiteResult) -> SampleColumns:
        """The same samples as columns in the order of the rows, made once."""
        if suite.name not in self._columns:
            self._columns[suite.name] = SampleColumns(self.of(suite))
        return self._columns[suite.name]


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
