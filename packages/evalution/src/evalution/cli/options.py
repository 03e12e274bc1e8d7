"""Arguments and options that several commands take."""

from __future__ import annotations

import itertools
import logging
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from evalution.hints import OPTION_HINTS
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


_TYPE = re.compile(r" <([a-z]+)[^>]*>$")
_PLACEHOLDERS = {"int": "N", "float": "X", "str": "TEXT"}


def _name_type(found: re.Match[str]) -> str:
    return f" {_PLACEHOLDERS.get(found[1], found[1].upper())}"


def _reword(error: Any, words: list[str]) -> str:
    """Return pydantic's complaint about an option as ours, with the value that was given."""
    text = error.message.replace("Input should be ", "must be ").partition(", unable")[0]
    text = text.replace("greater than or equal to", "at least").replace(
        "a valid integer", "an integer"
    )
    names = error.param.opts if error.param is not None else ()
    given = [
        following
        for word, following in itertools.pairwise((*words, ""))
        if word in names and following
    ]
    return f"{text}, got {given[-1]!r}" if given else text


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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; an option of another program gets the one that does the same here."""
        advice = OPTION_HINTS.get(str(self.name), {})
        for word in (arg.partition("=")[0] for arg in args):
            if word in advice:
                ctx.fail(f"there is no option {word}: {advice[word]}")
        words = [*args]  # the parser takes them out of its own list
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _reword(error, words)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options; a type is a placeholder, as N for a whole number."""
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_option = parameter.param_type_name == "option"
                name = _TYPE.sub(_name_type if is_option else "", record[0])
                records[parameter.param_type_name].append((name, record[1]))
        for title, rows in zip(("Arguments", "Options"), records.values(), strict=True):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

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
