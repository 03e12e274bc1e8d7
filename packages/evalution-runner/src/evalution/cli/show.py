"""`evalution show`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from evalution.cli.errors import report_errors
from evalution.cli.options import DebugOption, JsonOption
from evalution.comparison.significance import can_judge, is_binary
from evalution.progress import format_time
from evalution.results import RunResult, SampleResult, SuiteResult, to_json
from evalution.runs.progress_file import read_progress
from evalution.runs.reader import read_partial_suites, read_run
from evalution.sample_columns import collect_columns
from evalution.samples_file import SuiteSamples
from evalution.table import list_complaints, make_console, make_result_table
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean

_SAMPLES_SHOWN = 5
_SILENCE_S = 5.0
"""Seconds without a sign after which a run, which gives one each second, may be gone."""
_PROMPT_SHOWN = 1000
"""Characters of a prompt: its end, which holds the question."""


def show(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run.")],
    samples: Annotated[
        str | None, typer.Option(metavar="SUITE", help="Show samples of this suite.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only samples without an answer.")
    ] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only samples that score 0.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most that many samples [default: 5; with --json all]."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a run, also an unfinished one: scores, failures and conditions, or its samples."""
    with report_errors(debug=debug):
        run = read_run(directory)
        if samples is not None:
            _show_samples(_find_suite(run, samples), failed, wrong, limit, as_json=as_json)
        elif failed or wrong or limit is not None:
            raise ConfigurationError(
                "--failed, --wrong and --limit choose samples; name --samples SUITE"
            )
        elif as_json:
            print(to_json(run.to_dict(), indent=2))
        else:
            _show_run(run)


def _show_run(run: RunResult) -> None:
    terminal = make_console()
    if run.suites:
        terminal.print(make_result_table(run, width=terminal.width))
    else:
        terminal.print("no suite is finished", soft_wrap=True)
    for line in (*list_complaints(run), *_list_unfinished(run), *run.notices):
        terminal.print(line, style="yellow", soft_wrap=True)
    for name, text in _list_conditions(run):
        terminal.print(f"{name:8} {text}", soft_wrap=True)


def _list_unfinished(run: RunResult) -> Iterator[str]:
    partial = read_partial_suites(run)
    for suite in partial:
        option, count = f"--samples {shlex.quote(suite.name)}", len(suite.stored_samples)
        have = "1 sample" if count == 1 else f"{count} samples"
        if suite.name in run.planned:
            have = f"{count} of {run.planned[suite.name]} samples"
        yield f"{suite.name}: not finished, {have} so far; {option} shows them"
    known = {suite.name for suite in (*run.suites, *partial)}
    for name, rows in run.planned.items():
        if name not in known:
            yield f"{name}: not begun, {rows} samples"


def _list_conditions(run: RunResult) -> Iterator[tuple[str, str]]:
    engine = run.engine
    yield "status", _format_status(run)
    yield "model", _format_options(run.model)
    package = " ".join(str(engine[key]) for key in ("distribution", "version") if engine.get(key))
    named = f"{engine.get('name') or engine.get('session')}{f' ({package})' if package else ''}"
    yield (
        "engine",
        ", ".join(part for part in (named, _format_options(engine.get("options"))) if part),
    )
    if in_use := _format_options(engine.get("execution")):
        yield "in use", in_use
    if check := engine.get("self_check"):
        yield "check", f"{check['outcome']}: {check['detail']}"
    for suite in run.suites:
        if judge := suite.options.get("judge"):
            engine, model = dict(judge["engine"]), _format_options(judge["model"])
            yield "judge", f"of {suite.name}: {engine.pop('type')}, {model}"
    yield "when", ", ".join(_list_times(run))


def _format_status(run: RunResult) -> str:
    if run.status == "running":
        return _format_sign_of_life(run.folder)
    if run.error is None:
        return run.status
    suite = run.error.get("suite")
    place = f" in suite {suite}" if suite else ""
    if run.error.get("type") == KeyboardInterrupt.__name__:
        return f"{run.status}{place}"
    return f"{run.status}{place}: {run.error.get('type')}: {run.error.get('message')}"


def _format_sign_of_life(folder: Path | None) -> str:
    """Return the progress of a run without an end, or that it was cut off."""
    state = None if folder is None else read_progress(folder, _SILENCE_S)
    if state is not None:
        of = "" if state.total is None else f" of {state.total}"
        left = "" if state.left_s is None else f", {format_time(state.left_s)} left"
        return f"running, {state.done}{of} samples{left}"
    if folder is not None and read_progress(folder) is not None:
        return "running, or killed within the last minute"
    return "cut off by a kill or a full disk; the command that began it goes on with it"


def _list_times(run: RunResult) -> Iterator[str]:
    yield run.started or "never started"
    for name, seconds in run.timings.items():
        yield f"{name.removesuffix('_s')} {seconds:.1f} s"


def _format_options(options: Any) -> str:
    """`name=value` of what is set."""
    if not isinstance(options, dict):
        return ""
    known = cast(dict[str, Any], options)
    return ", ".join(
        f"{k}={_format_value(v)}" for k, v in known.items() if v not in (None, "", {}, [])
    )


def _format_value(value: Any) -> str:
    """Numbers with as many digits as a reader needs, true and false as a spec has them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(_format_value(member) for member in cast(list[Any], value))}]"
    return str(value)


def _find_suite(run: RunResult, name: str) -> SuiteResult:
    found = {suite.name: suite for suite in (*run.suites, *read_partial_suites(run))}
    if name not in found:
        listed = ", ".join(found) or "none"
        raise ConfigurationError(
            f"the run has no samples of a suite {name!r}{did_you_mean(name, found)} "
            f"(suites: {listed})"
        )
    return found[name]


def _show_samples(
    suite: SuiteResult, failed: bool, wrong: bool, limit: int | None, *, as_json: bool
) -> None:
    if wrong and failed:
        raise ConfigurationError("--failed and --wrong are two choices; take one")
    samples = suite.stored_samples
    count, found = len(samples), iter(samples)
    if failed or wrong:
        rows = (
            [sample.index for sample in samples if sample.error is not None]
            if failed
            else _find_wrong(suite, samples)
        )
        count, found = len(rows), samples.at(rows)
    if as_json:
        print(to_json([sample.to_dict() for sample in islice(found, limit)], indent=2))
        return
    most = limit or _SAMPLES_SHOWN
    terminal = make_console()
    for sample in islice(found, most):
        for line in _format_sample(sample):
            terminal.print(line, soft_wrap=True)
    terminal.print(_count_samples(min(most, count), count, len(samples)), soft_wrap=True)


def _count_samples(shown: int, found: int, every: int) -> str:
    """Return a line that counts the samples above, and all of them."""
    if not every:
        return "no samples were kept"
    if not found:
        return f"none of {every} samples"
    more = "; --limit shows more" if shown < found else ""
    return f"{shown} of {found} samples{more}"


def _find_wrong(suite: SuiteResult, samples: SuiteSamples) -> list[int]:
    """Return the rows that the main metric calls wrong.

    Raises:
        ConfigurationError: no metric of the suite calls a sample right or wrong.
    """
    columns = collect_columns(samples)
    # A suite that was cut off has no scores, but its samples do.
    names = list(suite.metrics or columns.metrics)
    for name in names:
        values = columns.metrics.get(name)
        metric = suite.metrics.get(name)
        is_judging = metric is None or can_judge(name, metric)
        if is_judging and values is not None and is_binary(values):
            wrong = float(metric is not None and not metric.higher_is_better)
            return [row for row, value in zip(columns.rows, values, strict=True) if value == wrong]
    raise ConfigurationError(
        f"suite {suite.name!r} calls no sample right or wrong (its metrics: "
        f"{', '.join(names)}); leave --wrong out"
    )


def _format_sample(sample: SampleResult) -> Iterator[str]:
    scores = ", ".join(f"{name} {value:g}" for name, value in sample.metrics.items())
    yield f"{sample.suite}, row {sample.index}: {scores}".rstrip(": ")
    parts = {
        "error": sample.error,
        "prompt": _format_prompt(sample),
        "target": sample.target,
        "text" if "answer" in sample.extracted else "answer": sample.prediction,
        "taken": _format_options(dict(sample.extracted)) or None,
        "tokens": _format_options(dict(sample.tokens)) or None,
    }
    for name, text in parts.items():
        if text is not None:
            yield f"  {name:8}" + text.replace("\n", "\n" + " " * 10)
    yield ""


def _format_prompt(sample: SampleResult) -> str | None:
    prompt = sample.prompt
    if prompt is not None and not isinstance(prompt, str):
        prompt = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in prompt)
    if prompt is None or len(prompt) <= _PROMPT_SHOWN:
        return prompt
    return "…" + prompt[-_PROMPT_SHOWN:]
