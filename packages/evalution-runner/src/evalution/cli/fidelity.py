"""`evalution fidelity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import evalution.fidelity as measuring
from evalution.cli.errors import KEPT, NOTHING_KEPT, report_errors
from evalution.cli.options import Command, DebugOption, JsonOption, make_app
from evalution.fidelity.store import FIDELITY_FILE
from evalution.progress_bar import make_terminal_progress
from evalution.results import to_json
from evalution.runs.preflight import EngineAndModel
from evalution.table import print_answer
from evalution.user_input import parse_path, path_errors
from evalution.yaml_spec.run_spec import Spec, load_measured_spec
from evalution_core import ConfigurationError

if TYPE_CHECKING:
    from evalution.fidelity.result import FidelityResult

_COMPARE = "compare"
_SQLITE = b"SQLite format 3\0"
_GOES_ON = f"{KEPT}: the same command goes on there"


class _MeasuresByDefault(TyperGroup):
    """Takes `fidelity A B` for `fidelity compare A B`, which is hardly ever written out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_command else [_COMPARE, *args])


fidelity = make_app(
    "fidelity",
    cls=_MeasuresByDefault,
    add_completion=False,
    help="Measure how far a way of serving a model is from a reference.",
)

TextOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A text to take in place of the reference's tests."),
]
WindowOption = Annotated[
    int | None,
    typer.Option(
        min=2, help="Tokens of one window [default: what both engines take, at most 2048]."
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="At most that many rows of each test.")
]


ControlOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="A spec of the reference's model on the candidate's engine, to separate what the "
        "engine and what the weights change [default: tried if the engine can load it].",
    ),
]
NoControlOption = Annotated[
    bool, typer.Option("--no-control", help="Run no control, even where one is possible.")
]
FolderOption = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", help="A folder for fidelity.json; the same command again continues."
    ),
]


@fidelity.command(_COMPARE, cls=Command)
def compare(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="What is right: a spec, or a recording.")
    ],
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="The spec whose distance is measured.")
    ],
    control: ControlOption = None,
    no_control: NoControlOption = False,
    text: TextOption = None,
    window: WindowOption = None,
    top: Annotated[
        int,
        typer.Option(
            min=1, help="Most likely tokens to compare, if an engine gives no whole distributions."
        ),
    ] = 20,
    limit: LimitOption = None,
    output: FolderOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure KL divergence, flips and perplexity ratio of CANDIDATE against REFERENCE.

    Both are specs of runs; the tests are those of REFERENCE. A file of `evalution fidelity record`
    may take its place: the tests are those of CANDIDATE then.
    """
    kept = f"{NOTHING_KEPT} without --output" if output is None else _GOES_ON
    with report_errors(debug=debug, kept=kept):
        measure = measuring.measure_fidelity  # before anything is made, as it may lack NumPy
        _check_limit(text, limit)
        if control is not None and no_control:
            raise ConfigurationError("--control and --no-control exclude each other; take one")
        right = _load_live(candidate, "candidate")
        held = None if control is None else _pair(_load_live(control, "control"))
        left = None if is_recording(reference) else load_measured_spec(reference)
        folder = None if output is None else FIDELITY_FILE.make_folder(output)
        isolate = right.isolate or (left is not None and left.isolate)
        found = measure(
            parse_path(reference) if left is None else _pair(left),
            _pair(right),
            (left or right).tests if text is None else [measuring.read_text_suite(text)],
            measuring.FidelityOptions(
                window, top, limit, folder, held, seeks_control=not no_control, isolate=isolate
            ),
            progress=make_terminal_progress(),
        )
        written = None if folder is None else measuring.write_fidelity(found, folder)
        _show(found, written, as_json=as_json)


def _check_limit(text: str | None, limit: int | None) -> None:
    if text is not None and limit is not None:
        raise ConfigurationError("--limit counts the rows of suites, and --text is one text")


@fidelity.command("record", cls=Command)
def record(
    reference: Annotated[str, typer.Argument(metavar="REFERENCE", help="The spec to record.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="A file; one that is begun goes on."),
    ],
    text: TextOption = None,
    window: WindowOption = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Keep so many likeliest tokens instead of whole rows."),
    ] = None,
    limit: LimitOption = None,
    debug: DebugOption = False,
) -> None:
    """Write the distributions of REFERENCE to a file that stands in its place later."""
    with report_errors(debug=debug, kept=_GOES_ON):
        _check_limit(text, limit)
        spec = _load_live(reference, "side that is recorded")
        windows = measuring.record_reference(
            _pair(spec),
            spec.tests if text is None else [measuring.read_text_suite(text)],
            output,
            measuring.FidelityOptions(window=window, limit=limit, isolate=spec.isolate),
            top=top,
            progress=make_terminal_progress(),
        )
        print(f"recorded: {windows} windows in {output} ({output.stat().st_size / 1e6:.1f} MB)")


def _pair(spec: Spec) -> EngineAndModel:
    return EngineAndModel(spec.engine, spec.model)


def _load_live(name: str, role: str) -> Spec:
    """Return the spec of a side for which no recording can stand."""
    if is_recording(name):
        raise ConfigurationError(
            f"{name} is a recording, which can stand for the reference alone; name the spec of the "
            f"{role}"
        )
    return load_measured_spec(name)


def is_recording(reference: str) -> bool:
    """True if the name is that of a SQLite database, which no spec is."""
    path = parse_path(reference)
    with path_errors(path):
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE


def _show(result: FidelityResult, written: Path | None, *, as_json: bool) -> None:
    from evalution.fidelity import table, wording  # noqa: PLC0415 - as above

    if as_json:
        print(to_json(result.to_dict(), indent=2))
        return
    print_answer(
        table.list_headings(result),
        lambda width: table.make_fidelity_table(result, width=width),
        table.LEGEND,
        result.notes,
        wording.describe_result(result),
        written,
    )
