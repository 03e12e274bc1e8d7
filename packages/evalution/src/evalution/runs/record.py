"""How a run went, as its result says it: begun, failed or done, and when."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from evalution.conditions.engine_record import SCORING_POLICY, engine_record
from evalution.conditions.versions import software_versions
from evalution.results import RunResult
from evalution.runs.backend import ModelBackend
from evalution_core import BaseEngine, BaseInferenceSession, Model, redact, scrub


def new_result(
    engine: BaseEngine | None,
    model: Model,
    session: BaseInferenceSession | None,
    backend: ModelBackend | None,
) -> RunResult:
    """The result of a run in which nothing has happened yet."""
    prepared = {} if backend is None else {"backend": redact(backend.to_dict())}
    return RunResult(
        model=model.to_dict() | prepared,
        engine=engine_record(engine, session),
        scoring_policy=dict(SCORING_POLICY),
        versions={},
    )


class RunRecord:
    """Writes status, error, versions and times into `result`."""

    def __init__(self, result: RunResult):
        self.result = result
        self._started = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether a model was ever loaded."""
        return bool(self.result.started)

    @property
    def goes_on(self) -> bool:
        """Whether nothing has ended the run yet."""
        return self.result.status == "running"

    def begin(self, build_seconds: float | None) -> None:
        """Note that the model is loaded, in so many seconds if it was loaded for this run."""
        result = self.result
        result.status, result.error = "running", None  # of a load that failed before
        result.started = _now()
        self._started = time.perf_counter() - (build_seconds or 0.0)
        if build_seconds is not None:
            result.timings["build_s"] = round(build_seconds, 3)
        result.versions = software_versions(result.engine.get("distribution"))

    def fail(self, error: BaseException, suite: str | None = None) -> None:
        """Note what ended the run, in which suite."""
        self.result.status = "failed" if isinstance(error, Exception) else "interrupted"
        self.result.error = {
            "suite": suite,
            "type": type(error).__name__,
            "message": scrub(str(error)),
        }

    def finish(self) -> None:
        """Note that all is done, unless the run had failed before."""
        if self.goes_on:
            self.result.status = "done"

    def end(self) -> None:
        """Note the time at which a run that had begun ended, however it did."""
        if self.has_begun:
            self.result.finished = _now()
            self.result.timings["total_s"] = round(time.perf_counter() - self._started, 3)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
