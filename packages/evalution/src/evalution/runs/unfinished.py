"""Suites that a run was cut off in, or is at: without scores, but their samples are there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from evalution.paths import path_errors
from evalution.results import RunResult, SuiteResult
from evalution.runs.folder import SAMPLES

_FIRST = '{"suite": '
"""What every line of `samples.jsonl` begins with."""


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
        names = dict.fromkeys(_names(file))
    return [_begun(name, file) for name in names if all(name != s.name for s in run.suites)]


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


def _names(file: Path) -> Iterator[str]:
    """The suite of each line, as far as it can be told; once for lines in a row of the same."""
    decoder, known = json.JSONDecoder(), _FIRST
    with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            if line.startswith(known) and known != _FIRST:
                continue
            try:
                name, end = decoder.raw_decode(line, len(_FIRST))
            except ValueError:  # a part of a line, which a killed process left
                continue
            if line.startswith(_FIRST) and isinstance(name, str):
                known = line[:end]
                yield name
