"""The command `evalution bench`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from evalution.cli.errors import EXIT_WITH_FAILURES, find_signal_status
from evalution.results import to_json
from evalution.table import make_console
from evalution_core import ConfigurationError
from evalution_core.redaction import REDACTED, find_secrets
from evalution_enginekit.runtime import parse_model_fields, parse_option_pairs
from evalution_guidellm.bench.drive import render_page, run_guidellm
from evalution_guidellm.bench.load import Load, Profile, count_rows
from evalution_guidellm.bench.result import (
    PAGE,
    REPORT,
    SUMMARY,
    BenchResult,
    make_table,
    open_folder,
    read_levels,
)
from evalution_guidellm.bench.subject import EngineSubject, ServedSubject, Subject

_MOST = 65_536
"""Requests at once; far more than one machine can ask, and what GuideLLM's queues still hold."""
N = TypeVar("N", int, float)


def parse_numbers(option: str, text: str | None, kind: type[N], example: str) -> list[N]:
    """Read `1,8` as numbers.

    Raises:
        ConfigurationError: it holds something else than numbers above 0, or one above 65536.
    """
    try:
        found = [kind(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        found = [kind()]
    if not all(0 < number <= _MOST for number in found):
        raise ConfigurationError(
            f"{option} {text!r} is no list of numbers above 0 and at most {_MOST}; "
            f"as {option} {example}"
        )
    return found


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
    typer.Option(help="One request at a time, N at once, as many as possible, or R a second."),
]
Concurrency = Annotated[
    str | None,
    typer.Option(metavar="N,…", help="Requests at once; each number is a level [default: 8]."),
]
Rate = Annotated[
    str | None, typer.Option(metavar="R,…", help="Requests a second; each number is a level.")
]
Requests = Annotated[
    int | None,
    typer.Option(min=1, help="Requests of each level [default: 100, or all rows of --data]."),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0.1, help="Time limit of each level; requests still running are cut off."),
]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of each generated prompt [default: 256].")
]
OutputTokens = Annotated[
    int, typer.Option(min=1, help="Tokens of each answer; with --data, at most.")
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Prompts, a row each: .jsonl, .csv, .parquet or .txt."),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="For generated prompts; a folder or a Hub name [default: MODEL].")
]
Chat = Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")]
Seed = Annotated[int, typer.Option(help="Seed of the generated prompts.")]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A folder for the report [default: runs/<date-time>-bench-<model>]."
    ),
]
NoCheckFirst = Annotated[
    bool,
    typer.Option(
        "--no-check-first", help="Skip the trial load that finds mistakes before the benchmark."
    ),
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
        concurrency=parse_numbers("--concurrency", concurrency, int, "1,8"),
        rate=parse_numbers("--rate", rate, float, "0.5,2"),
        requests=requests,
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        data=data,
        seed=seed,
    )
    is_engine = target is None and api_key_env is None
    if not is_engine and (target is None or engine or option or model_field or no_check_first):
        raise ConfigurationError(
            "--target and --api-key-env are for a server; --engine, --option, --model-field and "
            "--no-check-first for an engine: give those of one"
        )
    subject: Subject = (
        _read_engine(engine, model, option, model_field, check_first=not no_check_first)
        if target is None
        else ServedSubject(target, model, api_key_env)
    )
    try:
        _bench(subject, load, chat=chat, tokenizer=tokenizer, output=output)
    except KeyboardInterrupt as error:
        print("interrupted; nothing saved: a benchmark is written at its end", file=sys.stderr)
        raise typer.Exit(find_signal_status(error)) from None


def _read_engine(
    name: str | None,
    model: str | None,
    options: Sequence[str] | None,
    model_fields: Sequence[str] | None,
    *,
    check_first: bool,
) -> EngineSubject:
    if name is None:
        raise ConfigurationError(
            "nothing to measure: --engine NAME and a MODEL, or --target URL of a server"
        )
    fields = parse_model_fields("--model-field", model_fields)
    return EngineSubject(
        name,
        parse_option_pairs("--option", options),
        {**fields, **({"path": model} if model else {})},
        check_first,
    )


def _bench(
    subject: Subject, load: Load, *, chat: bool, tokenizer: str | None, output: Path | None
) -> None:
    subject = subject.resolve()
    started = datetime.now().astimezone()
    if load.data is not None:
        load = load.limit_to(count_rows(load.data))
    with open_folder(output, subject.title, started) as folder:
        report = run_guidellm(
            subject, load, chat=chat, tokenizer=tokenizer, progress=sys.stdout.isatty()
        )
        raw = report.model_dump(mode="json")
        result = BenchResult(
            subject.title, started, subject.to_dict(), load.to_dict(), read_levels(raw)
        )
        secrets = find_secrets(subject)
        _write(folder / REPORT, to_json(raw, indent=2), secrets)
        _write(folder / SUMMARY, to_json(result.to_dict(), indent=2), secrets)
        _write(folder / PAGE, render_page(report), secrets)
    terminal = make_console()
    terminal.print(make_table(result, width=terminal.width))
    for complaint in result.complaints:
        make_console(stderr=True).print(complaint, style="yellow", soft_wrap=True)
    print(f"report: {folder / PAGE}")
    if result.complaints:
        raise typer.Exit(EXIT_WITH_FAILURES)


def _write(file: Path, text: str, secrets: Iterable[str]) -> None:
    """Write a text without these credentials; lone surrogates become escapes."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    file.write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")
