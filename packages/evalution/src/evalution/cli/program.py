"""The commands under one name."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from io import TextIOWrapper
from typing import Annotated

import typer

from evalution.cli.engines import engines
from evalution.cli.run import run
from evalution.cli.validate import validate

app = typer.Typer(
    name="evalution",
    help="Measure language models on any engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


for _command in (run, engines, validate):
    app.command()(_command)
