"""`evalution fidelity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from evalution.cli.errors import report_errors
from evalution.cli.options import HELP_OPTIONS, DebugOption, JsonOption
from evalution.hints import import_extra
from evalution.progress_bar import make_terminal_progress
from evalution.results import to_json
from evalution.runs.preflight import EngineAndModel
from evalution.table import make_console
from evalution.yaml_spec.run_spec import load_spec

if TYPE_CHECKING:
    from evalution.fidelity.result import FidelityResult

_COMPARE = "compare"


class _MeasuresByDefault(TyperGroup):
    """Takes `fidelity A B` for `fidelity compare A B`, which is hardly ever written out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_command else [_COMPARE, *args])


app = typer.Typer(
    name="fidelity",
    cls=_MeasuresByDefault,
    context_settings=HELP_OPTIONS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Measure how far a way of serving a model is from a reference.",
)

TextOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A text to take in place of the reference's tests."),
]
WindowOption = Annotated[
    int | None,
    typer.Option(min=2, help="Tokens fed at most [default: what both take, at most 2048]."),
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="At most that many rows of each test.")
]


@app.command(_COMPARE)
def compare(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="The spec that is held to be right.")
    ],
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="The spec whose distance is measured.")
    ],
    control: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="The reference's model on the candidate's engine [default: tried by itself].",
        ),
    ] = None,
    no_control: Annotated[bool, typer.Option("--no-control", help="Look for no control.")] = False,
    text: TextOption = None,
    window: WindowOption = None,
    top: Annotated[
        int, typer.Option(min=1, help="Likeliest tokens to ask an engine for that has no rows.")
    ] = 20,
    limit: LimitOption = None,
    output: Annotated[
        str | None,
        typer.Option(help="A folder for fidelity.json; the same again goes on where it was."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure KL divergence, flips and perplexity ratio of CANDIDATE against REFERENCE.

    Both are specs of runs; the tests are those of REFERENCE. `evalution fidelity record` keeps a
    reference in a file, which then stands in place of its spec.
    """
    with report_errors(debug=debug):
        import_extra("numpy", "fidelity", "fidelity", "numpy")
        from evalution.fidelity import measurement, store  # noqa: PLC0415 - only this command

        left, right = load_spec(reference), load_spec(candidate)
        held = None if control is None else load_spec(control)
        folder = None if output is None else store.FIDELITY_FILE.make_folder(output)
        found = measurement.measure_fidelity(
            EngineAndModel(left.engine, left.model),
            EngineAndModel(right.engine, right.model),
            left.tests if text is None else [measurement.read_text_suite(text)],
            measurement.FidelityOptions(
                window=window,
                top=top,
                limit=limit,
                output=folder,
                control=None if held is None else EngineAndModel(held.engine, held.model),
                seeks_control=not no_control,
                isolate=left.isolate or right.isolate,
            ),
            progress=make_terminal_progress(),
        )
        written = None if folder is None else store.write_fidelity(found, folder)
        _show(found, written, as_json=as_json)


def _show(result: FidelityResult, written: Path | None, *, as_json: bool) -> None:
    from evalution.fidelity import table, wording  # noqa: PLC0415 - as above

    if as_json:
        print(to_json(result.to_dict(), indent=2))
        return
    terminal = make_console()
    for line in table.list_headings(result):
        terminal.print(line, soft_wrap=True)
    terminal.print(table.make_fidelity_table(result, width=terminal.width))
    terminal.print(table.LEGEND, style="dim", soft_wrap=True)
    for note in result.notes:
        terminal.print(note, style="yellow", soft_wrap=True)
    for line in wording.describe_result(result):
        terminal.print(line, style="bold", soft_wrap=True)
    if written is not None:
        print(f"results: {written}")
