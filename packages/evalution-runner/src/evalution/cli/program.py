"""The program `evalution`: its commands, each imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version as installed_version
from pkgutil import resolve_name
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from evalution.ascii_text import replace_lacking_signs
from evalution.cli.errors import EXIT_FAILED, report_errors
from evalution.cli.extensions import add_commands
from evalution.cli.options import Command, make_app
from evalution.hints import COMMAND_ALIASES
from evalution.installation import check_installation
from evalution_core.plugins import did_you_mean, normalize


class _OwnCommand(NamedTuple):
    """Module of a command in this package, the first line of its help page, and examples."""

    module: str
    summary: str
    examples: str


COMMANDS = {
    "run": _OwnCommand(
        "run",
        "Run suites or a spec: progress, a table of scores, and a run folder.",
        "evalution run hellaswag arc_easy --model Qwen/Qwen3-0.6B --limit 100\n"
        "evalution run gsm8k --model http://127.0.0.1:8000 --set gsm8k.num_fewshot=3\n"
        "evalution run lm_eval/truthfulqa_mc2 --model model.gguf --engine LlamaCpp\n"
        "evalution run spec.yaml --set engine.dtype=float32 --output float32\n"
        "evalution run builtin:tiny/quickstart --limit 20",
    ),
    "validate": _OwnCommand(
        "specs", "Check a spec without loading the model.", "evalution validate spec.yaml"
    ),
    "show": _OwnCommand(
        "show",
        "Show a run, also an unfinished one: scores, failures and conditions, or its samples.",
        "evalution show runs/A\nevalution show runs/A --samples hellaswag --wrong --limit 3",
    ),
    "compare": _OwnCommand(
        "comparison",
        "Compare two runs: scores, whether the difference could be chance, and rows that flipped.",
        "evalution compare runs/A runs/B --flipped 3",
    ),
    "gate": _OwnCommand(
        "comparison",
        "Decide if a candidate may ship. Exit code 3: it may not; 4: the rows don't decide it.",
        "evalution gate runs/float16 runs/q4 --loss 0.01\n"
        "evalution gate runs/float16 runs/q4 fidelity/q4 --policy policy.yaml --junit gate.xml",
    ),
    "parity": _OwnCommand(
        "parity",
        "Compare two engines: the same token ids through both. Exit code 3: they differ.",
        "evalution parity spec.yaml --limit 5",
    ),
    "fidelity": _OwnCommand(
        "fidelity",
        "Measure how far a way of serving a model is from a reference.",
        "evalution fidelity reference.yaml candidate.yaml --limit 20\n"
        "evalution fidelity record reference.yaml --output reference.rows",
    ),
    "noise": _OwnCommand(
        "noise",
        "Ask one engine the same under changed conditions: which of them change its numbers?",
        "evalution noise spec.yaml --limit 20",
    ),
    "report": _OwnCommand(
        "comparison",
        "Write one HTML page: scores and plots side by side, samples to search, run conditions.",
        "evalution report runs/A runs/B --output report.html",
    ),
    "view": _OwnCommand(
        "view",
        "Show runs in a browser, also those that go on: progress, samples, comparisons.",
        "evalution view\nevalution view runs/A runs/B --port 8080 --no-browser",
    ),
    "engines": _OwnCommand(
        "listings",
        "List the installed engines, or show one with its options. Listing imports none of them.",
        "evalution engines\nevalution engines Reference",
    ),
    "suites": _OwnCommand(
        "listings",
        "List the installed suites, or show one with its options.",
        "evalution suites\nevalution suites hellaswag",
    ),
    "doctor": _OwnCommand(
        "doctor",
        "Show what works on this machine, and how to fix the rest.",
        "evalution doctor\nevalution doctor OpenAICompatible -o base_url=http://127.0.0.1:8000",
    ),
    "schema": _OwnCommand(
        "specs",
        "Write the JSON Schema of a spec, for an editor.",
        "evalution schema --output spec.schema.json",
    ),
}
"""Our own, in the order in which a newcomer wants them: evaluate, read results, look around."""
_SPEC_ENDINGS = (".yaml", ".yml")


def load_command(verb: str) -> TyperCommand | TyperGroup:
    """Return one of the runner's own commands; imports its module."""
    module, _, examples = COMMANDS[verb]
    found: Any = resolve_name(f"evalution.cli.{module}:{verb}")
    if not isinstance(found, typer.Typer):
        function, found = found, make_app(verb, add_completion=False)
        found.command(verb, cls=Command)(function)
    command: Any = typer.main.get_command(found)
    pages = command.commands.values() if isinstance(command, TyperGroup) else [command]
    for page in pages:
        page.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.splitlines())
    return command


class _Program(TyperGroup):
    """Lists its own commands from a table, and imports the one that is called."""

    def __init__(self, *, commands: Any = None, **settings: Any) -> None:
        own: dict[str, Any] = {
            verb: TyperCommand(verb, short_help=command.summary)
            for verb, command in COMMANDS.items()
        }
        super().__init__(commands=own | dict(commands or {}), **settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] != "doctor":  # it says the same, and what else is wrong
            with report_errors(debug=False):
                check_installation()
        is_command = self.get_command(ctx, args[0]) is not None or args[0].startswith("-")
        words = args if is_command else _complete_run(ctx, args, self.commands)
        verb, command, rest = super().resolve_command(ctx, words)
        return verb, load_command(verb) if verb in COMMANDS else command, rest


def _complete_run(ctx: Any, words: Sequence[str], commands: Iterable[str]) -> list[str]:
    """Return words that begin with a spec or a suite, or name a model, as those of a run."""
    first = words[0]
    is_spec = first.startswith("builtin:") or first.endswith(_SPEC_ENDINGS)
    if not is_spec and not {"-m", "--model"} & {word.partition("=")[0] for word in words}:
        from evalution.suites.discovery import available_suites  # noqa: PLC0415 - imports them all

        suites = available_suites()
        if normalize(first) not in map(normalize, suites):
            meant = COMMAND_ALIASES.get(first.lower())
            near = (
                f"; did you mean {meant!r}?" if meant else did_you_mean(first, [*commands, *suites])
            )
            ctx.fail(f"no command and no suite is named {first!r}{near}")
    return ["run", *words]


app = make_app(
    "evalution",
    cls=_Program,
    no_args_is_help=True,
    help="Measure language models on any engine.",
)


def main() -> None:
    """Run the command line; a reader of stdout that leaves, such as `head`, ends it silently."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: no file may take its number
            setattr(sys, name, os.fdopen(_open_nowhere(), mode))
    for stream in (sys.stdout, sys.stderr):
        replace_lacking_signs(stream)
    try:
        try:
            app()
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end: that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_FAILED)
    except OSError as error:
        if not _is_stdout_broken():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(
            f"error: the output can't be written: {error.strerror}; files that the command wrote "
            "are whole",
            file=sys.stderr,
        )
        sys.exit(EXIT_FAILED)


def _open_nowhere() -> int:
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)  # as the streams of processes are
    return descriptor


def _is_stdout_broken() -> bool:
    try:
        os.write(1, b"\n")
    except OSError:
        return True
    return False


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"evalution {installed_version('evalution-runner')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


add_commands(app, set(COMMANDS))
