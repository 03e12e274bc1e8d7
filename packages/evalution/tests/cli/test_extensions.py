"""Commands and servers of other packages: found by metadata, loaded when they are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def evalution(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call(folder, "-m", "evalution", *arguments)


def test_the_list_of_commands_loads_none(plugins: Path) -> None:
    done = evalution(plugins, "--help")
    assert done.returncode == 0, done.stderr
    assert "greet " in done.stdout
    assert "broken " in done.stdout
    assert "From some-plugin" in done.stdout


def test_a_command_of_a_package_is_called(plugins: Path) -> None:
    done = evalution(plugins, "greet", "you")
    assert done.stdout == "hello you\n", done.stderr
    told = evalution(plugins, "greet", "--help")
    assert "Say hello." in told.stdout
    assert "Usage: " in told.stdout
    assert "evalution greet" in told.stdout
    assert evalution(plugins, "greet").returncode == 2


def test_its_errors_are_told_as_those_of_the_runner(plugins: Path) -> None:
    done = evalution(plugins, "greet", "you", "--fail")
    assert (done.returncode, done.stderr) == (2, "error: it was asked to fail\n")
    assert "Traceback" in evalution(plugins, "greet", "you", "--fail", "--debug").stderr


def test_a_broken_command_hurts_itself_alone(plugins: Path) -> None:
    done = evalution(plugins, "broken")
    assert done.returncode == 1
    assert "command 'broken' of some-plugin" in done.stderr
    assert "RuntimeError: its import fails" in done.stderr
    assert evalution(plugins, "engines").returncode == 0


def test_the_runners_own_commands_are_not_replaced(plugins: Path) -> None:
    assert "Run a spec" in evalution(plugins, "run", "--help").stdout


def test_two_packages_with_one_verb_are_told_apart_by_nobody(plugins: Path, plugin: Any) -> None:
    plugin("other", "[evalution.commands]\ngreet = working_plugin:greet\n")
    done = evalution(plugins, "greet", "you")
    assert done.returncode == 2
    assert "comes from other-plugin and some-plugin; uninstall" in done.stderr


ALONE = """
import sys
from evalution_core import plugins as entries
found = entries.installed
hidden = ("evalution.commands", "evalution.servers")
entries.installed = lambda group: [] if group in hidden else found(group)
"""
"""The runner as it is where no other package brings a command or a server."""
COMMAND_LINE = "sys.argv[1:] = [{!r}]\nfrom evalution.cli import main\nmain()"


def test_a_command_that_is_known_says_what_to_install(tmp_path: Path) -> None:
    done = call(tmp_path, "-c", ALONE + COMMAND_LINE.format("serve"))
    assert done.returncode == 2
    assert 'pip install "evalution-openai[server]"' in done.stderr
    listed = call(tmp_path, "-c", ALONE + COMMAND_LINE.format("--help"))
    assert "run " in listed.stdout
    assert "serve" not in listed.stdout


def test_a_server_that_is_known_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import evalution.engines as e\n"
        "print(hasattr(e, 'build_openai_compatible_server'))\n"
        "e.build_openai_compatible_server"
    )
    done = call(tmp_path, "-c", ALONE + code)
    assert done.stdout == "False\n", done.stderr
    assert 'pip install "evalution-openai[server]"' in done.stderr


def test_a_server_of_a_package_is_an_attribute(plugins: Path) -> None:
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
