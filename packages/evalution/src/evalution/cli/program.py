"""`evalution schema`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evalution.cli import fidelity
from evalution.cli.doctor import doctor
from evalution.cli.errors import EXIT_FAILED, report_errors
from evalution.cli.extensions import add_commands
from evalution.cli.listings import engines, suites
from evalution.cli.noise import noise
from evalution.cli.options import (
    HELP_OPTIONS,
    DebugOption,
    JsonOption,
    OutputFileOption,
    SpecArgument,
    write_text,
)
from evalution.cli.parity import parity
from evalution.cli.run import run
from evalution.cli.show import show
from evalution.redaction import mask_text
from evalution.results import to_json
from evalution.runs.preflight import (
    EngineAndModel,
    check_capabilities,
    check_judges,
    check_model,
    parse_tests,
)
from evalution.runs.run_identity import find_free_name
from evalution.suites.suite import AnySuite
from evalution.table import make_console
from evalution.user_input import parse_path
from evalution.yaml_spec.run_spec import load_spec
from evalution.yaml_spec.schema import make_spec_schema
from evalution_core import ConfigurationError


def schema(output: OutputFileOption = None, debug: DebugOption = False) -> None:
    """Write the JSON Schema of a spec, for an editor.

    It knows all installed engines and suites. An editor with the YAML language server checks and
    completes a spec by it if the spec begins with `# yaml-language-server: $schema=FILE`.
    """
    with report_errors(debug=debug):
        found = make_spec_schema()
        for complaint in found.complaints:
            typer.echo(f"left out: {mask_text(complaint)}", err=True)
        write_text(json.dumps(found.schema, indent=2, ensure_ascii=False) + "\n", output)


def validate(spec: SpecArgument, debug: DebugOption = False) -> None:
    """Check a spec without loading the model.

    Its engine, options and tests are checked, and each request is made once.
    """
    with report_errors(debug=debug):
        loaded = load_spec(spec)
        suites = parse_tests(loaded.tests)
        _check_lane("engine", EngineAndModel(loaded.engine, loaded.model), suites)
        check_judges(suites)
        if loaded.against is not None:
            _check_lane("against", loaded.against, suites)
        names: list[str] = []
        for suite in suites:
            names.append(find_free_name(suite.title, names))
            count = suite.check_samples()
            rows = "1 row" if count == 1 else f"{count} rows"
            print(f"test {names[-1]}: {type(suite).__name__}, {rows}")
        print(f"{spec} is valid")


def _check_lane(section: str, lane: EngineAndModel, suites: Sequence[AnySuite]) -> None:
    engine = type(lane.engine)
    check_model(lane.model, lane.engine)
    check_capabilities(suites, engine.capabilities, f"of engine {engine.__name__}")
    print(f"{section} {engine.__name__}, model {lane.model.name}")


def report(
    folders: Annotated[list[str], typer.Argument(metavar="DIR", help="Folders of any results.")],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The page; an older one is replaced.")
    ] = Path("report.html"),
    samples: Annotated[
        int, typer.Option(min=0, help="At most that many rows of each suite in the page.")
    ] = 2000,
    debug: DebugOption = False,
) -> None:
    """Write one HTML page: scores and plots side by side, samples to search, run conditions."""
    with report_errors(debug=debug):
        from evalution.report import write_report  # noqa: PLC0415 (only this command needs it)
        from evalution.report.page import read_folders  # noqa: PLC0415 (as above)

        found = read_folders(folders)
        written = write_report(
            found.runs,
            output,
            samples_per_suite=samples,
            parity=found.parity,
            fidelity=found.fidelity,
        )
        print(f"report: {written.path} ({written.size / 1e6:.1f} MB)")


_FLIPS_SHOWN = 10


def compare(
    left: Annotated[
        str, typer.Argument(metavar="A", help="The folder of a run, or of a measurement.")
    ],
    right: Annotated[str, typer.Argument(metavar="B", help="The folder of another one.")],
    flipped: Annotated[
        int | None,
        typer.Option(min=0, help="At most that many flipped rows of each suite [default: 10]."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare two runs: scores, whether the difference could be chance, and rows that flipped.

    Of two fidelity measurements against one reference, the figures side by side.
    """
    with report_errors(debug=debug):
        from evalution import comparison  # noqa: PLC0415 - only this command needs it
        from evalution.comparison import table  # noqa: PLC0415 - as above
        from evalution.fidelity.store import FIDELITY_FILE  # noqa: PLC0415 - as above
        from evalution.runs.reader import read_run  # noqa: PLC0415 - as above

        if any(FIDELITY_FILE.is_in(parse_path(side)) for side in (left, right)):
            _compare_candidates((left, right), flipped, as_json=as_json)
            return
        if as_json and flipped is not None:
            raise ConfigurationError("--flipped is for the table; --json has every flipped row")
        found = comparison.compare(read_run(left), read_run(right))
        if as_json:
            print(to_json(found.to_dict(), indent=2))
            return
        terminal = make_console()
        for line in table.list_headings(found):
            terminal.print(line, soft_wrap=True)
        if found.suites:
            terminal.print(table.make_comparison_table(found, width=terminal.width))
            terminal.print(table.make_legend(terminal.width), style="dim", soft_wrap=True)
        for line in table.list_remarks(found):
            terminal.print(line, style="yellow", soft_wrap=True)
        most = _FLIPS_SHOWN if flipped is None else flipped
        for suite in found.suites:
            if suite.flips and most:
                terminal.print("\n" + table.make_flip_heading(suite, most), soft_wrap=True)
                terminal.print(table.make_flip_table(suite, most))


def _compare_candidates(folders: Sequence[str], flipped: int | None, *, as_json: bool) -> None:
    from evalution.fidelity import candidates  # noqa: PLC0415 - only this command needs it
    from evalution.fidelity.store import read_fidelity  # noqa: PLC0415 - as above

    if flipped is not None:
        raise ConfigurationError("--flipped is for runs; a measurement keeps no rows")
    groups = candidates.group_candidates(map(read_fidelity, folders))
    if len(groups) > 1:
        raise ConfigurationError(
            f"{' and '.join(folders)} can't be compared: their reference, texts, window or mode "
            "differ; measure both candidates by one command but for the candidate"
        )
    if as_json:
        print(to_json([result.to_dict() for result in groups[0]], indent=2))
        return
    terminal = make_console()
    terminal.print(candidates.make_candidate_table(groups[0], width=terminal.width))


class _FidelityAfterParity(TyperGroup):
    """Lists the one group of commands among the commands, as the guide does."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = [name for name in super().list_commands(ctx) if name != fidelity.app.info.name]
        names.insert(names.index(noise.__name__), fidelity.app.info.name or "")
        return names


app = typer.Typer(
    name="evalution",
    cls=_FidelityAfterParity,
    help="Measure language models on any engine.",
    context_settings=HELP_OPTIONS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; a reader of stdout that leaves, such as `head`, ends it silently."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a character
    try:
        try:
            app()
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end: that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_FAILED)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"evalution {installed_version('evalution')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


# In the order in which a newcomer wants them: evaluate, read results, look around, write specs.
_COMMANDS = (
    run,
    validate,
    show,
    compare,
    parity,
    noise,
    report,
    engines,
    suites,
    doctor,
    schema,
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(fidelity.app)
add_commands(app, {"fidelity", *(command.__name__ for command in _COMMANDS)})
