"""`evalution inspect-log`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalution.runs.reader import read_run
from evalution_inspect.logs.log_files import write_logs

RunFolder = Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run.")]
Output = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where the logs go [default: DIR/inspect].")
]
Suites = Annotated[
    list[str] | None, typer.Option("--suite", metavar="NAME", help="Only this suite; repeatable.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def inspect_log(
    directory: RunFolder,
    output: Output = None,
    suite: Suites = None,
    debug: Debug = False,  # the runner reads it, which tells the errors of every command
) -> None:
    """Write a run as logs of Inspect, one a suite, which `inspect view` shows."""
    run = read_run(directory)
    folder = Path(output) if output else (run.folder or Path(directory)) / "inspect"
    for path in write_logs(run, folder, suite or ()):
        print(path)
    print(f"look at them: inspect view --log-dir {folder}")
