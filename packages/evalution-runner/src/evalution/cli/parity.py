"""`evalution parity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalution.cli.errors import EXIT_OUTSIDE, NOTHING_KEPT, report_errors
from evalution.cli.options import DebugOption, JsonOption, SpecArgument
from evalution.progress_bar import make_terminal_progress
from evalution.results import to_json
from evalution.runs.preflight import EngineAndModel
from evalution.table import print_answer
from evalution.yaml_spec.run_spec import Spec, load_measured_spec
from evalution_core import ConfigurationError

if TYPE_CHECKING:
    from evalution.parity import ParityResult


def parity(
    spec: SpecArgument,
    output: Annotated[
        str | None, typer.Option(help="A folder for parity.json [default: it is not saved].")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="The largest difference of a log-probability, in nats.")
    ] = 1e-4,
    decisions: Annotated[
        int, typer.Option(min=0, help="Answers that may differ, not counting near ties.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most that many rows of each test.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Send texts, for an engine that takes no token ids.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare two engines: the same token ids through both. Exit code 3: they differ."""
    with report_errors(debug=debug, kept=NOTHING_KEPT):
        from evalution import parity as check  # noqa: PLC0415 - only this command needs it
        from evalution.parity import result as file  # noqa: PLC0415 - as above

        loaded = load_measured_spec(spec, has_against=True)
        folder = None if output is None else file.PARITY_FILE.make_folder(output)
        result = check.check_parity(
            EngineAndModel(loaded.engine, loaded.model),
            _require_against(loaded, spec),
            loaded.tests,
            tolerance=check.Tolerance(tolerance, decisions),
            limit=limit,
            by_text=text,
            isolate=loaded.isolate,
            progress=make_terminal_progress(),
        )
        written = None if folder is None else file.write_parity(result, folder)
        _show(result, written, as_json=as_json)
        if not result.is_within:
            raise typer.Exit(EXIT_OUTSIDE)


def _require_against(loaded: Spec, spec: str) -> EngineAndModel:
    if loaded.against is None:
        name = type(loaded.engine).__name__
        raise ConfigurationError(
            f"{spec} has no section 'against', so there is nothing to hold {name} against; for "
            "instance `against: {engine: Reference}`, which takes the same model"
        )
    return loaded.against


def _show(result: ParityResult, written: Path | None, *, as_json: bool) -> None:
    from evalution.parity import table  # noqa: PLC0415 - as above

    if as_json:
        print(to_json(result.to_dict(), indent=2))
        return
    print_answer(
        table.list_headings(result),
        lambda width: table.make_parity_table(result, width=width),
        table.LEGEND,
        table.list_remarks(result),
        table.list_verdict(result),
        written,
        style="green" if result.is_within else "red",
    )
