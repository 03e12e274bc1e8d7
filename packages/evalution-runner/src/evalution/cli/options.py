"""Arguments and options that several commands take."""

from __future__ import annotations

import itertools
import logging
import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from evalution import user_input
from evalution.hints import OPTION_HINTS
from evalution.user_input import read_beginning
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
    names = error.param.opts if error.param is not None else ()
    whole = "a whole number of rows" if "--limit" in names else "an integer"
    text = text.replace("greater than or equal to", "at least").replace("a valid integer", whole)
    given = [
        following
        for word, following in itertools.pairwise((*words, ""))
        if word in names and following
    ]
    return f"{text}, got {given[-1]!r}" if given else text


_SPECS = {"spec", "candidate", "reference", "targets", "suite"}
"""Parameters of commands that name a spec, or a suite that may be in a file."""


def make_permission(
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Let the spec run code that it names."),
    ] = False,
) -> AbstractContextManager[None]:
    """Return the context of a command that reads a spec."""
    return user_input.allow_code() if allow_code else nullcontext()


class Command(TyperCommand):
    """A command with the options of `set_verbosity`, where it has none of these names itself.

    One that reads a spec has those of `make_permission` too.
    """

    def __init__(self, name: str | None, *, params: Any = None, **settings: Any) -> None:
        own = [*(params or ())]
        self._verbosity = _make_options(set_verbosity, own)
        reads_spec = any(parameter.name in _SPECS for parameter in own)
        self._permission = _make_options(make_permission, own) if reads_spec else []
        super().__init__(name, params=own + self._verbosity + self._permission, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; an option of another program gets the one that does the same here."""
        advice = OPTION_HINTS.get(str(self.name), {})
        for word in (arg.partition("=")[0] for arg in args):
            if word in advice:
                ctx.fail(f"there is no option {word}: {advice[word]}")
        words = [*args]  # the parser takes them out of its own list
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _reword(error, words)
            raise
        for parameter in self.params:  # versions of click let nan pass every bound
            value = ctx.params.get(parameter.name)
            if isinstance(value, float) and not math.isfinite(value):
                ctx.fail(f"{parameter.opts[0]} must be a finite number, got {value}")
        return rest

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
        set_verbosity(**_take(ctx, self._verbosity))
        with make_permission(**_take(ctx, self._permission)), _make_answerer():
            return super().invoke(ctx)


def _make_answerer() -> AbstractContextManager[None]:
    """Return a context in which a person at a terminal is asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return nullcontext()
    return user_input.answer_questions(partial(typer.confirm, default=True, err=True))


def _make_options(function: Callable[..., Any], own: Sequence[Any]) -> list[Any]:
    """Return the options of a function, but those whose name or word is among `own`."""
    app = make_app("options", add_completion=False)
    app.command()(function)
    taken = {word for parameter in own for word in (parameter.name, *parameter.opts)}
    options = typer.main.get_command(app).params
    return [option for option in options if not taken & {option.name, *option.opts}]


def _take(ctx: Any, options: Sequence[Any]) -> dict[str, Any]:
    return {option.name: ctx.params.pop(option.name) for option in options}


SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or builtin:tiny/quickstart.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


OutputFileOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="A file in place of stdout.")
]


_SCHEMA = b'"$schema"'


def write_schema(make: Callable[[], str], output: Path | None) -> None:
    """Make a JSON Schema, and write it to stdout, or into a file whose name is then printed.

    Raises:
        ConfigurationError: the file can't be written, or holds something else than a schema.
    """
    if output is None:
        sys.stdout.write(make())
        return
    try:
        if output.is_file() and _SCHEMA not in read_beginning(output, 1000):
            raise ConfigurationError(
                f"{output} is there already, and no JSON Schema; name another --output"
            )
        output.write_text(make(), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{output} can't be written: {error.strerror}; name another --output"
        ) from error
    print(f"written: {output}")
