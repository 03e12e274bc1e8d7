"""`evalution run`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer

from evalution.cli.errors import EXIT_WITH_FAILURES, told_errors
from evalution.cli.options import DebugOption, SpecArgument
from evalution.progress import PlainProgress, Progress
from evalution.progress_bar import ProgressBar
from evalution.results import RunResult
from evalution.run_folder import DefaultFolder
from evalution.run_handle import Run
from evalution.spec import Spec, load_spec
from evalution.table import complaints, console, result_table
from evalution_core import ConfigurationError, EvalutionError, UnsupportedRequestError


def run(
    spec: SpecArgument,
    output: Annotated[
        str | None,
        typer.Option(help="The run folder [default: runs/<date-time>-<model>]."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most that many rows of each test.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run a spec: progress, a table of scores, and a run folder."""
    with told_errors(debug=debug):
        loaded = load_spec(spec)
        folder = DefaultFolder(loaded.model.name, datetime.now()) if output is None else output
        handle = Run(loaded.engine, loaded.model, output=folder, limit=limit, progress=_progress())
        try:
            _run_all(handle, loaded)
        finally:
            if handle.has_begun:
                _show(handle.result)
        if handle.result.failed:
            raise typer.Exit(EXIT_WITH_FAILURES)


def _run_all(handle: Run, spec: Spec) -> None:
    try:
        with handle:
            handle.prepare(spec.tests)
            for suite in spec.tests:
                handle.run(suite)
    except (ConfigurationError, UnsupportedRequestError) as error:
        if not handle.has_begun:
            raise
        # The spec was right when the run began: this is a failed run.
        failure = _RunFailedError(str(error))
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        raise failure from error


def _show(result: RunResult) -> None:
    if result.suites:
        terminal = console()
        terminal.print(result_table(result, width=terminal.width))
    for line in complaints(result):
        console(stderr=True).print(line, style="yellow", soft_wrap=True)
    print(f"results: {result.folder}")


class _RunFailedError(EvalutionError):
    """A run that began and did not finish."""


def _progress() -> Progress:
    terminal = console(stderr=True)
    return ProgressBar(terminal) if terminal.is_terminal else PlainProgress(sys.stderr)
