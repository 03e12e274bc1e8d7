"""`evalution run`; the first Ctrl-C finishes what is in flight, the second ends at once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from signal import SIGINT, Signals
from types import FrameType
from typing import Annotated

import typer

from evalution.cli.errors import EXIT_WITH_FAILURES, hint_isolation, report_errors
from evalution.cli.options import DebugOption, SpecArgument
from evalution.cli.signals import SignalReceived, catch_signals, leave_terminal
from evalution.progress_bar import make_terminal_progress
from evalution.results import RunResult
from evalution.runs.options import DefaultFolder, RunOptions
from evalution.runs.preflight import parse_tests
from evalution.runs.run import Run
from evalution.table import list_complaints, make_console, make_result_table
from evalution.yaml_spec.run_spec import Spec, load_spec
from evalution_core import ConfigurationError, EvalutionError, UnsupportedRequestError


@contextmanager
def finish_in_flight(handle: Run) -> Generator[None]:
    """Within it, a signal asks `handle` to stop; where nothing is in flight it ends at once."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        leave_terminal(number)
        received.append(number)
        if not handle.stop():
            raise KeyboardInterrupt
        again = "Ctrl-C" if number == SIGINT else Signals(number).name
        print(
            f"finishing what is in flight; {again} once more ends at once",
            file=sys.stderr,
            flush=True,
        )

    with catch_signals(interrupt):
        try:
            yield
        except KeyboardInterrupt as error:
            if not received:
                raise
            raise SignalReceived(received[0]) from error


def run(
    spec: SpecArgument,
    output: Annotated[
        str | None,
        typer.Option(
            help="The run folder [default: runs/<date-time>-<model>]; an unfinished run goes on."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over where the run folder holds a run.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again for what failed in the run folder.")
    ] = False,
    cache: Annotated[
        str | None, typer.Option(help="A folder of answers that runs on one model share.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most that many rows of each test.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run suites or a spec: progress, a table of scores, and a run folder."""
    with report_errors(debug=debug):
        _check_choice(output, fresh=fresh, retry_failed=retry_failed)
        loaded = load_spec(spec)
        _check_one_engine(loaded, spec)
        options = RunOptions(
            output=DefaultFolder(loaded.model.name, datetime.now()) if output is None else output,
            fresh=fresh,
            retry_failed=retry_failed,
            cache=cache,
            limit=limit,
            isolate=loaded.isolate,
            failures=loaded.failures,
            backend=loaded.backend,
            progress=make_terminal_progress(),
        )
        handle = Run(loaded.engine, loaded.model, options)
        _run_and_show(handle, loaded, partial(_format_resume_command, spec, limit, cache))
        if handle.result.failed:
            raise typer.Exit(EXIT_WITH_FAILURES)


def _check_choice(output: str | None, *, fresh: bool, retry_failed: bool) -> None:
    if fresh and retry_failed:
        raise ConfigurationError("--fresh starts over and --retry-failed goes on; take one")
    if output is None and (fresh or retry_failed):
        option = "--fresh" if fresh else "--retry-failed"
        raise ConfigurationError(
            f"{option} is for a run folder that is there; name it with --output"
        )


def _check_one_engine(loaded: Spec, spec: str) -> None:
    if loaded.against is not None:
        raise ConfigurationError(
            f"{spec} has the section 'against', which is for `evalution parity {spec}`; a run has "
            "one engine"
        )


def _run_and_show(handle: Run, loaded: Spec, make_command: Callable[[RunResult], str]) -> None:
    can_resume = True
    try:
        _run_all(handle, loaded)
    except _RunRefusedError:
        can_resume = False
        raise
    finally:
        if handle.has_begun:
            _show(handle.result, make_command(handle.result) if can_resume else None)


def _run_all(handle: Run, spec: Spec) -> None:
    is_elsewhere = spec.isolate or type(spec.engine).is_out_of_process
    can_isolate = not is_elsewhere and spec.backend is None
    try:
        with hint_isolation(is_possible=can_isolate), finish_in_flight(handle), handle:
            suites = parse_tests(spec.tests)
            handle.prepare(suites)
            for suite in suites:
                handle.run(suite)
    except (ConfigurationError, UnsupportedRequestError) as error:
        if not handle.has_begun:
            raise
        # The spec was right when the run began: this is a failed run.
        failure = _RunRefusedError(str(error))
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        raise failure from error


def _format_resume_command(
    spec: str, limit: int | None, cache: str | None, result: RunResult
) -> str:
    """The command by which a run goes on."""
    words = ["evalution", "run", spec, "--output", str(result.folder)]
    if limit is not None:
        words += ["--limit", str(limit)]
    if cache is not None:
        words += ["--cache", cache]
    return shlex.join(words)


def _show(result: RunResult, again: str | None) -> None:
    if result.suites:
        terminal = make_console()
        terminal.print(make_result_table(result, width=terminal.width))
    for line in (*result.notices, *list_complaints(result)):
        make_console(stderr=True).print(line, style="yellow", soft_wrap=True)
    print(f"results: {result.folder}")
    if result.status != "done" and again is not None:
        print(f"to resume: {again}")


class _RunRefusedError(EvalutionError):
    """A run that began with a model that can't do it; the same command would fail again."""
