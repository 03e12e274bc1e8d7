"""Arguments and options that several commands take."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from evalution_core import ConfigurationError


def make_app(name: str, **settings: Any) -> typer.Typer:
    """Return an empty group of commands with the settings that all of ours share."""
    return typer.Typer(
        name=name,
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        **settings,
    )


_LOGGER = logging.getLogger("evalution")


def set_verbosity(
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Results and errors only: no progress, no remarks."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also what engines log, as their settings.")
    ] = False,
) -> None:
    """Set what the logger `evalution` lets pass; progress and remarks follow it."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other; take one")
    level = logging.ERROR if quiet else logging.INFO if verbose else logging.NOTSET
    _LOGGER.setLevel(level)
    # It writes to whatever stderr is, unless a runtime has set up logging of its own.
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.INFO if verbose else logging.WARNING)


class Command(TyperCommand):
    """A command with the options of `set_verbosity`, where it has none of these names itself."""

    def __init__(self, name: str | None, *, params: Any = None, **settings: Any) -> None:
        own = [*(params or ())]
        app = make_app("verbosity", add_completion=False)
        app.command()(set_verbosity)
        taken = {word for parameter in own for word in (parameter.name, *parameter.opts)}
        added = [
            option
            for option in typer.main.get_command(app).params
            if not taken & {option.name, *option.opts}
        ]
        self._added = [str(option.name) for option in added]
        super().__init__(name, params=own + added, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Set the verbosity, and call the function without these options."""
        set_verbosity(**{name: ctx.params.pop(name) for name in self._added})
        return super().invoke(ctx)


SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or builtin:tiny/quickstart.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


OutputFileOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="A file in place of stdout.")
]


def write_text(text: str, output: Path | None) -> None:
    """Write `text` to stdout, or into a file whose name is then printed.

    Raises:
        ConfigurationError: the file can't be written.
    """
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{output} can't be written: {error.strerror}; name another --output"
        ) from error
    print(f"written: {output}")
