"""Reads the results and samples of a run from its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evalution.result_file import RESULT_FILES
from evalution.results import SCHEMA_VERSION, RunResult, SuiteResult
from evalution.runs.progress_file import read_progress
from evalution.runs.store import JOURNAL, RESULTS
from evalution.sample_columns import SampleColumns, collect_columns
from evalution.samples_file import SAMPLES, SamplesReader, SuiteSamples
from evalution.user_input import DamagedResultError, parse_path, path_errors, read_result_file
from evalution_core import ConfigurationError

_RUNS_SHOWN = 3
_PROBLEMS_SHOWN = 3


def read_run(path: str | os.PathLike[str]) -> RunResult:
    """Read the result of a run from its folder, or from the `results.json` in it.

    `status` says whether the run was finished: a folder is readable from the moment its model was
    loaded. Samples are read from `samples.jsonl` when `SuiteResult.samples` is asked for them;
    where that file is missing there are none, and the scores can still be read.

    Raises:
        ConfigurationError: there is no such folder or no results in it, or the file is damaged, of
            a newer version, or was written by something else.
    """
    file = _find_results_file(parse_path(os.fspath(path)))
    try:
        result = _parse_result(file)
    except DamagedResultError as error:
        if file.with_name(JOURNAL).is_file():
            error.add_note(
                f"hint: `evalution run SPEC --output {file.parent} --retry-failed` with the run's "
                "spec writes it again; what is in the journal isn't computed again"
            )
        raise
    result.folder = file.parent
    samples = file.with_name(SAMPLES)
    for suite in result.suites if samples.is_file() else ():
        suite.samples_file = samples
    return result


def _find_results_file(path: Path) -> Path:
    with path_errors(path):
        if path.is_file() and path.suffix == Path(RESULTS).suffix:
            return path
        if path.is_file():
            raise ConfigurationError(f"{path} is no {RESULTS} of a run; name the folder of one")
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
        raise ConfigurationError(
            f"{path} is no run itself; name one of those in it ({len(runs)} in all): {names}"
        )
    if read_progress(path) is not None:
        raise ConfigurationError(
            f"{path} holds no {RESULTS} yet: the model of the run in it is being loaded; look "
            "again when it is"
        )
    if (path / JOURNAL).is_file():
        raise ConfigurationError(
            f"{path} holds no {RESULTS} yet: the model of the run in it was never loaded; "
            f"`evalution run SPEC --output {path}` goes on with it"
        )
    if other := next((name for name in RESULT_FILES if (path / name).is_file()), None):
        raise ConfigurationError(
            f"{path} holds {other}, what `evalution {Path(other).stem}` found, and no run"
        )
    raise ConfigurationError(f"{path} holds no {RESULTS}, so it is no folder of a run")


def _parse_result(file: Path) -> RunResult:
    found = read_result_file(file, "a run", SCHEMA_VERSION)
    try:
        result = RunResult.from_dict(found)
    except ValidationError as error:
        raise DamagedResultError(f"{file} is damaged: {_format_problems(error)}") from None
    if missing := [name for name in result.to_dict() if name not in found]:
        raise DamagedResultError(f"{file} is damaged: {missing[0]}: the field is missing")
    return result


def _format_problems(error: ValidationError) -> str:
    """Return the fields that are missing or of another type, as `suites[0].metrics.acc.value`."""
    problems = error.errors(include_url=False)
    shown = [
        f"{_format_location(problem['loc'])}: {_format_reason(problem)}"
        for problem in problems[:_PROBLEMS_SHOWN]
    ]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _format_reason(problem: Any) -> str:
    return "the field is missing" if problem["type"] == "missing" else str(problem["msg"]).lower()


def _format_location(location: Sequence[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


class RunSamples:
    """The samples of one run, whose file is scanned once, however many suites are in it.

    Every method may raise `ConfigurationError`: the file can't be read, is damaged or was written
    by something else.
    """

    def __init__(self, run: RunResult):
        self.run = run
        self._readers: dict[Path, SamplesReader] = {}
        self._columns: dict[str, SampleColumns] = {}

    def of(self, suite: SuiteResult) -> SuiteSamples:
        """Return the samples of a suite, unfinished or not; none where they weren't kept."""
        reader = self._find_reader(suite)
        return suite.stored_samples if reader is None else reader.of(suite.name)

    def columns(self, suite: SuiteResult) -> SampleColumns:
        """Return the same samples as columns in the order of the rows, made once."""
        if suite.name not in self._columns:
            reader = self._find_reader(suite)
            self._columns[suite.name] = (
                collect_columns(suite.stored_samples)
                if reader is None
                else reader.columns(suite.name)
            )
        return self._columns[suite.name]

    def _find_reader(self, suite: SuiteResult) -> SamplesReader | None:
        file = suite.samples_file
        return None if file is None else self._readers.setdefault(file, SamplesReader(file))


def read_partial_suites(run: RunResult) -> list[SuiteResult]:
    """Return suites with samples and no scores, those a run was cut off in; only name and samples.

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
    return [
        _make_partial_suite(name, file)
        for name in SamplesReader(file).suites
        if name not in finished
    ]


def _make_partial_suite(name: str, file: Path) -> SuiteResult:
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
