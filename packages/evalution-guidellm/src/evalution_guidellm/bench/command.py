"""Texts of the command line as values, and the subject that they name."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from evalution.cli.errors import EXIT_INTERRUPTED, EXIT_WITH_FAILURES
from evalution.table import console
from evalution_core import ConfigurationError
from evalution_core.redaction import redact_text
from evalution_enginekit.runtime import parse_model_fields, parse_option_pairs
from evalution_guidellm.bench.drive import drive
from evalution_guidellm.bench.load import Load, Profile, row_count
from evalution_guidellm.bench.page import write_page
from evalution_guidellm.bench.result import (
    PAGE,
    REPORT,
    SUMMARY,
    BenchResult,
    bench_table,
    level_results,
    made_folder,
    write_json,
)
from evalution_guidellm.bench.subject import EngineSubject, ServedSubject, Subject

_MOST = 65_536
"""Requests at once; far more than one machine can ask, and what GuideLLM's queues still hold."""


def counts(option: str, text: str | None) -> list[int]:
    """`1,8` as numbers.

    Raises:
        ConfigurationError: it holds something else than numbers from 1 to 65536.
    """
    found = [part.strip() for part in text.split(",")] if text is not None else []
    if any(not part.isdecimal() or int(part) < 1 for part in found):
        raise ConfigurationError(f"{option} {text!r} is no list of counts; as {option} 1,8")
    if any(int(part) > _MOST for part in found):
        raise ConfigurationError(f"{option} {text!r}: at most {_MOST}")
    return [int(part) for part in found]


def rates(option: str, text: str | None) -> list[float]:
    """`0.5,2` as numbers.

    Raises:
        ConfigurationError: it holds something else than numbers above 0.
    """
    try:
        found = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        found = [math.nan]
    if any(not 0 < rate < math.inf for rate in found):
        raise ConfigurationError(f"{option} {text!r} is no list of rates; as {option} 0.5,2")
    return found


def engine_subject(
    engine: str | None,
    model: str | None,
    options: Sequence[str] | None,
    model_fields: Sequence[str] | None,
    *,
    check_first: bool,
) -> EngineSubject:
    """The engine that the command line names.

    Raises:
        ConfigurationError: there is none, or an option isn't KEY=VALUE.
    """
    if engine is None:
        raise ConfigurationError(
            "nothing to measure: --engine NAME and a MODEL, or --target URL of a server"
        )
    fields = parse_model_fields("--model-field", model_fields)
    return EngineSubject(
        engine,
        parse_option_pairs("--option", options),
        {**fields, **({"path": model} if model else {})},
        check_first,
    )


def served_subject(target: str, model: str | None, key_variable: str | None) -> ServedSubject:
    """The server that the command line names.

    Raises:
        ConfigurationError: the variable of the key isn't set, or the URL has credentials too.
    """
    if key_variable is None:
        return ServedSubject(target, model)
    if _has_credentials(target):
        raise ConfigurationError(
            f"--target {redact_text(target)} holds a name and password, which would be sent in "
            f"place of the key in {key_variable}: leave them out of the URL, or leave out "
            "--api-key-env"
        )
    key = os.environ.get(key_variable)
    if not key:
        raise ConfigurationError(
            f"--api-key-env {key_variable}: that environment variable is not set"
        )
    return ServedSubject(target, model, key)


def _has_credentials(url: str) -> bool:
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:  # not a URL, which is an error once the server is asked
        return False


ModelName = Annotated[
    str | None,
    typer.Argument(help="builtin:tiny, a path or a name; with --target, its name there."),
]
EngineName = Annotated[str | None, typer.Option(help="The engine; `evalution engines` lists them.")]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the engine."),
]
ModelFields = Annotated[
    list[str] | None,
    typer.Option("--model-field", "-m", metavar="KEY=VALUE", help="As tokenizer_path=FOLDER."),
]
Target = Annotated[str | None, typer.Option(metavar="URL", help="A server in place of an engine.")]
KeyVariable = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The environment variable that holds the server's key."),
]
ProfileName = Annotated[
    Profile,
    typer.Option(help="One after the other, so many at once, all at once, or so many a second."),
]
Concurrency = Annotated[
    str | None, typer.Option(metavar="N,…", help="How many at once, a level each [default: 8].")
]
Rate = Annotated[str | None, typer.Option(metavar="R,…", help="Requests a second, a level each.")]
Requests = Annotated[
    int | None,
    typer.Option(min=1, help="A level's requests [default: 100, or all rows of --data]."),
]
Seconds = Annotated[
    float | None, typer.Option(min=0.1, help="A level's time; what runs then is cut off.")
]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="The length of made-up prompts [default: 256].")
]
OutputTokens = Annotated[int, typer.Option(min=1, help="Generated of each; with --data, at most.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Prompts, a row each: .jsonl, .csv, .parquet or .txt."),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="For made-up prompts; a folder or a Hub name [default: MODEL].")
]
Chat = Annotated[bool, typer.Option("--chat", help="Through the model's chat template.")]
Seed = Annotated[int, typer.Option(help="Of the made-up prompts.")]
Output = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder [default: runs/<date-time>-bench-<model>]."),
]
NoCheckFirst = Annotated[
    bool,
    typer.Option("--no-check-first", help="Don't load the model once before, to find mistakes."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def bench(
    model: ModelName = None,
    engine: EngineName = None,
    option: EngineOptions = None,
    model_field: ModelFields = None,
    target: Target = None,
    api_key_env: KeyVariable = None,
    profile: ProfileName = Profile.CONCURRENT,
    concurrency: Concurrency = None,
    rate: Rate = None,
    requests: Requests = None,
    seconds: Seconds = None,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = 128,
    data: Data = None,
    tokenizer: Tokenizer = None,
    chat: Chat = False,
    seed: Seed = 42,
    output: Output = None,
    no_check_first: NoCheckFirst = False,
    debug: Debug = False,  # read by the runner, which prints the errors of every command
) -> None:
    """Measure throughput and latency of an engine, or of a server with --target, by GuideLLM."""
    load = Load(
        profile=profile,
        concurrency=counts("--concurrency", concurrency),
        rate=rates("--rate", rate),
        requests=requests,
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        data=data,
        seed=seed,
    )
    if target is None and api_key_env is None:
        subject: Subject = engine_subject(
            engine, model, option, model_field, check_first=not no_check_first
        )
    elif target is None or engine or option or model_field or no_check_first:
        raise ConfigurationError(
            "--target and --api-key-env are for a server; --engine, --option, --model-field and "
            "--no-check-first for an engine: give those of one"
        )
    else:
        subject = served_subject(target, model, api_key_env)
    try:
        _bench(subject, load, chat=chat, tokenizer=tokenizer, output=output)
    except KeyboardInterrupt:
        print("interrupted; a benchmark is written at its end, so there is none", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _bench(
    subject: Subject, load: Load, *, chat: bool, tokenizer: str | None, output: Path | None
) -> None:
    subject = subject.checked()
    started = datetime.now().astimezone()
    if load.data is not None:
        load = load.within(row_count(load.data))
    with made_folder(output, subject.title, started) as folder:
        report = drive(subject, load, chat=chat, tokenizer=tokenizer, progress=sys.stdout.isatty())
        result = BenchResult(
            subject.title, started, subject.to_dict(), load.to_dict(), level_results(report)
        )
        write_json(folder / REPORT, report)
        write_json(folder / SUMMARY, result.to_dict())
        write_page(result, folder / PAGE)
    terminal = console()
    terminal.print(bench_table(result, width=terminal.width))
    for complaint in result.complaints:
        console(stderr=True).print(complaint, style="yellow", soft_wrap=True)
    print(f"report: {folder / PAGE}")
    if result.complaints:
        raise typer.Exit(EXIT_WITH_FAILURES)
