"""The commands as a whole: what `--help` says first, and that the guide has them all."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from evalution.cli import program

GUIDE = Path(__file__).parents[4] / "docs" / "command-line.md"
COMMANDS = list(program.COMMANDS)


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
    summary, *further = done.stdout.split("\n\n")[1:]
    if command != "fidelity":  # its page is that of its first command
        assert " ".join(summary.split()) == program.COMMANDS[command].summary
    assert "--debug" in done.stdout
    assert "-q, --quiet" in done.stdout
    assert further[-1].startswith(f"  Examples:\n    evalution {command}")


def test_list_of_commands_is_not_cut_and_imports_none(command_line: Any) -> None:
    listed = " ".join(command_line("--help").stdout.split())
    assert all(command.summary in listed for command in program.COMMANDS.values())


def test_spec_alone_is_run(command_line: Any, spec: Any, folder: Path) -> None:
    done = command_line(spec(folder), "--limit", "2", "--output", "out")
    assert done.returncode == 0, done.stderr
    assert "results: out" in done.stdout
    assert "there is no spec file none.yml" in command_line("none.yml").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Hellaswag"], "name the model: --model PATH"),
        (["helaswag", "-m", "builtin:tiny"], "did you mean 'hellaswag'?"),
        (["helaswag"], "no command and no suite is named 'helaswag'; did you mean 'hellaswag'?"),
    ],
)
def test_suite_without_a_command_is_run(command_line: Any, words: list[str], message: str) -> None:
    done = command_line(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_quiet_run_prints_its_results_alone_and_verbose_one_its_settings(
    command_line: Any, spec: Any, folder: Path
) -> None:
    words = ("run", spec(folder), "--limit", "1")
    quiet = command_line(*words, "-q", "--output", "quiet")
    (notice,) = quiet.stderr.splitlines()
    assert "aren't right and reached max_new_tokens (256)" in notice
    assert "at most 1 row of each suite" in quiet.stdout
    assert "results: quiet" in quiet.stdout
    assert "model ready" in command_line(*words, "--output", "plain").stderr
    assert not logging.getLogger("evalution").isEnabledFor(logging.INFO)
    command_line(*words, "-v", "--output", "verbose")
    assert logging.getLogger("evalution").isEnabledFor(logging.INFO)
    assert "take one" in command_line(*words, "-qv").stderr


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
    wrong = command_line(
        "validate", spec(folder, rest='against: {engine: "deaf_lane:Deaf"}\n'), "--allow-code"
    )
    assert wrong.returncode == 2
    assert "suite 'rows' needs generate; the capabilities of engine Deaf are" in wrong.stderr
