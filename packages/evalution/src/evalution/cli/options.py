"""Arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}
"""The settings of every command by which `-h` is `--help`."""

SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or builtin:tiny/quickstart.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]
