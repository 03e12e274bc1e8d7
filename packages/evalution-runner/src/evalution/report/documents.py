"""Documents of a report: all that `evalution view` would send about its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalution.comparison.comparison import compare_samples, find_flipped_rows
from evalution.report.samples import embed_samples
from evalution.results import RunResult
from evalution.runs.progress_file import read_progress
from evalution.samples_file import SAMPLES, SamplesTail
from evalution.view.comparison import make_comparison
from evalution.view.documents import RunDetailDocument
from evalution.view.labels import label_runs
from evalution.view.runs import ViewedRun, describe_run, list_runs

_BASELINES = 20
"""Runs of a report beyond which only the first can be the baseline of a comparison."""
_READ_AT_ONCE = 16 << 20


def make_documents(runs: Sequence[RunResult], samples_per_suite: int) -> Mapping[str, Any]:
    """Return all that the scripts of a page without a server read; a run's letter is its id.

    Raises:
        ConfigurationError: a file of samples can't be read, or is damaged.
    """
    labels = label_runs(runs)
    viewed = [_view_run(label.letter, run) for label, run in zip(labels, runs, strict=True)]
    listed = {found["id"]: found for found in list_runs(viewed)["runs"]}
    scored = [run for run in viewed if run.result.suites] or viewed
    compared = {
        base.id: [
            (run.id, compare_samples(base.samples, run.samples, with_texts=False))
            for run in viewed
            if run is not base
        ]
        for base in (viewed if len(viewed) <= _BASELINES else scored[:1])
    }
    flipped = find_flipped_rows(comparison for _, comparison in compared[scored[0].id])
    rows, counts = embed_samples(viewed, samples_per_suite, flipped)
    return {
        "runs": {"runs": [listed[run.id] for run in viewed]},
        "details": {run.id: _describe(run, runs[0]) for run in viewed},
        "comparisons": {base: make_comparison(base, found) for base, found in compared.items()},
        "samples": rows,
        "counts": counts,
    }


def _view_run(letter: str, run: RunResult) -> ViewedRun:
    """Return the run with the samples of the suites that it was cut off in."""
    viewed = ViewedRun(letter, run)
    if run.folder is not None and run.status != "done":
        viewed.state = read_progress(run.folder)
    file = None if run.folder is None or run.status == "done" else run.folder / SAMPLES
    if file is not None and file.is_file():
        tail = SamplesTail(file)
        while tail.read_more(_READ_AT_ONCE):
            pass
        viewed.update(tail)
    return viewed


def _describe(run: ViewedRun, first: RunResult) -> RunDetailDocument:
    found = describe_run(run)
    if run.result.precision == first.precision:
        return found
    own, other = (side.precision or "a precision that isn't known" for side in (run.result, first))
    notice = f"Computed in {own}, the first run in {other}: the scores differ by rounding too."
    return {**found, "notices": [notice, *found["notices"]]}
