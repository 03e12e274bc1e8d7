"""`evalution compare`, `evalution gate` and `evalution report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from evalution import comparison
from evalution.cli.errors import EXIT_OUTSIDE, EXIT_UNDECIDED, report_errors
from evalution.cli.options import DebugOption, JsonOption
from evalution.comparison import table
from evalution.comparison.gate import SIDES, decide
from evalution.comparison.policy import Policy, read_policy
from evalution.fidelity import candidates
from evalution.fidelity.store import FIDELITY_FILE, read_fidelity
from evalution.result_file import write_whole
from evalution.results import RunResult, to_json
from evalution.runs.reader import read_run
from evalution.runs.store import RESULTS
from evalution.table import make_console
from evalution.user_input import parse_path, read_beginning
from evalution_core import ConfigurationError

_FLIPS_SHOWN = 10
_EXITS = {"ship": 0, "block": EXIT_OUTSIDE, "undecided": EXIT_UNDECIDED}
_STYLES = {"ship": "green", "block": "red", "undecided": "yellow"}


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
        measured = [side for side in (left, right) if FIDELITY_FILE.is_in(parse_path(side))]
        runs = [side for side in (left, right) if (parse_path(side) / RESULTS).is_file()]
        if measured and runs:
            raise ConfigurationError(
                f"{measured[0]} holds a fidelity measurement and {runs[0]} a run; compare two of "
                "one kind"
            )
        if measured:
            _compare_candidates((left, right), flipped, as_json=as_json)
            return
        if as_json and flipped is not None:
            raise ConfigurationError("--flipped is for the table; --json has every flipped row")
        found = comparison.compare(read_run(left), read_run(right))
        if not found.suites:
            raise ConfigurationError(
                "no suite is in both runs, so there is nothing to compare: "
                f"{left} has {_list_suites(found.left)}, {right} has {_list_suites(found.right)}"
            )
        if as_json:
            print(to_json({**found.to_dict(), "remarks": [*table.list_remarks(found)]}, indent=2))
            return
        terminal = make_console()
        for line in table.list_headings(found):
            terminal.print(line, soft_wrap=True)
        terminal.print(table.make_comparison_table(found, width=terminal.width))
        terminal.print(table.make_legend(terminal.width), style="dim", soft_wrap=True)
        for line in table.list_remarks(found):
            terminal.print(line, style="yellow", soft_wrap=True)
        most = _FLIPS_SHOWN if flipped is None else flipped
        for suite in found.suites:
            if suite.flips and most:
                terminal.print("\n" + table.make_flip_heading(suite, most), soft_wrap=True)
                terminal.print(table.make_flip_table(suite, most))


def _list_suites(run: RunResult) -> str:
    return ", ".join(suite.name for suite in run.suites) or "no finished suite"


def _compare_candidates(folders: Sequence[str], flipped: int | None, *, as_json: bool) -> None:
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


def gate(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR", help="The baseline's run and the candidate's; fidelity measurements."
        ),
    ],
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML file with the margins.")
    ] = None,
    loss: Annotated[
        float | None, typer.Option(min=0.0, help="Most that any suite's score may lose.")
    ] = None,
    kl: Annotated[
        float | None, typer.Option(min=0.0, help="Largest mean KL divergence, in nats.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The checks as JUnit XML, for a CI.")
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Decide if a candidate may ship. Exit code 3: it may not; 4: the rows don't decide it."""
    with report_errors(debug=debug):
        rules = Policy() if policy is None else read_policy(policy)
        given = {"loss": loss, "kl": kl}
        rules = replace(
            rules, **{name: value for name, value in given.items() if value is not None}
        )
        if junit is not None and junit.is_file() and read_beginning(junit, 10) != b"<testsuite":
            raise ConfigurationError(
                f"{junit} is there already, and no JUnit; name another --junit"
            )
        found, measurements = _read_sides(folders)
        decision = decide(rules, found, [read_fidelity(path) for path in measurements])
        if junit is not None:
            write_whole(junit, decision.to_junit())
        remarks = [] if found is None else [*table.list_remarks(found, SIDES)]
        if as_json:
            print(to_json({**decision.to_dict(), "remarks": remarks}, indent=2))
        else:
            terminal = make_console()
            headings = [] if found is None else [*table.list_headings(found, SIDES)]
            for line in headings + remarks:
                terminal.print(line, soft_wrap=True)
            terminal.print(table.make_gate_table(decision))
            for line in table.describe_decision(decision):
                terminal.print(line, style=_STYLES[decision.verdict], soft_wrap=True)
        raise typer.Exit(_EXITS[decision.verdict])


def _read_sides(folders: Sequence[str]) -> tuple[comparison.Comparison | None, list[str]]:
    """Return the comparison of the two runs, if there are any, and the other folders."""
    measurements = [path for path in folders if FIDELITY_FILE.is_in(parse_path(path))]
    runs = [path for path in folders if path not in measurements]
    if len(runs) not in (0, 2):
        raise ConfigurationError(
            f"name two runs, the baseline's and the candidate's, not {len(runs)}: "
            f"{', '.join(runs)}; of fidelity measurements any number"
        )
    if not runs:
        return None, measurements
    baseline, candidate = map(read_run, runs)
    if len({parse_path(path).resolve() for path in runs}) == 1:
        raise ConfigurationError(
            f"{runs[0]} is named as the baseline and as the candidate, which nothing could block; "
            "name the run of each"
        )
    return comparison.compare(baseline, candidate), measurements


def report(
    folders: Annotated[
        list[str], typer.Argument(metavar="DIR", help="Runs, parity checks, fidelity measurements.")
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
    with report_errors(debug=debug):
        from evalution.report import write_report  # noqa: PLC0415 - it needs an extra
        from evalution.report.page import read_folders  # noqa: PLC0415 - as above

        found = read_folders(folders)
        written = write_report(
            found.runs,
            output,
            samples_per_suite=samples,
            parity=found.parity,
            fidelity=found.fidelity,
        )
        print(f"report: {written.path} ({written.size / 1e6:.1f} MB)")
