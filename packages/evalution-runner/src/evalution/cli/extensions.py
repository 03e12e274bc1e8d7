"""Commands of installed packages: the entry-point group `evalution.commands`.

An entry point's name is the verb and its value a function as typer takes it. Only metadata is read
until the command is called, so that a broken package costs its own command alone. An
`EvalutionError` that it raises and a Ctrl-C are reported as in the runner's own commands, with a
traceback if the command has an option `--debug` and it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import typer  # noqa: TC002 - it evaluates the annotations

from evalution.cli.errors import report_errors
from evalution.cli.options import Command, make_app
from evalution.hints import COMMAND_HINTS
from evalution_core import ConfigurationError, EvalutionError
from evalution_core.plugins import PluginEntry, PluginRegistry

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_DEBUG = "--debug"


_Command = Callable[..., object]
_Entries = list[PluginEntry[_Command]]


class CommandUnavailableError(EvalutionError):
    """The package that brings a command is installed, and can't be imported."""


def _check_command(found: object, what: str) -> _Command:
    if not callable(found):
        raise CommandUnavailableError(f"{what} is no function, but {found!r}")
    return found


COMMANDS = PluginRegistry(
    "evalution.commands",
    "command",
    _check_command,
    unavailable=CommandUnavailableError,
    own={verb: hint.requirement for verb, hint in COMMAND_HINTS.items()},
)


def add_commands(app: typer.Typer, taken: set[str]) -> None:
    """Add the commands of installed packages, and well-known ones that say what to install.

    Args:
        app: gets them.
        taken: verbs that are the runner's own; a package can't replace them.
    """
    found: dict[str, _Entries] = {}
    names = COMMANDS.names()
    for name, entry in names.items():
        is_ours = entry.name in names and name != entry.name  # another package's is
        if entry.name not in taken and not is_ours:
            found.setdefault(entry.name, []).append(entry)
    for verb, entries in found.items():
        _add(app, verb, _summarize(verb, entries), _make_call(verb, entries))
    for verb in COMMAND_HINTS.keys() - found.keys() - taken:
        _add(app, verb, "", _make_refusal(verb), hidden=True)


def _add(
    app: typer.Typer,
    verb: str,
    summary: str,
    call: Callable[[typer.Context], None],
    *,
    hidden: bool = False,
) -> None:
    # Its own options and --help are the loaded command's business.
    register = app.command(
        verb, help=summary, hidden=hidden, add_help_option=False, context_settings=_PASS_ON
    )
    register(call)


def _summarize(verb: str, entries: _Entries) -> str:
    known = COMMAND_HINTS.get(verb)
    if known is not None:
        return known.summary
    return f"From {' and '.join(entry.source for entry in entries)}; `{verb} --help` says more."


def _make_call(verb: str, entries: _Entries) -> Callable[[typer.Context], None]:
    def call(context: typer.Context) -> None:
        with report_errors(debug=_DEBUG in context.args):
            command = _load_command(verb, entries)
            command(context.args, prog_name=context.command_path)

    return call


def _load_command(verb: str, entries: _Entries) -> typer.Typer:
    if len(entries) > 1:
        sources = " and ".join(entry.source for entry in entries)
        raise ConfigurationError(
            f"the command {verb!r} comes from {sources}; uninstall all of them but one"
        )
    app = make_app(verb, add_completion=False)
    app.command(verb, cls=Command)(_wrap_errors(entries[0].load()))
    return app


def _wrap_errors(function: _Command) -> Callable[..., None]:
    """Return `function` with errors reported; outside of it typer ends a Ctrl-C silently."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> None:
        with report_errors(debug=options.get("debug") is True):
            function(*arguments, **options)

    return call


def _make_refusal(verb: str) -> Callable[[typer.Context], None]:
    def call(context: typer.Context) -> None:
        with report_errors(debug=False):
            raise ConfigurationError(
                f"the command {verb!r} is not installed; "
                f'pip install "{COMMAND_HINTS[verb].requirement}"'
            )

    return call
