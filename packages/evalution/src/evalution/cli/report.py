"""`evalution report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption


def report(
    folders: Annotated[
        list[str], typer.Argument(metavar="DIR", help="Folders of runs, or of parity checks.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The page; an older one is replaced.")
    ] = Path("report.html"),
    samples: Annotated[
        int, typer.Option(min=0, help="At most that many rows of each suite in the page.")
    ] = 2000,
    debug: DebugOption = False,
) -> None:
    """Write one HTML page: scores and plots side by side, samples to search, run conditions."""
    with told_errors(debug=debug):
        from evalution.report import write_report  # noqa: PLC0415 (only this command needs it)
        from evalution.report.folders import read_folders  # noqa: PLC0415 (as above)

        runs, checks = read_folders(folders)
        written = write_report(runs, output, samples_per_suite=samples, parity=checks)
        print(f"report: {written.path} ({written.size / 1e6:.1f} MB)")
