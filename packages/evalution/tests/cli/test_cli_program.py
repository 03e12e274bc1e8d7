"""The commands as a whole: what `--help` says first, and that the guide has them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from evalution.cli import app

GUIDE = Path(__file__).parents[4] / "docs" / "command-line.md"
PROGRAM = typer.main.get_command(app)
assert isinstance(PROGRAM, TyperGroup)
COMMANDS = [
    name
    for name in PROGRAM.list_commands(typer.Context(PROGRAM))
    if PROGRAM.commands[name].add_help_option  # those of other packages are loaded first
]


def test_the_order_is_that_of_a_newcomer(command_line: Any) -> None:
    commands = command_line("--help").stdout.partition("Commands:")[2]
    listed = re.findall(r"^  ([a-z-]+)  ", commands, re.MULTILINE)
    assert listed[: len(COMMANDS)] == COMMANDS
    assert listed[:3] == ["run", "validate", "show"]


def test_the_guide_has_every_command_and_no_other() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", guide, re.MULTILINE) == COMMANDS
    assert re.findall(r"^\| \[`([a-z-]+)`\]", guide, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_what_it_does_and_can_be_debugged(command_line: Any, command: str) -> None:
    done = command_line(command, "--help")
    assert done.returncode == 0, done.stderr
    summary = done.stdout.split("\n\n")[1].strip()
    assert summary.partition(".")[0]
    assert "--debug" in done.stdout


def test_a_parity_spec_is_checked_on_both_sides(command_line: Any, spec: Any, folder: Path) -> None:
    (folder / "deaf_lane.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import Capability\n"
        "from evalution_enginekit.mock import Mock\n"
        "@dataclass(slots=True)\n"
        "class Deaf(Mock):\n"
        "    capabilities = frozenset({Capability.LOGLIKELIHOOD})\n"
    )
    right = command_line("validate", spec(folder, rest="against: {engine: Reference}\n"))
    assert right.stdout.splitlines()[:2] == [
        "engine Mock, model my model",
        "against Reference, model my model",
    ]
    wrong = command_line("validate", spec(folder, rest='against: {engine: "deaf_lane:Deaf"}\n'))
    assert wrong.returncode == 2
    assert "suite 'rows' needs generate; the capabilities of engine Deaf are" in wrong.stderr
