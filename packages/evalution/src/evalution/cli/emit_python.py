"""`evalution emit-python`."""

from __future__ import annotations

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption, SpecArgument
from evalution.cli.output import OutputFileOption, write_text
from evalution.spec.program import spec_program
from evalution.spec.run_spec import load_spec


def emit_python(
    spec: SpecArgument, output: OutputFileOption = None, debug: DebugOption = False
) -> None:
    """Write the Python program that runs the same as a spec."""
    with told_errors(debug=debug):
        write_text(spec_program(load_spec(spec), spec), output)
