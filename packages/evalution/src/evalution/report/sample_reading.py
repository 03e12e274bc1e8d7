"""The samples of whole runs: a file of many suites is read once, not once for each of them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from evalution.paths import path_errors
from evalution.results import RunResult, SampleResult
from evalution_core import ConfigurationError

_Samples = dict[str, list[SampleResult]]


def with_samples(run: RunResult) -> RunResult:
    """A copy of the run that holds its samples in memory; one without a file has none to read.

    Raises:
        ConfigurationError: a file of samples can't be read, or holds something else.
    """
    files = {suite.samples_file for suite in run.suites if suite.samples_file is not None}
    found = {file: _read(file) for file in files}
    suites = [
        suite
        if suite.samples_file is None
        else replace(
            suite, kept_samples=found[suite.samples_file].get(suite.name, []), samples_file=None
        )
        for suite in run.suites
    ]
    return replace(run, suites=suites)


def _read(file: Path) -> _Samples:
    """Samples by suite in the order of their lines; one that was cut short at the end is none."""
    found: _Samples = defaultdict(list)
    with path_errors(file):
        try:
            with file.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        sample = SampleResult(**json.loads(line))
                        found[sample.suite].append(sample)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{file} is damaged or was not written by a run: {type(error).__name__}: {error}"
            ) from error
    return found
