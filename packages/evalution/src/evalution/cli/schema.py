"""`evalution schema`."""

from __future__ import annotations

import json

import typer

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption
from evalution.cli.output import OutputFileOption, write_text
from evalution.spec.schema import spec_schema
from evalution_core import scrub


def schema(output: OutputFileOption = None, debug: DebugOption = False) -> None:
    """Write the JSON Schema of a spec, for an editor.

    It knows all installed engines and suites. An editor with the YAML language server checks and
    completes a spec by it if the spec begins with `# yaml-language-server: $schema=FILE`.
    """
    with told_errors(debug=debug):
        found = spec_schema()
        for complaint in found.complaints:
            typer.echo(f"left out: {scrub(complaint)}", err=True)
        write_text(json.dumps(found.schema, indent=2, ensure_ascii=False) + "\n", output)
