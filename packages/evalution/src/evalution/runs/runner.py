"""A whole run in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalution.progress.reports import Progress
from evalution.results import RunResult
from evalution.runs.backend import ModelBackend
from evalution.runs.failure_policy import OnError
from evalution.runs.handle import Run
from evalution.runs.preflight import check_suites
from evalution.suites.suite import SuiteDeclaration
from evalution_core import BaseEngine, BaseInferenceSession, Model


def run(
    *,
    tests: Sequence[SuiteDeclaration],
    engine: BaseEngine | None = None,
    model: Model | Mapping[str, Any] | str | None = None,
    session: BaseInferenceSession | None = None,
    output: str | Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    cache: str | Path | None = None,
    limit: int | None = None,
    isolate: bool = False,
    on_error: OnError = "record",
    max_failures: int | None = None,
    progress: Progress | None = None,
    backend: ModelBackend | None = None,
    step: int | None = None,
) -> RunResult:
    """Run the suites `tests` in their order on a model, and close it; the rest as for `Run`.

    Raises:
        ConfigurationError: an option, a row or the model is wrong, or `output` holds another run;
            nothing was run.
        UnsupportedRequestError: a suite needs what the engine can't do; nothing was loaded.
        TooManyFailuresError: as `on_error` and `max_failures` say.
        EvalutionError: the run failed. What was finished stands in the run folder.
    """
    suites = check_suites(tests)
    with Run(
        engine,
        model,
        session=session,
        output=output,
        fresh=fresh,
        retry_failed=retry_failed,
        cache=cache,
        limit=limit,
        isolate=isolate,
        on_error=on_error,
        max_failures=max_failures,
        progress=progress,
        backend=backend,
        step=step,
    ) as handle:
        handle.prepare(suites)
        for suite in suites:
            handle.run(suite)
    return handle.result
