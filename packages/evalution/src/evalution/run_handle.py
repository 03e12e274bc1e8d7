"""One engine, one model, any number of suites: what `evalution.run` and `engine.model` give."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evalution.engine_record import SCORING_POLICY, engine_record
from evalution.execution import SuiteExecution
from evalution.foreign_code import clean_up
from evalution.preflight import (
    as_model,
    check_capabilities,
    check_engine,
    check_limit,
    check_model,
    check_session,
    check_suites,
)
from evalution.progress import Progress, Silence
from evalution.results import RunResult, SampleResult
from evalution.run_folder import DefaultFolder, RunFolder, as_output, created_folder
from evalution.session_lease import SessionLease
from evalution.suites.suite import AnySuite
from evalution.versions import software_versions
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    EngineRuntimeError,
    Model,
    SessionClosedError,
    scrub,
)


def run(
    *,
    tests: Sequence[AnySuite],
    engine: BaseEngine | None = None,
    model: Model | Mapping[str, Any] | str | None = None,
    session: BaseInferenceSession | None = None,
    output: str | Path | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run suites on a model and close it.

    Args:
        tests: the suites, run in this order.
        engine: what to run `model` with.
        session: a live session, in place of `engine` and not beside it; it stays open, and the
            caller's.
        output: folder for `results.json` and `samples.jsonl`; None keeps all in memory.
        limit: at most that many rows of each suite.
        progress: told how the run goes on; None is silent.

    Raises:
        ConfigurationError: an option, a row or the model is wrong; nothing was run.
        UnsupportedRequestError: a suite needs what the engine can't do; nothing was loaded.
        EvalutionError: the run failed. Suites that were finished stand in the run folder.
    """
    suites = check_suites(tests)
    with Run(
        engine, model, session=session, output=output, limit=limit, progress=progress
    ) as handle:
        handle.prepare(suites)
        for suite in suites:
            handle.run(suite)
    return handle.result


def start(engine: BaseEngine, model: Model) -> Run:
    """What `engine.model(…)` returns."""
    return Run(engine, model)


class Run:
    """Runs suites one after the other; the model is loaded by the first.

    `result` can be read at any time. A failed load leaves the handle usable: the next `run` tries
    again. Ctrl-C and a runtime that dies close it; what was finished stays.
    Arguments as for `evalution.run`.
    """

    def __init__(
        self,
        engine: BaseEngine | None,
        model: Model | Mapping[str, Any] | str | None = None,
        *,
        session: BaseInferenceSession | None = None,
        output: str | Path | DefaultFolder | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ):
        check_session(session, engine)
        check_limit(limit)
        self._engine = None if engine is None else check_engine(engine)
        self._model = Model() if model is None else as_model(model)
        self._output = as_output(output)
        self._limit = limit
        self._progress: Progress = progress or Silence()
        self._folder: RunFolder | None = None
        self._checked: dict[int, tuple[AnySuite, dict[str, Any], int]] = {}
        self._closed = False
        self._started = 0.0
        self.result = RunResult(
            model=self._model.to_dict(),
            engine=engine_record(self._engine, session),
            scoring_policy=dict(SCORING_POLICY),
            versions={},
            limit=limit,
            folder=self._output if isinstance(self._output, Path) else None,
        )
        self._lease = SessionLease(self._engine, self._model, session, self.result.engine)

    @property
    def has_begun(self) -> bool:
        """Whether a model was ever loaded."""
        return bool(self.result.started)

    def prepare(self, suites: Sequence[AnySuite]) -> None:
        """Check all that can be checked without the model; `run` does it for its own suite.

        Raises:
            ConfigurationError: an option of the engine, the model's path, or a row of a suite.
            UnsupportedRequestError: a suite needs what the engine can't do.
        """
        if self._engine is not None:
            check_engine(self._engine)
            check_capabilities(
                suites, self._engine.capabilities, f"of engine {type(self._engine).__name__}"
            )
            check_model(self._model, self._engine)
        for suite in suites:
            suite.validate()
            options = suite.to_dict()
            known = self._checked.get(id(suite))
            if known is None or known[1] != options:
                count = suite.check_samples(self._limit)
                self._checked[id(suite)] = (suite, options, count)

    def run(self, suite: AnySuite) -> Self:
        """Run one suite and add its scores to `result`.

        Raises:
            SessionClosedError: the handle is closed.
            EvalutionError: as `evalution.run`.
        """
        if self._closed:
            raise SessionClosedError("this run is closed; start another one")
        check_suites([suite])
        self.prepare([suite])
        try:
            self._begin()
            self._run(suite)
        except BaseException as error:
            self._note_failure(error, suite)
            raise
        return self

    def close(self) -> None:
        """Close the session and the run folder. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.result.status == "running":
                self._lease.note_execution()
            self._lease.close()
        except BaseException as error:
            if self.result.status == "running":
                self._set_failed(error)
            clean_up(error, self._lease.close, self._end_folder)
            raise
        if self.result.status == "running":
            self.result.status = "done"
        self._end_folder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        if self.result.status == "running":
            self._set_failed(error)
        clean_up(error, self.close)

    def _begin(self) -> None:
        if self._lease.is_open:
            return
        # Before the weights: a folder that can't be written must not cost their loading.
        folder = created_folder(self._output)
        try:
            self._lease.open(self._progress)
        except BaseException as error:
            clean_up(error, self._lease.close, *([folder.discard] if folder else []))
            raise
        self._folder = folder
        self.result.folder = folder.path if folder else None
        self.result.status, self.result.error = "running", None  # of a load that failed before
        self.result.started = _now()
        self._started = time.perf_counter() - (self._lease.build_seconds or 0.0)
        if self._lease.build_seconds is not None:
            self.result.timings["build_s"] = round(self._lease.build_seconds, 3)
        self.result.versions = software_versions(self.result.engine.get("distribution"))
        self._write_results()

    def _run(self, suite: AnySuite) -> None:
        session = self._lease.for_suite(suite)
        name = self._free_name(suite.title)
        kept: list[SampleResult] = []
        expected = self._checked[id(suite)][2]
        self._progress.suite_started(name, expected)
        try:
            found = SuiteExecution(
                suite,
                name,
                session,
                expected=expected,
                limit=self._limit,
                write=self._folder.append if self._folder else kept.append,
                progress=self._progress,
            ).run()
        finally:
            self._progress.suite_finished()
        if self._folder is None:
            found.kept_samples = kept
        else:
            found.samples_file = self._folder.samples_file
        self.result.suites.append(found)
        self._lease.note_execution()
        self._write_results()

    def _note_failure(self, error: BaseException, suite: AnySuite) -> None:
        self._set_failed(error, suite.title)
        is_fatal = isinstance(error, EngineRuntimeError | SessionClosedError)
        if self.has_begun and (is_fatal or not isinstance(error, Exception)):
            clean_up(error, self.close)
        else:
            clean_up(error, self._write_results)

    def _set_failed(self, error: BaseException, suite: str | None = None) -> None:
        self.result.status = "failed" if isinstance(error, Exception) else "interrupted"
        self.result.error = {
            "suite": suite,
            "type": type(error).__name__,
            "message": scrub(str(error)),
        }

    def _write_results(self) -> None:
        if self._folder is not None:
            self._folder.write_results(self.result)

    def _end_folder(self) -> None:
        if self.has_begun:
            self.result.finished = _now()
            self.result.timings["total_s"] = round(time.perf_counter() - self._started, 3)
        if self._folder is not None:
            try:
                self._folder.write_results(self.result)
            finally:
                self._folder.close()

    def _free_name(self, title: str) -> str:
        taken = {found.name for found in self.result.suites}
        name, number = title, 2
        while name in taken:
            name, number = f"{title}-{number}", number + 1
        return name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
