"""`evalution show`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import typer

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption, JsonOption
from evalution.results import RunResult, SampleResult, SuiteResult, to_json
from evalution.runs.reader import read_run, read_samples
from evalution.runs.unfinished import unfinished_suites
from evalution.table import complaints, console, result_table
from evalution_core import ConfigurationError, did_you_mean

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
    limit: Annotated[int, typer.Option(min=1, help="At most that many samples.")] = 5,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a run, also an unfinished one: scores, failures and conditions, or its samples."""
    with told_errors(debug=debug):
        run = read_run(directory)
        if samples is not None:
            _show_samples(_suite(run, samples), failed, wrong, limit, as_json=as_json)
        elif failed or wrong:
            raise ConfigurationError("--failed and --wrong choose samples; name --samples SUITE")
        elif as_json:
            print(to_json(run.to_dict(), indent=2))
        else:
            _show_run(run)


def _show_run(run: RunResult) -> None:
    terminal = console()
    if run.suites:
        terminal.print(result_table(run, width=terminal.width))
    else:
        terminal.print("no suite is finished", soft_wrap=True)
    for line in (*complaints(run), *_begun(run), *run.notices):
        terminal.print(line, style="yellow", soft_wrap=True)
    for name, text in _conditions(run):
        terminal.print(f"{name:8} {text}", soft_wrap=True)


def _begun(run: RunResult) -> Iterator[str]:
    for suite in unfinished_suites(run):
        option = f"--samples {shlex.quote(suite.name)}"
        yield f"{suite.name}: not finished; {option} shows what it has so far"


def _conditions(run: RunResult) -> Iterator[tuple[str, str]]:
    engine = run.engine
    yield "status", _status(run)
    yield "model", _listed(run.model)
    package = " ".join(str(engine[key]) for key in ("distribution", "version") if engine.get(key))
    named = f"{engine.get('name') or engine.get('session')}{f' ({package})' if package else ''}"
    yield "engine", ", ".join(part for part in (named, _listed(engine.get("options"))) if part)
    if in_use := _listed(engine.get("execution")):
        yield "in use", in_use
    if check := engine.get("self_check"):
        yield "check", f"{check['outcome']}: {check['detail']}"
    yield "when", ", ".join(_times(run))


def _status(run: RunResult) -> str:
    if run.status == "running":
        return "running, or it was killed; what it has finished so far is shown"
    if run.error is None:
        return run.status
    suite = run.error.get("suite")
    place = f" in suite {suite}" if suite else ""
    if run.error.get("type") == KeyboardInterrupt.__name__:
        return f"{run.status}{place}"
    return f"{run.status}{place}: {run.error.get('type')}: {run.error.get('message')}"


def _times(run: RunResult) -> Iterator[str]:
    yield run.started or "never started"
    for name, seconds in run.timings.items():
        yield f"{name.removesuffix('_s')} {seconds:.1f} s"


def _listed(options: Any) -> str:
    """`name=value` of what is set."""
    if not isinstance(options, dict):
        return ""
    known = cast(dict[str, Any], options)
    return ", ".join(f"{k}={_short(v)}" for k, v in known.items() if v not in (None, "", {}, []))


def _short(value: Any) -> str:
    """Numbers with as many digits as a reader needs."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(_short(member) for member in cast(list[Any], value))}]"
    return str(value)


def _suite(run: RunResult, name: str) -> SuiteResult:
    found = {suite.name: suite for suite in (*run.suites, *unfinished_suites(run))}
    if name not in found:
        listed = ", ".join(found) or "none"
        raise ConfigurationError(
            f"the run has no samples of a suite {name!r}{did_you_mean(name, found)} "
            f"(suites: {listed})"
        )
    return found[name]


def _show_samples(
    suite: SuiteResult, failed: bool, wrong: bool, limit: int, *, as_json: bool
) -> None:
    if wrong and failed:
        raise ConfigurationError("--failed and --wrong are two choices; take one")
    every = found = read_samples(suite)
    if failed:
        found = [sample for sample in found if sample.error is not None]
    elif wrong:
        found = _wrong(suite, found)
    shown = found[:limit]
    if as_json:
        print(to_json([sample.to_dict() for sample in shown], indent=2))
        return
    terminal = console()
    for sample in shown:
        for line in _lines(sample):
            terminal.print(line, soft_wrap=True)
    terminal.print(_counted(len(shown), len(found), len(every)), soft_wrap=True)


def _counted(shown: int, found: int, every: int) -> str:
    """How many samples stand above, of how many."""
    if not every:
        return "no samples were kept"
    if not found:
        return f"none of {every} samples"
    more = "; --limit shows more" if shown < found else ""
    return f"{shown} of {found} samples{more}"


def _wrong(suite: SuiteResult, samples: Sequence[SampleResult]) -> list[SampleResult]:
    """Samples whose main metric is 0.

    Raises:
        ConfigurationError: no metric of the suite calls a sample right or wrong.
    """
    # A suite that was cut off has no scores, but its samples do.
    names = suite.metrics or dict.fromkeys(name for sample in samples for name in sample.metrics)
    for name in names:
        values = [sample.metrics.get(name) for sample in samples]
        if all(value in (None, 0.0, 1.0) for value in values):
            return [s for s, value in zip(samples, values, strict=True) if value == 0.0]
    raise ConfigurationError(
        f"suite {suite.name!r} calls no sample right or wrong (its metrics: "
        f"{', '.join(names)}); leave --wrong out"
    )


def _lines(sample: SampleResult) -> Iterator[str]:
    scores = ", ".join(f"{name} {value:g}" for name, value in sample.metrics.items())
    yield f"{sample.suite}, row {sample.index}: {scores}".rstrip(": ")
    parts = {
        "error": sample.error,
        "prompt": _prompt(sample),
        "target": sample.target,
        "answer": sample.prediction,
        "taken": _listed(dict(sample.extracted)) or None,
        "tokens": _listed(dict(sample.tokens)) or None,
    }
    for name, text in parts.items():
        if text is not None:
            yield f"  {name:8}" + text.replace("\n", "\n" + " " * 10)
    yield ""


def _prompt(sample: SampleResult) -> str | None:
    prompt = sample.prompt
    if prompt is not None and not isinstance(prompt, str):
        prompt = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in prompt)
    if prompt is None or len(prompt) <= _PROMPT_SHOWN:
        return prompt
    return "…" + prompt[-_PROMPT_SHOWN:]
