"""Arguments and options that several commands take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evalution_core import ConfigurationError

HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}
"""The settings of every command by which `-h` is `--help`."""

SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or builtin:tiny/quickstart.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


OutputFileOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="A file in place of stdout.")
]


def write_text(text: str, output: Path | None) -> None:
    """Write `text` to stdout, or into a file whose name is then printed.

    Raises:
        ConfigurationError: the file can't be written.
    """
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{output} can't be written: {error.strerror}; name another --output"
        ) from error
    print(f"written: {output}")
