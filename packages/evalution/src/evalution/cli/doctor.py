"""`evalution doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from evalution.cli.errors import EXIT_FAILED, report_errors
from evalution.cli.listings import complete_known_engines
from evalution.cli.options import DebugOption, JsonOption
from evalution.doctor.engines import PATIENCE, EngineHealth, choose_engines, examine_engine
from evalution.doctor.machine import Machine, inspect_machine
from evalution.table import make_console


def doctor(
    engine: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENGINE",
            help="Look at these engines, and not at all that are known.",
            autocompletion=complete_known_engines,
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds that each engine has to import its runtime.")
    ] = PATIENCE,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what works on this machine, and how to fix the rest.

    An installed engine is imported in a process of its own, so one that crashes or hangs hurts
    nothing. Exit code 0 if at least one engine works, else 1.
    """
    with report_errors(debug=debug):
        healths: list[EngineHealth] = []
        engines = choose_engines(engine or ())
        if not as_json:
            _print_machine(inspect_machine())
        for found in engines:
            healths.append(examine_engine(found, patience))
            if not as_json:
                _print_health(healths[-1])
        if as_json:
            shown = {
                "machine": asdict(inspect_machine()),
                "engines": [health.to_dict() for health in healths],
            }
            print(json.dumps(shown, indent=2, ensure_ascii=False))
        if not any(health.works for health in healths):
            raise typer.Exit(EXIT_FAILED)


def _print_machine(machine: Machine) -> None:
    terminal = make_console()
    absent = "none that nvidia-smi or rocm-smi reports"
    for label, text in (
        ("Python", f"{machine.python} ({machine.executable})"),
        ("system", f"{machine.system}, {machine.architecture}, {machine.cpus} CPUs"),
        *(("GPU", line) for line in machine.accelerators or (absent,)),
    ):
        terminal.print(f"{label:<10}{text}", soft_wrap=True)
    terminal.print()


def _print_health(health: EngineHealth) -> None:
    terminal = make_console()
    for line in _list_health(health):
        terminal.print(line, soft_wrap=True)


def _list_health(health: EngineHealth) -> list[str]:
    if not health.is_installed:
        return [f"–  {health.name}: not installed; {health.remedy}"]
    package = f" ({health.distribution} {health.version})" if health.distribution else ""
    lines = [f"{'ok' if health.works else '!!':<3}{health.name}{package}"]
    if health.problem:
        lines.append(f"   {health.problem}")
    if health.remedy:
        lines.append(f"   {health.remedy}")
    if health.runtime:
        lines.append(f"   {_format_pairs(health.runtime)}")
    if health.needs:
        lines.append(
            f"   {_format_pairs({k: v or 'missing' for k, v in health.needs.items()}, ' ')}"
        )
    return lines


def _format_pairs(values: Mapping[str, Any], between: str = ": ") -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())
