"""One suite of a run as an Inspect log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

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
)
from inspect_ai.model import GenerateConfig

from evalution.results import MetricResult, RunResult, SuiteResult, to_json
from evalution_inspect.logs.log_samples import eval_sample, told_error, total_usage

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
    """How the suite generated, which is greedily; empty for one that scored."""
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
