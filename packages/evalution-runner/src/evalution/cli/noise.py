"""`evalution noise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalution.cli.errors import NOTHING_KEPT, report_errors
from evalution.cli.options import DebugOption, JsonOption, SpecArgument
from evalution.progress_bar import make_terminal_progress
from evalution.results import to_json
from evalution.runs.preflight import EngineAndModel
from evalution.table import print_answer
from evalution.yaml_spec.run_spec import load_measured_spec

if TYPE_CHECKING:
    from evalution.noise import NoiseResult


def noise(
    spec: SpecArgument,
    output: Annotated[
        str | None, typer.Option(help="A folder for noise.json [default: it is not saved].")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most that many rows of each test.")] = 20,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Ask one engine the same under changed conditions: which of them change its numbers?"""
    with report_errors(debug=debug, kept=NOTHING_KEPT):
        from evalution.noise import measurement, result  # noqa: PLC0415 - only this command

        loaded = load_measured_spec(spec)
        folder = None if output is None else result.NOISE_FILE.make_folder(output)
        found = measurement.measure_noise(
            EngineAndModel(loaded.engine, loaded.model),
            loaded.tests,
            limit=limit,
            isolate=loaded.isolate,
            progress=make_terminal_progress(),
        )
        written = None if folder is None else result.write_noise(found, folder)
        _show(found, written, as_json=as_json)


def _show(result: NoiseResult, written: Path | None, *, as_json: bool) -> None:
    from evalution.noise import table  # noqa: PLC0415 - as above

    if as_json:
        print(to_json(result.to_dict(), indent=2))
        return
    print_answer(
        table.list_headings(result),
        lambda width: table.make_noise_table(result, width=width),
        table.LEGEND,
        table.list_remarks(result),
        table.list_verdicts(result),
        written,
    )
