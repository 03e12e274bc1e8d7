"""`evalution run`; the first Ctrl-C finishes what is in flight, the second ends at once."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from signal import SIGINT, Signals
from types import FrameType
from typing import Annotated

import typer

from evalution.cli.errors import EXIT_WITH_FAILURES, hint_isolation, report_errors
from evalution.cli.inline_spec import InlineSpec, make_document
from evalution.cli.listings import complete_engines, complete_suites
from evalution.cli.options import DebugOption
from evalution.cli.signals import SignalReceived, catch_signals, leave_terminal
from evalution.progress import is_quiet
from evalution.progress_bar import make_terminal_progress
from evalution.redaction import mask_text
from evalution.results import RunResult
from evalution.rows.local import BUILTIN
from evalution.runs.options import DefaultFolder, RunOptions, TooManyFailuresError
from evalution.runs.preflight import parse_tests
from evalution.runs.run import Run
from evalution.table import list_complaints, make_console, make_result_table
from evalution.user_input import is_code_allowed
from evalution.yaml_spec.run_spec import Spec
from evalution_core import ConfigurationError, EvalutionError, UnsupportedRequestError


@contextmanager
def finish_in_flight(handle: Run) -> Generator[None]:
    """Within it, a signal asks `handle` to stop; where nothing is in flight it ends at once."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)  # first of all: the next signal may come before this one is done
        leave_terminal(number)
        if len(received) > 1 or not handle.stop():
            raise KeyboardInterrupt
        again = "Ctrl-C" if number == SIGINT else Signals(number).name
        _write_notice(f"finishing what is in flight; {again} once more ends at once")

    with catch_signals(interrupt):
        try:
            yield
        except KeyboardInterrupt as error:
            if not received:
                raise
            raise SignalReceived(received[0]) from error


def _write_notice(text: str) -> None:
    """Write a line to stderr without a lock.

    Within a handler of a signal the main thread may hold that of a stream or of the progress bar,
    whose own thread then waits for it.
    """
    below_bar = "\n" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{below_bar}{text}\n".encode())


TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE|SPEC",
        help="Suites (`evalution suites` lists them; lm_eval/TASK is any task of lm-eval), "
        "files of your own rows, or one YAML file.",
        autocompletion=complete_suites,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="A folder, a .gguf file, a Hub name, the URL of a server, or builtin:tiny.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "-e",
        metavar="NAME",
        help="Its engine [default: the best one here for that model].",
        autocompletion=complete_engines,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, metavar="N", help="At most N rows of each suite."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="An option as a spec has it, after the name of what it belongs to: "
        "engine.dtype=float32, model.revision=main, hellaswag.num_fewshot=3; options at the "
        "top of a spec stand alone: isolate=true. VALUE is JSON, or else a text. Repeatable.",
    ),
]
PrintSpecOption = Annotated[
    bool,
    typer.Option("--print-spec", help="Write the YAML that this line stands for; run nothing."),
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="The run folder [default: runs/<date-time>-<model>]; a run that is there goes on.",
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Start over where the run folder holds a run.")
]
RetryFailedOption = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again for what failed in the run folder.")
]
CacheOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder of answers that runs on one model share."),
]


def run(
    targets: TargetsArgument = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    limit: LimitOption = None,
    settings: SettingsOption = None,
    print_spec: PrintSpecOption = False,
    output: OutputOption = None,
    fresh: FreshOption = False,
    retry_failed: RetryFailedOption = False,
    cache: CacheOption = None,
    debug: DebugOption = False,
) -> None:
    """Run suites or a spec: progress, a table of scores, and a run folder."""
    with report_errors(debug=debug):
        _check_choice(output, fresh=fresh, retry_failed=retry_failed)
        line = InlineSpec(targets or (), model, engine, settings or ())
        document = make_document(line)
        loaded = document.parse()
        if document.choice is not None:
            line = replace(line, engine=document.choice.engine)
            choice = f"engine {document.choice.engine}: {document.choice.reason}"
            _show_note(f"{choice}; --engine NAME takes another")
        for guess in document.list_guesses():
            _show_note(guess)
        if print_spec:
            print(document.to_yaml(limit), end="")
            _note_folder(line.targets[0], document.path)
            return
        _check_one_engine(loaded, line.targets[0])
        options = RunOptions(
            output=DefaultFolder(loaded.model.name, datetime.now()) if output is None else output,
            fresh=fresh,
            retry_failed=retry_failed,
            cache=cache,
            limit=limit,
            isolate=loaded.isolate,
            record_tokens=loaded.record_tokens,
            failures=loaded.failures,
            backend=loaded.backend,
            progress=make_terminal_progress(),
        )
        handle = Run(loaded.engine, loaded.model, options)
        _run_and_show(handle, loaded, partial(_format_resume_command, line.words, limit, cache))
        if handle.result.failed:
            raise typer.Exit(EXIT_WITH_FAILURES)


def _show_note(text: str) -> None:
    if not is_quiet():
        print(mask_text(text), file=sys.stderr, flush=True)


def _note_folder(target: str, path: Path) -> None:
    """Write where a printed spec belongs, if that isn't the working folder."""
    folder = path.resolve().parent if path.name else Path.cwd()
    if folder != Path.cwd() and not target.startswith(BUILTIN):
        _show_note(f"relative paths in this spec start from {folder}; save it in that folder")


def _check_choice(output: str | None, *, fresh: bool, retry_failed: bool) -> None:
    if fresh and retry_failed:
        raise ConfigurationError("--fresh starts over and --retry-failed goes on; take one")
    if output is None and (fresh or retry_failed):
        option = "--fresh" if fresh else "--retry-failed"
        raise ConfigurationError(
            f"{option} is for a run folder that is there; name it with --output"
        )


def _check_one_engine(loaded: Spec, spec: str) -> None:
    if loaded.against is not None:
        raise ConfigurationError(
            f"{spec} has the section 'against', which is for `evalution parity {spec}`; a run has "
            "one engine"
        )


def _run_and_show(handle: Run, loaded: Spec, make_command: Callable[[RunResult], str]) -> None:
    can_resume = True
    try:
        _run_all(handle, loaded)
    except _RunRefusedError:
        can_resume = False
        raise
    finally:
        if handle.has_begun:
            # The weights of a live model may have changed since.
            can_resume &= loaded.backend is None or handle.engine["identity"] is not None
            _show(handle.result, make_command(handle.result) if can_resume else None)


def _run_all(handle: Run, spec: Spec) -> None:
    is_elsewhere = spec.isolate or type(spec.engine).is_out_of_process
    can_isolate = not is_elsewhere and spec.backend is None
    try:
        with hint_isolation(is_possible=can_isolate), finish_in_flight(handle), handle:
            suites = parse_tests(spec.tests)
            handle.prepare(suites)
            for suite in suites:
                handle.run(suite)
    except (ConfigurationError, UnsupportedRequestError) as error:
        if not handle.has_begun:
            raise
        # The spec was right when the run began: this is a failed run.
        failure = _RunRefusedError(str(error))
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        raise failure from error


def _format_resume_command(
    words: Sequence[str], limit: int | None, cache: str | None, result: RunResult
) -> str:
    """Return the command by which a run goes on."""
    words = ["evalution", "run", *words, "--output", str(result.folder)]
    if limit is not None:
        words += ["--limit", str(limit)]
    if cache is not None:
        words += ["--cache", cache]
    if is_code_allowed():
        words.append("--allow-code")
    has_too_many = (result.error or {}).get("type") == TooManyFailuresError.__name__
    if result.failed or has_too_many:  # which ends its suite before that has a result
        words.append("--retry-failed")
    return mask_text(shlex.join(words))


def _show(result: RunResult, again: str | None) -> None:
    if result.suites:
        terminal = make_console()
        terminal.print(make_result_table(result, width=terminal.width))
    for line in (*result.notices, *list_complaints(result)):
        make_console(stderr=True).print(line, style="yellow", soft_wrap=True)
    print(f"results: {result.folder}")
    if again is not None and (result.status != "done" or result.failed):
        print(
            f"{'to resume' if result.status != 'done' else 'to ask failed samples again'}: {again}"
        )


class _RunRefusedError(EvalutionError):
    """A run that began with a model that can't do it; the same command would fail again."""
