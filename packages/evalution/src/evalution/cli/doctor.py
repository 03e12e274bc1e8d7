"""`evalution doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from evalution.cli.errors import EXIT_FAILED, report_errors
from evalution.cli.listings import complete_known_engines
from evalution.cli.options import DebugOption, JsonOption
from evalution.doctor.engines import PATIENCE, EngineHealth, examine_engines
from evalution.doctor.machine import Machine, inspect_machine
from evalution.table import console

_GIBIBYTE = 1 << 30


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
        if as_json:
            healths = _print_json(engine or (), patience)
        else:
            healths = _print_text(engine or (), patience)
        if not any(health.works for health in healths):
            raise typer.Exit(EXIT_FAILED)


def _print_json(names: Sequence[str], patience: float) -> list[EngineHealth]:
    healths = list(examine_engines(names, patience=patience))
    shown = {
        "machine": asdict(inspect_machine()),
        "engines": [health.to_dict() for health in healths],
    }
    print(json.dumps(shown, indent=2, ensure_ascii=False))
    return healths


def _print_text(names: Sequence[str], patience: float) -> list[EngineHealth]:
    healths: list[EngineHealth] = []
    terminal = console()
    # The names are checked before anything is shown.
    engines = examine_engines(names, patience=patience)
    first = next(engines, None)
    for label, text in _machine_lines(inspect_machine()):
        terminal.print(f"{label:<10}{text}", soft_wrap=True)
    terminal.print()
    while first is not None:
        for line in _health_lines(first):
            terminal.print(line, soft_wrap=True)
        healths.append(first)
        first = next(engines, None)
    return healths


def _machine_lines(machine: Machine) -> list[tuple[str, str]]:
    absent = "none that nvidia-smi or rocm-smi reports"
    return [
        ("Python", f"{machine.python} ({machine.executable})"),
        ("system", f"{machine.system}, {machine.architecture}, {machine.cpus} CPUs"),
        ("memory", f"{_size(machine.memory_available)} free of {_size(machine.memory)}"),
        ("disk", f"{_size(machine.disk_free)} free in {machine.folder}"),
        *(("GPU", line) for line in machine.accelerators or (absent,)),
    ]


def _health_lines(health: EngineHealth) -> list[str]:
    if not health.is_installed:
        return [f"–  {health.name}: not installed; {health.remedy}"]
    package = f" ({health.distribution} {health.version})" if health.distribution else ""
    lines = [f"{'ok' if health.works else '!!':<3}{health.name}{package}"]
    if health.problem:
        lines.append(f"   {health.problem}")
    if health.remedy:
        lines.append(f"   {health.remedy}")
    if health.runtime:
        lines.append(f"   {_pairs(health.runtime)}")
    if health.needs:
        lines.append(f"   {_pairs({k: v or 'missing' for k, v in health.needs.items()}, ' ')}")
    return lines


def _pairs(values: Mapping[str, Any], between: str = ": ") -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())


def _size(count: int) -> str:
    return f"{count / _GIBIBYTE:.1f} GiB"
