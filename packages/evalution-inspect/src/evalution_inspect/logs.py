"""Suites of a run as Inspect logs, and the command that writes them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
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
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import Score

from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult, to_json
from evalution.runs.reader import read_run
from evalution.samples_file import SAMPLES, SamplesReader
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean

_ID_LENGTH = 22
"""As long as Inspect's own ids."""


_ROLES: dict[str, type[ChatMessage]] = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
    "tool": ChatMessageTool,
}


def make_sample(sample: SampleResult, model: str) -> EvalSample:
    """Return the sample with its row as id.

    A score stands under the name of its metric. What was extracted, such as the log-probability of
    each choice, and the counted tokens are metadata. Where nothing was prompted, as in a
    perplexity, the input is the text that was scored.
    """
    asked = _read_input(sample)
    messages: list[ChatMessage] = []
    messages += [ChatMessageUser(content=asked)] if isinstance(asked, str) else asked
    usage = _count_usage(sample.tokens)
    output = ModelOutput(model=model, usage=usage, error=sample.error)
    if sample.prediction is not None:
        answer = ChatMessageAssistant(content=sample.prediction, model=model, source="generate")
        output = ModelOutput(
            model=model, choices=[ChatCompletionChoice(message=answer)], usage=usage
        )
        messages.append(answer)
    return EvalSample(
        id=sample.index,
        epoch=1,
        input=asked,
        target=sample.target or "",
        messages=messages,
        output=output,
        scores=_make_scores(sample),
        metadata={"extracted": dict(sample.extracted), "tokens": dict(sample.tokens)},
        model_usage={model: usage} if usage else {},
        error=make_error(sample.error) if sample.error else None,
    )


def make_error(message: str) -> EvalError:
    """Return an error of which only the message is known."""
    return EvalError(message=message, traceback=message, traceback_ansi=message)


def sum_usage(samples: Sequence[EvalSample], model: str) -> dict[str, ModelUsage]:
    """Tokens of all samples; empty where the engine counted none."""
    counted = [sample.model_usage[model] for sample in samples if model in sample.model_usage]
    return {model: sum(counted, ModelUsage())} if counted else {}


def _read_input(sample: SampleResult) -> str | list[ChatMessage]:
    prompt = sample.prompt
    if prompt is None or isinstance(prompt, str):
        return prompt or sample.target or ""
    return [_convert_message(message) for message in prompt]


def _convert_message(message: Mapping[str, Any]) -> ChatMessage:
    kind = _ROLES.get(str(message.get("role")), ChatMessageUser)
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Mapping[str, Any]]", content)
        content = "\n".join(str(part.get("text", "")) for part in parts)
    return kind(content=content or "")


def _make_scores(sample: SampleResult) -> dict[str, Score]:
    extracted = {name: e for name, e in sample.extracted.items() if isinstance(e, str)}
    return {
        name: Score(value=value, answer=extracted.get(name, sample.prediction))
        for name, value in sample.metrics.items()
    }


def _count_usage(tokens: Mapping[str, int]) -> ModelUsage | None:
    """Return the prompt with its scored continuations, and the answer; None if nothing counted."""
    if not tokens:
        return None
    fed, generated = tokens.get("prompt", 0) + tokens.get("scored", 0), tokens.get("completion", 0)
    return ModelUsage(input_tokens=fed, output_tokens=generated, total_tokens=fed + generated)


def make_suite_log(run: RunResult, suite: SuiteResult) -> EvalLog:
    """Make the log of a finished suite: its scores, with standard errors, and its samples.

    Raises:
        ConfigurationError: the run's samples can't be read.
    """
    model = format_model_name(run)
    samples = [make_sample(sample, model) for sample in suite.stored_samples]
    metadata = {
        "provenance": suite.provenance,
        "first_failure": suite.first_failure,
        "errors": suite.errors,
        "seconds": suite.seconds,
        "cached": suite.cached,
    }
    return EvalLog(
        status="success",
        eval=_make_spec(run, suite.name, suite.type, suite.options, samples, metadata),
        plan=_make_plan(suite.options, samples),
        results=EvalResults(
            total_samples=suite.n,
            completed_samples=suite.n - suite.failed,
            scores=[_make_score(name, metric, suite.n) for name, metric in suite.metrics.items()],
        ),
        stats=_make_stats(run, samples),
        samples=samples,
    )


def make_unfinished_log(run: RunResult, name: str) -> EvalLog:
    """Make the log of the suite in which a run ended, with its answers so far and the error."""
    error = run.error or {}
    file = run.folder / SAMPLES if run.folder else None
    found = SamplesReader(file).of(name) if file and file.is_file() else ()
    samples = [make_sample(sample, format_model_name(run)) for sample in found]
    return EvalLog(
        status="cancelled" if run.status == "interrupted" else "error",
        eval=_make_spec(run, name, "", {}, samples, {}),
        stats=_make_stats(run, samples),
        error=make_error(f"{error.get('type')}: {error.get('message')}"),
        samples=samples,
    )


def format_model_name(run: RunResult) -> str:
    """As the provider `evalution` would be asked for it."""
    return f"evalution/{run.model.get('path') or run.model.get('label') or 'model'}"


def _make_spec(
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
        run_id=_hash(identity),
        eval_id=_hash([*identity, name, "eval"]),
        task_id=_hash([*identity, name]),
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
        model=format_model_name(run),
        model_args={"engine": run.engine.get("name"), "options": run.engine.get("options") or {}},
        model_generate_config=_make_generate_config(options),
        config=EvalConfig(limit=run.limit),
        packages={key: value for key, value in run.versions.items() if isinstance(value, str)},
        metadata=_to_plain(
            {
                "model": run.model,
                "engine": run.engine,
                "scoring_policy": run.scoring_policy,
                "notices": run.notices,
                **metadata,
            }
        ),
    )


def _make_generate_config(options: Mapping[str, Any]) -> GenerateConfig:
    """Return the suite's generation settings; empty for one that scored, or whose are unknown.

    They are greedy, unless each row has several answers.
    """
    if "max_new_tokens" not in options:
        return GenerateConfig()
    is_sampled = (options.get("num_samples") or 1) > 1
    return GenerateConfig(
        max_tokens=options["max_new_tokens"],
        stop_seqs=list(options.get("stop") or ()) or None,
        temperature=options.get("temperature") if is_sampled else 0.0,
        top_p=options.get("top_p") if is_sampled else None,
    )


def _make_plan(options: Mapping[str, Any], samples: Sequence[EvalSample]) -> EvalPlan:
    """Name the solver by the tokens that the answers count; without any, it is left out."""
    counted = {name for sample in samples for name in sample.metadata["tokens"]}
    solvers = {"generate": "completion" in counted, "loglikelihood": "scored" in counted}
    solvers["generate"] |= "max_new_tokens" in options
    steps = [EvalPlanStep(solver=solver) for solver, is_used in solvers.items() if is_used]
    return EvalPlan(steps=steps, config=_make_generate_config(options))


def _make_score(name: str, metric: MetricResult, samples: int) -> EvalScore:
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


def _make_stats(run: RunResult, samples: list[EvalSample]) -> EvalStats:
    return EvalStats(
        started_at=run.started,
        completed_at=run.finished or "",
        model_usage=sum_usage(samples, format_model_name(run)),
    )


def _to_plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(to_json(dict(value)))


def _hash(parts: list[Any]) -> str:
    """The same for the same run, so that a log that is written again replaces itself."""
    return hashlib.sha256(to_json(parts).encode()).hexdigest()[:_ID_LENGTH]


def write_logs(run: RunResult, folder: Path | str, suites: Sequence[str] = ()) -> list[Path]:
    """Write a log for each suite of a run and return their paths.

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
    names = list(dict.fromkeys([*(suite.name for suite in run.suites), *_find_ended_suite(run)]))
    for name in suites:
        if name not in names:
            raise ConfigurationError(
                f"the run has no suite {name!r}{did_you_mean(name, names)} "
                f"(suites: {', '.join(names) or 'none'})"
            )
    if not names:
        raise ConfigurationError("no suite of the run was begun, so there is nothing to write")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [_write(run, name, Path(folder)) for name in names if name in (suites or names)]
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be written: {error.strerror}") from error


def _find_ended_suite(run: RunResult) -> list[str]:
    """Return the name of the suite in which a run ended, if it did."""
    name = (run.error or {}).get("suite")
    return [name] if name else []


def _write(run: RunResult, name: str, folder: Path) -> Path:
    finished = {suite.name: suite for suite in run.suites}
    log = (
        make_suite_log(run, finished[name]) if name in finished else make_unfinished_log(run, name)
    )
    created = log.eval.created.replace(":", "-")
    task = re.sub(r"[^\w.-]|_", "-", name)
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
