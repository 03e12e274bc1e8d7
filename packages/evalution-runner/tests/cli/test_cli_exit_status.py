"""One rule of exit statuses, and one line for each error, over all commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from evalution.cli import extensions, program
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    UnknownEngineError,
    UnsupportedRequestError,
    plugins,
)

GUIDE = Path(__file__).parents[4] / "docs" / "command-line.md"
OWN = [verb for verb in program.COMMANDS if verb != "fidelity"]

# What each command calls first, and words that lead there.
FIRST_STEPS = {
    "run": ("evalution.cli.run.make_document", ["spec.yaml"]),
    "validate": ("evalution.cli.specs.load_spec", ["spec.yaml"]),
    "show": ("evalution.cli.show.read_run", ["out"]),
    "compare": ("evalution.cli.comparison.read_run", ["one", "two"]),
    "gate": ("evalution.cli.comparison.read_run", ["one", "two"]),
    "parity": ("evalution.cli.parity.load_measured_spec", ["spec.yaml"]),
    "noise": ("evalution.cli.noise.load_measured_spec", ["spec.yaml"]),
    "report": ("evalution.report.page.read_folders", ["out"]),
    "view": ("evalution.cli.view.parse_path", ["out"]),
    "engines": ("evalution.cli.listings.ENGINES.names", []),
    "suites": ("evalution.cli.listings.available_suites", []),
    "doctor": ("evalution.cli.doctor.choose_engines", []),
    "schema": ("evalution.cli.specs.make_spec_schema", []),
}
INTERRUPTED = "interrupted; what was finished is kept\n"
LEAVES_NOTHING = {"noise", "parity"}
ENDINGS = [
    (KeyboardInterrupt(), 130, INTERRUPTED),
    (ConfigurationError("a wrong option"), 2, "error: a wrong option\n"),
    (UnknownEngineError("no such engine"), 2, "error: no such engine\n"),
    (UnsupportedRequestError("it has no beams"), 2, "error: it has no beams\n"),
    (EngineRuntimeError("device lost"), 1, "error: device lost\n"),
    (EngineUnavailableError("no torch"), 1, "error: no torch\nhint: `evalution doctor` shows "),
    (EvalutionError("the disk is full"), 1, "error: the disk is full\n"),
]
endings = pytest.mark.parametrize(
    ("error", "status", "message"), ENDINGS, ids=[type(error).__name__ for error, _, _ in ENDINGS]
)


def raising(error: BaseException) -> Callable[..., None]:
    def raises(*_: Any, **__: Any) -> None:
        raise error

    return raises


def test_every_command_is_held_to_the_rule() -> None:
    assert list(FIRST_STEPS) == OWN


def assert_ending(
    command_line: Any, monkeypatch: pytest.MonkeyPatch, verb: str, error: BaseException
) -> tuple[int, str]:
    """Let the first step of a command fail; returns its status and its stderr."""
    target, words = FIRST_STEPS[verb]
    monkeypatch.setattr(target, raising(error))
    done = command_line(verb, *words)
    assert "Traceback" not in done.stderr
    debugged = command_line(verb, *words, "--debug")
    assert debugged.returncode == done.returncode
    assert "Traceback" in debugged.stderr
    return done.returncode, done.stderr


@endings
def test_each_kind_of_error_has_its_status_and_one_line(
    command_line: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    message: str,
) -> None:
    found = assert_ending(command_line, monkeypatch, "show", error)
    assert found[0] == status
    assert found[1].startswith(message)


@pytest.mark.parametrize("verb", OWN)
def test_every_command_reports_errors_in_the_same_way(
    command_line: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for error, status, message in ENDINGS[:2]:
        if verb in LEAVES_NOTHING:
            message = message.replace("what was finished", "nothing")
        assert assert_ending(command_line, monkeypatch, verb, error) == (status, message)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], typer.Typer]:
    """The command line with one command, `other`, of another package."""

    def plug(function: Callable[..., None]) -> typer.Typer:
        module = ModuleType("another_package")
        vars(module)["other"] = function
        monkeypatch.setitem(sys.modules, "another_package", module)
        point = EntryPoint("other", "another_package:other", extensions.COMMANDS.group)
        monkeypatch.setattr(plugins, "list_entry_points", lambda _: [point])
        program = typer.Typer(rich_markup_mode=None)
        extensions.add_commands(program, set())
        return program

    return plug


@endings
def test_an_error_has_the_same_ending_in_a_command_of_another_package(
    plugged: Callable[..., typer.Typer], error: BaseException, status: int, message: str
) -> None:
    def other(name: str, debug: bool = False) -> None:
        assert name == "x"
        raise error

    done = CliRunner().invoke(plugged(other), ["other", "x"])
    assert done.exit_code == status
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    debugged = CliRunner().invoke(plugged(other), ["other", "x", "--debug"])
    assert debugged.exit_code == status
    assert "Traceback" in debugged.stderr


def test_a_command_of_another_package_may_have_a_status_of_its_own(
    plugged: Callable[..., typer.Typer],
) -> None:
    def other() -> None:
        raise typer.Exit(3)

    done = CliRunner().invoke(plugged(other), ["other"])
    assert (done.exit_code, done.stderr) == (3, "")


def test_ctrl_c_while_a_command_of_another_package_is_imported_is_reported(
    plugged: Callable[..., typer.Typer], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = plugged(lambda: None)
    monkeypatch.setattr(plugins, "_import_value", raising(KeyboardInterrupt()))
    done = CliRunner().invoke(program, ["other"])
    assert (done.exit_code, done.stderr) == (130, INTERRUPTED)


def test_a_command_that_can_not_be_loaded_ends_in_1_without_talk_of_engines(
    plugged: Callable[..., typer.Typer], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = plugged(lambda: None)
    monkeypatch.setattr(plugins, "_import_value", raising(ImportError("no httpx")))
    done = CliRunner().invoke(program, ["other"])
    assert done.exit_code == 1
    assert done.stderr.endswith("can't be loaded: ImportError: no httpx\n")


NOT_THERE = [
    (["run", "none.yaml"], "there is no spec file none.yaml"),
    (["validate", "none.yaml"], "there is no spec file none.yaml"),
    (["show", "none"], "there is no run folder none"),
    (["compare", "none", "none"], "there is no run folder none"),
    (["gate", "none", "none"], "there is no run folder none"),
    (["gate", "none", "none", "--policy", "none.yaml"], "none.yaml can't be read: No such file"),
    (["parity", "none.yaml"], "there is no spec file none.yaml"),
    (["noise", "none.yaml"], "there is no spec file none.yaml"),
    (["report", "none"], "there is no run folder none"),
    (["view", "none"], "there is no folder none"),
    (["engines", "Reference", "--available"], "--available lists all engines; leave it out for"),
    (["engines", "none"], "no engine 'none' is installed"),
    (["engines", "none:Engine"], "No module named 'none'"),
    (["engines", "json:Engine"], "has no attribute 'Engine'"),
    (["suites", "none"], "no suite 'none' is installed"),
    (["suites", "none:Suite"], "No module named 'none'"),
    (["doctor", "none"], "no engine 'none' is installed"),
]


def test_no_command_is_forgotten() -> None:
    written = {"schema"}  # its file that can't be written is in tests/spec
    assert {words[0] for words, _ in NOT_THERE} | written == set(OWN)


@pytest.mark.parametrize(("words", "message"), NOT_THERE)
def test_what_is_named_and_is_not_there_ends_in_2(
    command_line: Any, assert_says: Any, words: list[str], message: str
) -> None:
    assert_says(command_line(*words), 2, message)


@pytest.mark.parametrize("words", [["run"], ["validate"], ["parity"]])
def test_an_engine_that_is_there_and_can_not_be_had_ends_in_1(
    command_line: Any, spec: Any, folder: Path, words: list[str]
) -> None:
    (folder / "needy.py").write_text("import a_runtime_that_is_missing\n")
    name = spec(folder, engine="needy:Engine", rest="against: {engine: Reference}\n")
    done = command_line(*words, name, "--allow-code")
    assert done.returncode == 1
    assert "No module named 'a_runtime_that_is_missing'" in done.stderr


@pytest.mark.parametrize("verb", OWN)
def test_wrong_use_ends_in_2(command_line: Any, verb: str) -> None:
    done = command_line(verb, *FIRST_STEPS[verb][1], "--no-such-option")
    assert done.returncode == 2
    assert "No such option: --no-such-option" in done.stderr


def test_the_guide_has_every_status() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    table = guide.partition("| exit code |")[2]
    found = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert found == ["0", "1", "2", "3", "4", "129", "130", "143"]
