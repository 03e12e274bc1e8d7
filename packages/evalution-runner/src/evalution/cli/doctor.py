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
from evalution.doctor.engines import (
    PATIENCE,
    EngineHealth,
    ProbeOptions,
    choose_engines,
    examine_engine,
)
from evalution.doctor.machine import Machine, inspect_machine
from evalution.installation import find_name_clash, find_unused_cuda
from evalution.table import make_console
from evalution.user_input import parse_path
from evalution_core import ConfigurationError
from evalution_core.discovery import EngineEntry

_MARKS = {"ok": "ok", "untried": "--", "broken": "!!"}


def doctor(
    engine: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENGINE",
            help="Try these engines, and not all that are known.",
            autocompletion=complete_known_engines,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Try it on this model: a path or a name [default: builtin:tiny]."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the engine."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Try them in the environment of that interpreter."),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds that each engine has to load a model and answer.")
    ] = PATIENCE,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what works on this machine, and how to fix the rest.

    An installed engine answers a request in a process of its own, so one that crashes or hangs
    hurts nothing. Exit code 0 if at least one engine works, else 1; 1 also where another project's
    distribution `evalution` is installed.
    """
    with report_errors(debug=debug):
        if python is not None:
            from evalution.workers import interpreter  # noqa: PLC0415 - only this option needs it

            models = [] if model is None else ["--model", model]
            pairs = [part for pair in option or () for part in ("-o", pair)]
            flags = ["--patience", str(patience), *["--json"] * as_json, *["--debug"] * debug]
            asked = ["doctor", *(engine or ()), *models, *pairs, *flags]
            raise typer.Exit(interpreter.run_command(parse_path(python).absolute(), asked))
        engines = choose_engines(engine or ())
        probe = ProbeOptions(_parse_options(option or (), engine or ()), model, patience)
        clash = find_name_clash()
        healths = _report(engines, probe, clash, as_json=as_json)
        if clash is not None or not any(health.status == "ok" for health in healths):
            raise typer.Exit(EXIT_FAILED)


def _report(
    engines: Sequence[EngineEntry | str], probe: ProbeOptions, clash: str | None, *, as_json: bool
) -> list[EngineHealth]:
    """Print the machine, faults of the installation and each engine's health; return these."""
    machine = inspect_machine()
    unused = None if machine.accelerators else find_unused_cuda()
    notices = [notice for notice in (clash, unused) if notice is not None]
    if not as_json:
        _print_machine(machine, notices)
    healths = _examine_engines(engines, probe, is_shown=not as_json)
    if as_json:
        shown = [health.to_dict() for health in healths]
        facts = {"machine": asdict(machine), "notices": notices, "engines": shown}
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    return healths


def _examine_engines(
    engines: Sequence[EngineEntry | str], probe: ProbeOptions, *, is_shown: bool
) -> list[EngineHealth]:
    healths: list[EngineHealth] = []
    for found in engines:
        name = found if isinstance(found, str) else found.name
        with make_console().status(f"trying {name}"):
            healths.append(examine_engine(found, probe))
        if is_shown:
            _print_health(healths[-1])
    if is_shown and any(health.status == "untried" for health in healths):
        print(f"\n-- is installed, and not tried; {_HOW}")
    return healths


_HOW = "to try one: evalution doctor NAME --model PATH -o KEY=VALUE (-o base_url=URL of a server)"


def _parse_options(pairs: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    if pairs and len(names) != 1:
        raise ConfigurationError("--option is for one engine; name that engine alone")
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise ConfigurationError(f"--option {pair!r} is not KEY=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _print_machine(machine: Machine, notices: Sequence[str]) -> None:
    terminal = make_console()
    absent = "none that nvidia-smi or rocm-smi reports"
    for label, text in (
        ("Python", f"{machine.python} ({machine.executable})"),
        ("system", f"{machine.system}, {machine.architecture}, {machine.cpus} CPUs"),
        *(("GPU", line) for line in machine.accelerators or (absent,)),
    ):
        terminal.print(f"{label:<10}{text}", soft_wrap=True)
    for notice in notices:
        terminal.print(f"!! {notice}", soft_wrap=True)
    terminal.print()


def _print_health(health: EngineHealth) -> None:
    terminal = make_console()
    for line in _list_health(health):
        terminal.print(line, soft_wrap=True)


def _list_health(health: EngineHealth) -> list[str]:
    if health.status == "missing":
        return [f"–  {health.name}: not installed; {health.remedy}"]
    package = f" ({health.distribution} {health.version})" if health.distribution else ""
    needs = {name: version or "missing" for name, version in health.needs.items()}
    details = [
        health.problem or health.untried or health.proof,
        health.remedy,
        health.note,
        _format_pairs({k: v for k, v in (health.runtime or {}).items() if v is not None}),
        _format_pairs(needs, " "),
    ]
    first = f"{_MARKS[health.status]:<3}{health.name}{package}"
    return [first, *(f"   {detail}" for detail in details if detail)]


def _format_pairs(values: Mapping[str, Any], between: str = ": ") -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())
