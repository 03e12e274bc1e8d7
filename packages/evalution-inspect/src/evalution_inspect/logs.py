"""One suite of a run as an Inspect log."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalPlan,
    EvalPlanStep,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import GenerateConfig

from evalution.results import MetricResult, RunResult, SuiteResult, to_json
from evalution.runs.reader import read_run
from evalution.samples import SAMPLES, SamplesReader
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean
from evalution_inspect.log_samples import eval_sample, told_error, total_usage

_ID_LENGTH = 22
"""As long as Inspect's own ids."""


def suite_log(run: RunResult, suite: SuiteResult) -> EvalLog:
    """The log of a finished suite: its scores, with standard errors, and its samples.

    Raises:
        ConfigurationError: the run's samples can't be read.
    """
    model = model_name(run)
    samples = [eval_sample(sample, model) for sample in suite.stored_samples]
    metadata = {
        "provenance": suite.provenance,
        "first_failure": suite.first_failure,
        "errors": suite.errors,
        "seconds": suite.seconds,
        "cached": suite.cached,
    }
    return EvalLog(
        status="success",
        eval=_spec(run, suite.name, suite.type, suite.options, samples, metadata),
        plan=_plan(suite.options),
        results=EvalResults(
            total_samples=suite.n,
            completed_samples=suite.n - suite.failed,
            scores=[_score(name, metric, suite.n) for name, metric in suite.metrics.items()],
        ),
        stats=_stats(run, samples),
        samples=samples,
    )


def unfinished_log(run: RunResult, name: str, samples: list[EvalSample]) -> EvalLog:
    """The log of the suite in which a run ended, with what it had answered and the error."""
    error = run.error or {}
    return EvalLog(
        status="cancelled" if run.status == "interrupted" else "error",
        eval=_spec(run, name, "", {}, samples, {}),
        stats=_stats(run, samples),
        error=told_error(f"{error.get('type')}: {error.get('message')}"),
        samples=samples,
    )


def model_name(run: RunResult) -> str:
    """As the provider `evalution` would be asked for it."""
    return f"evalution/{run.model.get('path') or run.model.get('label') or 'model'}"


def _spec(
    run: RunResult,
    name: str,
    kind: str,
    options: Mapping[str, Any],
    samples: list[EvalSample],
    metadata: Mapping[str, Any],
) -> EvalSpec:
    identity = [run.started, run.model, run.engine, str(run.folder and run.folder.name)]
    data = options.get("data")
    shuffled = None if "order" not in options else options["order"] != "native"
    return EvalSpec(
        run_id=_digest(identity),
        eval_id=_digest([*identity, name, "eval"]),
        task_id=_digest([*identity, name]),
        created=run.started,
        task=name,
        task_attribs={"type": kind} if kind else {},
        task_args={key: value for key, value in options.items() if value not in (None, [])},
        dataset=EvalDataset(
            name=name,
            location=data if isinstance(data, str) else None,
            samples=len(samples),
            sample_ids=[int(sample.id) for sample in samples],
            shuffled=shuffled,
        ),
        model=model_name(run),
        model_args={"engine": run.engine.get("name"), "options": run.engine.get("options") or {}},
        model_generate_config=_generate_config(options),
        config=EvalConfig(limit=run.limit),
        packages={key: value for key, value in run.versions.items() if isinstance(value, str)},
        metadata=_plain(
            {
                "model": run.model,
                "engine": run.engine,
                "scoring_policy": run.scoring_policy,
                "notices": run.notices,
                **metadata,
            }
        ),
    )


def _generate_config(options: Mapping[str, Any]) -> GenerateConfig:
    """Return the suite's generation settings, which are greedy; empty for one that scored."""
    if "max_new_tokens" not in options:
        return GenerateConfig()
    return GenerateConfig(
        max_tokens=options["max_new_tokens"],
        stop_seqs=list(options.get("stop") or ()) or None,
        temperature=0.0,
    )


def _plan(options: Mapping[str, Any]) -> EvalPlan:
    solver = "generate" if "max_new_tokens" in options else "loglikelihood"
    return EvalPlan(steps=[EvalPlanStep(solver=solver)], config=_generate_config(options))


def _score(name: str, metric: MetricResult, samples: int) -> EvalScore:
    """A metric as a scorer's result; a value that can't be had is left out."""
    values = {name: metric.value, "stderr": metric.stderr}
    return EvalScore(
        name=name,
        scorer=name,
        scored_samples=metric.n,
        unscored_samples=samples - metric.n,
        metrics={
            key: EvalMetric(name=key, value=value)
            for key, value in values.items()
            if value is not None
        },
        metadata={"higher_is_better": metric.higher_is_better},
    )


def _stats(run: RunResult, samples: list[EvalSample]) -> EvalStats:
    return EvalStats(
        started_at=run.started,
        completed_at=run.finished or "",
        model_usage=total_usage(samples, model_name(run)),
    )


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(to_json(dict(value)))


def _digest(parts: list[Any]) -> str:
    """The same for the same run, so that a log that is written again replaces itself."""
    return hashlib.sha256(to_json(parts).encode()).hexdigest()[:_ID_LENGTH]


def write_logs(run: RunResult, folder: Path | str, suites: Sequence[str] = ()) -> list[Path]:
    """Write a log for each suite of a run, and give their paths.

    Of a run that failed, the suite in which it ended has a log too, with the error. Names follow
    Inspect's own logs: the time, the suite, an id. Writing a run again replaces its logs.

    Args:
        run: as `evalution.runs.reader.read_run` gives it.
        folder: is made if there is none.
        suites: only these; all of them if empty.

    Raises:
        ConfigurationError: the run has no such suite, or nothing to write; or a file can't be read
            or written.
    """
    target = Path(folder)
    ended_in = _ended_in(run)
    names = [suite.name for suite in run.suites] + ([ended_in] if ended_in else [])
    for name in suites:
        if name not in names:
            raise ConfigurationError(
                f"the run has no suite {name!r}{did_you_mean(name, names)} "
                f"(suites: {', '.join(names) or 'none'})"
            )
    if not names:
        raise ConfigurationError("no suite of the run was begun, so there is nothing to write")
    logs = _logs(run, ended_in, set(suites or names))
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_write(log, target) for log in logs]
    except OSError as error:
        raise ConfigurationError(f"{target} can't be written: {error.strerror}") from error


def _logs(run: RunResult, ended_in: str | None, wanted: set[str]) -> Iterator[EvalLog]:
    for suite in run.suites:
        if suite.name in wanted:
            yield suite_log(run, suite)
    if ended_in in wanted:
        assert ended_in is not None
        file = run.folder / SAMPLES if run.folder else None
        found = SamplesReader(file).of(ended_in) if file and file.is_file() else ()
        samples = [eval_sample(sample, model_name(run)) for sample in found]
        yield unfinished_log(run, ended_in, samples)


def _ended_in(run: RunResult) -> str | None:
    name = (run.error or {}).get("suite")
    return name if name not in [suite.name for suite in run.suites] else None


def _write(log: EvalLog, folder: Path) -> Path:
    created = log.eval.created.replace(":", "-")
    task = re.sub(r"[^\w.-]|_", "-", log.eval.task)
    path = folder / f"{created}_{task}_{log.eval.task_id}.eval"
    write_eval_log(log, path)
    return path


RunFolder = Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run.")]
Output = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where the logs go [default: DIR/inspect].")
]
Suites = Annotated[
    list[str] | None, typer.Option("--suite", metavar="NAME", help="Only this suite; repeatable.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def inspect_log(
    directory: RunFolder,
    output: Output = None,
    suite: Suites = None,
    debug: Debug = False,  # read by the runner, which prints the errors of every command
) -> None:
    """Write a run as logs of Inspect, one a suite, which `inspect view` shows."""
    run = read_run(directory)
    folder = Path(output) if output else (run.folder or Path(directory)) / "inspect"
    for path in write_logs(run, folder, suite or ()):
        print(path)
    print(f"look at them: inspect view --log-dir {folder}")
