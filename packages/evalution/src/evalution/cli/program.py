"""The commands under one name."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from evalution.cli.compare import compare
from evalution.cli.doctor import doctor
from evalution.cli.emit_python import emit_python
from evalution.cli.engines import engines
from evalution.cli.extensions import add_commands
from evalution.cli.options import HELP_OPTIONS
from evalution.cli.parity import parity
from evalution.cli.report import report
from evalution.cli.run import run
from evalution.cli.schema import schema
from evalution.cli.show import show
from evalution.cli.standard_streams import lasting_streams
from evalution.cli.suites import suites
from evalution.cli.validate import validate

app = typer.Typer(
    name="evalution",
    help="Measure language models on any engine.",
    context_settings=HELP_OPTIONS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """The console script."""
    with lasting_streams():
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


# In the order in which a newcomer wants them: evaluate, read results, look around, write specs.
_COMMANDS = (
    run,
    validate,
    show,
    compare,
    parity,
    report,
    engines,
    suites,
    doctor,
    schema,
    emit_python,
)
for _command in _COMMANDS:
    app.command()(_command)
add_commands(app, {command.__name__.replace("_", "-") for command in _COMMANDS})
