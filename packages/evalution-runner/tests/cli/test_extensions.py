"""Commands and servers of other packages: found by metadata, loaded when they are used."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from evalution.cli import program
from evalution_core import plugins as plugins_module

WORKING = """
from typing import Annotated
import typer
from evalution_core import ConfigurationError
def greet(name: str, fail: Annotated[bool, typer.Option("--fail")] = False,
          debug: Annotated[bool, typer.Option("--debug")] = False) -> None:
    '''Say hello.'''
    if fail:
        raise ConfigurationError("it was asked to fail")
    print("hello", name)
def build_other_server():
    return "a server"
"""
COMMANDS = """[evalution.commands]
greet = working_plugin:greet
broken = broken_plugin:command
run = working_plugin:greet
[evalution.servers]
build_other_server = working_plugin:build_other_server
build_broken_server = broken_plugin:build
"""


@pytest.fixture
def plugins(tmp_path: Path, plugin: Any) -> Path:
    broken = "raise RuntimeError('its import fails')\n"
    plugin("some", COMMANDS, working_plugin=WORKING, broken_plugin=broken)
    return tmp_path


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


CommandLine = Callable[..., Result]


@pytest.fixture
def evalution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """Runs the command line as it is where the plugins in `tmp_path` are installed."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments: str) -> Result:
        app = runpy.run_path(program.__file__)["app"]
        return CliRunner().invoke(app, arguments, prog_name="evalution")

    yield run
    sys.modules.pop("working_plugin", None)


@pytest.mark.usefixtures("plugins")
def test_list_of_commands_loads_none(evalution: CommandLine) -> None:
    done = evalution("--help")
    assert done.exit_code == 0, done.stderr
    assert "greet " in done.stdout
    assert "broken " in done.stdout
    assert "From some-plugin" in done.stdout
    assert "working_plugin" not in sys.modules


def test_command_of_a_package_is_called(plugins: Path, evalution: CommandLine) -> None:
    done = call(plugins, "-m", "evalution", "greet", "you")
    assert done.stdout == "hello you\n", done.stderr
    shown = evalution("greet", "--help").stdout
    assert "Say hello." in shown
    assert "Usage: " in shown
    assert "evalution greet" in shown
    assert evalution("greet").exit_code == 2


@pytest.mark.usefixtures("plugins")
def test_command_reports_its_errors_as_the_runner_does(evalution: CommandLine) -> None:
    done = evalution("greet", "you", "--fail")
    assert (done.exit_code, done.stderr) == (2, "error: it was asked to fail\n")
    assert "Traceback" in evalution("greet", "you", "--fail", "--debug").stderr


@pytest.mark.usefixtures("plugins")
def test_broken_command_hurts_itself_alone(evalution: CommandLine) -> None:
    done = evalution("broken")
    assert done.exit_code == 1
    assert "command 'broken' of some-plugin" in done.stderr
    assert "RuntimeError: its import fails" in done.stderr
    assert evalution("engines").exit_code == 0


@pytest.mark.usefixtures("plugins")
def test_package_can_not_replace_the_runners_own_commands(evalution: CommandLine) -> None:
    assert "Run suites or a spec" in evalution("run", "--help").stdout


@pytest.mark.usefixtures("plugins")
def test_verb_of_two_packages_is_refused(evalution: CommandLine, plugin: Any) -> None:
    plugin("other", "[evalution.commands]\ngreet = working_plugin:greet\n")
    done = evalution("greet", "you")
    assert done.exit_code == 2
    assert "comes from other-plugin and some-plugin; uninstall" in done.stderr


ALONE = """
import sys
from evalution_core import plugins as entries
found = entries.list_entry_points
entries.list_entry_points = lambda group: [] if group == "evalution.servers" else found(group)
"""
"""The runner as it is where no other package brings a server."""


def test_no_package_takes_the_place_of_a_known_command(
    evalution: CommandLine, plugins: Path, plugin: Any
) -> None:
    pytest.importorskip("evalution_openai", reason="needs evalution-openai, which brings serve")
    plugin("other", "[evalution.commands]\nserve = working_plugin:greet\n")
    done = evalution("serve", "--help")
    assert "Serve a model to clients" in done.stdout, done.stderr


def test_known_command_says_what_to_install(
    evalution: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plugins_module.list_entry_points
    monkeypatch.setattr(
        plugins_module,
        "list_entry_points",
        lambda group: [] if group == "evalution.commands" else found(group),
    )
    done = evalution("serve")
    assert done.exit_code == 2
    assert 'pip install "evalution-openai[server]"' in done.stderr
    listed = evalution("--help")
    assert "run " in listed.stdout
    assert "serve" not in listed.stdout


def test_known_server_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import evalution.engines as e\n"
        "print(hasattr(e, 'build_openai_compatible_server'))\n"
        "e.build_openai_compatible_server"
    )
    done = call(tmp_path, "-c", ALONE + code)
    assert done.stdout == "False\n", done.stderr
    assert 'pip install "evalution-openai[server]"' in done.stderr


def test_server_of_a_package_is_an_attribute(plugins: Path) -> None:
    code = (
        "import evalution.engines as e, sys\n"
        "print('build_other_server' in dir(e), 'working_plugin' in sys.modules)\n"
        "print(e.build_other_server())\n"
        "e.build_broken_server"
    )
    done = call(plugins, "-c", code)
    assert done.stdout == "True False\na server\n", done.stderr
    assert (
        "'build_broken_server' of some-plugin (broken_plugin:build) can't be loaded" in done.stderr
    )
