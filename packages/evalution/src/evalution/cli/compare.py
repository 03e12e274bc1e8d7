"""`evalution compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption, JsonOption
from evalution.results import to_json
from evalution.table import console
from evalution_core import ConfigurationError

_FLIPS_SHOWN = 10


def compare(
    left: Annotated[str, typer.Argument(metavar="A", help="The folder of a run.")],
    right: Annotated[str, typer.Argument(metavar="B", help="The folder of another one.")],
    flipped: Annotated[
        int | None,
        typer.Option(min=0, help="At most that many flipped rows of each suite [default: 10]."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare two runs: scores, whether the difference could be chance, and rows that flipped."""
    with told_errors(debug=debug):
        from evalution import comparison  # noqa: PLC0415 - only this command needs it
        from evalution.comparison import table  # noqa: PLC0415 - as above
        from evalution.runs.reader import read_run  # noqa: PLC0415 - as above

        if as_json and flipped is not None:
            raise ConfigurationError("--flipped is for the table; --json has every flipped row")
        found = comparison.compare(read_run(left), read_run(right))
        if as_json:
            print(to_json(found.to_dict(), indent=2))
            return
        terminal = console()
        for line in table.headings(found):
            terminal.print(line, soft_wrap=True)
        if found.suites:
            terminal.print(table.comparison_table(found, width=terminal.width))
            terminal.print(table.legend(terminal.width), style="dim", soft_wrap=True)
        for line in table.remarks(found):
            terminal.print(line, style="yellow", soft_wrap=True)
        most = _FLIPS_SHOWN if flipped is None else flipped
        for suite in found.suites:
            if suite.flips and most:
                terminal.print("\n" + table.flip_heading(suite, most), soft_wrap=True)
                terminal.print(table.flip_table(suite, most))
