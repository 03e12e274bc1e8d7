"""Commands of installed packages: the entry-point group `evalution.commands`.

An entry point's name is the verb and its value a function as typer takes it. Only metadata is read
until the command is called, so that a broken package costs its own command alone. An
`EvalutionError` that it raises and a Ctrl-C are told as in the runner's own commands, and with a
traceback where the command has an option `--debug` and it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.metadata import EntryPoint
from typing import Any

import typer

from evalution.cli.errors import report_errors
from evalution.cli.options import HELP_OPTIONS
from evalution.hints import COMMAND_HINTS
from evalution_core import ConfigurationError, EvalutionError
from evalution_core.plugins import installed

GROUP = "evalution.commands"
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_DEBUG = "--debug"


class CommandUnavailableError(EvalutionError):
    """The package that brings a command is installed, and can't be imported."""


def add_commands(app: typer.Typer, taken: set[str]) -> None:
    """Add the commands of installed packages, and well-known ones that say what to install.

    Args:
        app: gets them.
        taken: verbs that are the runner's own; a package can't replace them.
    """
    found: dict[str, list[EntryPoint]] = {}
    for point in installed(GROUP):
        if point.name not in taken:
            found.setdefault(point.name, []).append(point)
    for verb, points in found.items():
        _add(app, verb, _summary(verb, points), _caller(verb, points))
    for verb in COMMAND_HINTS.keys() - found.keys() - taken:
        _add(app, verb, "", _missing(verb), hidden=True)


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


def _summary(verb: str, points: list[EntryPoint]) -> str:
    known = COMMAND_HINTS.get(verb)
    if known is not None:
        return known.summary
    return f"From {' and '.join(_source(point) for point in points)}; `{verb} --help` says more."


def _caller(verb: str, points: list[EntryPoint]) -> Callable[[typer.Context], None]:
    def call(context: typer.Context) -> None:
        with report_errors(debug=_DEBUG in context.args):
            command = _loaded(verb, points)
            command(context.args, prog_name=context.command_path)

    return call


def _loaded(verb: str, points: list[EntryPoint]) -> typer.Typer:
    if len(points) > 1:
        sources = " and ".join(_source(point) for point in points)
        raise ConfigurationError(
            f"the command {verb!r} comes from {sources}; uninstall all of them but one"
        )
    (point,) = points
    try:
        function: Callable[..., object] = point.load()
    except Exception as error:  # the border to foreign code: a package may raise anything
        raise CommandUnavailableError(
            f"the command {verb!r} of {_source(point)} ({point.value}) can't be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    app = typer.Typer(
        name=verb,
        context_settings=HELP_OPTIONS,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command(verb)(_told(function))
    return app


def _told(function: Callable[..., object]) -> Callable[..., None]:
    """`function` with the same parameters. Outside of it typer ends a Ctrl-C without a word."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> None:
        with report_errors(debug=options.get("debug") is True):
            function(*arguments, **options)

    return call


def _missing(verb: str) -> Callable[[typer.Context], None]:
    def call(context: typer.Context) -> None:
        with report_errors(debug=False):
            raise ConfigurationError(
                f"the command {verb!r} is not installed; "
                f'pip install "{COMMAND_HINTS[verb].requirement}"'
            )

    return call


def _source(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value
