"""The command line.

Exit codes: 0 done, 1 the run failed, 2 a wrong spec or wrong use, 3 finished with failed requests,
130 interrupted.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version as installed_version
from io import TextIOWrapper
from signal import SIG_IGN, SIGINT, signal
from typing import Annotated

import typer

from evalution.hints import INSTALL_HINTS
from evalution.preflight import check_capabilities, check_model
from evalution.progress import PlainProgress, Progress
from evalution.progress_bar import ProgressBar
from evalution.results import RunResult
from evalution.run_folder import DefaultFolder
from evalution.run_handle import Run
from evalution.spec import Spec, load_spec
from evalution.table import (
    complaints,
    console,
    engines_table,
    options_table,
    result_table,
)
from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    EvalutionError,
    UnsupportedRequestError,
    available,
    load_engine,
    scrub,
)

EXIT_FAILED, EXIT_USAGE, EXIT_WITH_FAILURES, EXIT_INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    name="evalution",
    help="Measure language models on any engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or builtin:tiny/quickstart.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def main() -> None:
    """The console script."""
    # A terminal that can't show an arrow must not cost the scores.
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"evalution {installed_version('evalution')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
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
    with _told_errors(debug=debug):
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


@app.command()
def engines(
    name: Annotated[str | None, typer.Argument(help="Show this engine's options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the schema.")] = False,
    debug: DebugOption = False,
) -> None:
    """List the installed engines, or show one with its options. Listing imports none of them."""
    with _told_errors(debug=debug):
        if name is None:
            _list_engines(as_json=as_json)
        else:
            _show_engine(name, as_json=as_json)


@app.command()
def validate(spec: SpecArgument, debug: DebugOption = False) -> None:
    """Check a spec without loading the model: engine, options, tests, and every row."""
    with _told_errors(debug=debug):
        loaded = load_spec(spec)
        check_model(loaded.model, loaded.engine)
        engine = type(loaded.engine)
        check_capabilities(loaded.tests, engine.capabilities, f"of engine {engine.__name__}")
        print(f"engine {engine.__name__}, model {loaded.model.name}")
        for suite in loaded.tests:
            print(f"test {suite.title}: {type(suite).__name__}, {suite.check_samples()} rows")
        print(f"{spec} is valid")


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


def _list_engines(*, as_json: bool) -> None:
    entries = available()
    if as_json:
        fields = ("name", "distribution", "version", "value")
        print(json.dumps([{f: getattr(entry, f) for f in fields} for entry in entries], indent=2))
    elif entries:
        console().print(engines_table(entries))
    else:
        print("no engine is installed; the smallest one comes with pip install evalution-reference")


def _show_engine(name: str, *, as_json: bool) -> None:
    engine = load_engine(name, hints=INSTALL_HINTS)
    capabilities = sorted(engine.capabilities)
    if as_json:
        shown = {
            "name": engine.__name__,
            "capabilities": capabilities,
            "options_schema": engine.options_schema(),
        }
        print(json.dumps(shown, indent=2))
        return
    if engine.__doc__:
        print(engine.__doc__.strip().splitlines()[0])
    console().print(options_table(engine))
    print(f"can: {', '.join(capabilities)}")


@contextmanager
def _told_errors(*, debug: bool) -> Generator[None]:
    try:
        yield
    except EvalutionError as error:
        if debug:
            traceback.print_exc()
        _tell(error)
        is_usage = isinstance(error, ConfigurationError | UnsupportedRequestError)
        raise typer.Exit(EXIT_USAGE if is_usage else EXIT_FAILED) from None
    except KeyboardInterrupt:
        before = signal(SIGINT, SIG_IGN)  # a second Ctrl-C must not end this as something else
        if debug:
            traceback.print_exc()
        print("interrupted; what was finished is kept", file=sys.stderr)
        signal(SIGINT, before)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _tell(error: EvalutionError) -> None:
    terminal = console(stderr=True)
    terminal.print("error:", style="bold red", end=" ")
    terminal.print(scrub(str(error)), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        terminal.print(f"note: {scrub(note)}", soft_wrap=True)
    if isinstance(error, EngineUnavailableError):
        hint = "`evalution engines` lists what is installed"
        terminal.print(f"hint: {hint}", soft_wrap=True)


if __name__ == "__main__":
    main()
