"""One engine, one model, any number of suites: the handle of a run, and a run in one call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Self, cast

from evalution.environment import SCORING_POLICY, make_engine_record
from evalution.error_boundary import clean_up
from evalution.installation import check_installation
from evalution.journal.store import KnownAnswers
from evalution.progress import Progress
from evalution.redaction import mask_text, mask_value
from evalution.results import RunResult, SuiteResult
from evalution.runs.backend import ModelBackend, resolve_model
from evalution.runs.judging import JudgeSession, check_judges, group_by_judge, plan_grades
from evalution.runs.options import FailurePolicy, OnError, RunOptions, TooManyFailuresError
from evalution.runs.preflight import (
    check_capabilities,
    check_engine,
    check_model,
    check_session,
    parse_tests,
)
from evalution.runs.progress_file import ProgressFile
from evalution.runs.run_identity import (
    declare_run,
    declare_suite,
    declare_suites,
    find_free_name,
    name_suites,
)
from evalution.runs.session import SessionHolder
from evalution.runs.store import RunStore, make_run_answer_base
from evalution.runs.suite_run import SuiteRun
from evalution.suites.generation_suite import GenerationSuite
from evalution.suites.grading_suite import JUDGED
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    EngineRuntimeError,
    Model,
    SessionClosedError,
)


class RunRecord:
    """Status, error, versions and times of a run, written into `result`."""

    def __init__(self, result: RunResult):
        self.result = result
        self._started = 0.0

    @property
    def has_begun(self) -> bool:
        """True if a model was ever loaded."""
        return bool(self.result.started)

    @property
    def is_running(self) -> bool:
        """True until something has ended the run."""
        return self.result.status == "running"

    def begin(self, build_seconds: float | None, versions: dict[str, Any]) -> None:
        """Note that the model is loaded, in so many seconds if it was loaded for this run."""
        result = self.result
        result.status, result.error = "running", None  # of a load that failed before
        result.started = _now()
        self._started = time.perf_counter() - (build_seconds or 0.0)
        if build_seconds is not None:
            result.timings["build_s"] = round(build_seconds, 3)
        result.versions = versions

    def fail(self, error: BaseException, suite: str | None = None) -> None:
        """Note what ended the run, in which suite."""
        self.result.status = "failed" if isinstance(error, Exception) else "interrupted"
        self.result.error = {
            "suite": suite,
            "type": type(error).__name__,
            "message": mask_text(str(error)),
        }

    def finish(self) -> None:
        """Note that all is done, unless the run had failed before."""
        if self.is_running:
            self.result.status = "done"

    def end(self) -> None:
        """Note the time at which a run that had begun ended, however it did."""
        if self.has_begun:
            self.result.finished = _now()
            self.result.timings["total_s"] = round(time.perf_counter() - self._started, 3)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def start(engine: BaseEngine, model: Model) -> Run:
    """Return the run of `engine.model(…)`."""
    return Run(engine, model)


class Run:
    """Runs suites one after the other; the model is loaded by the first.

    Judges grade the answers at the end, once the model is closed.

    `result` can be read at any time. A failed load leaves the handle usable: the next `run` tries
    again. Ctrl-C and a runtime that dies close it; what was finished stays.

    Args:
        engine: what to run `model` with.
        model: a `Model`, its fields, or its path.
        options: where the run is kept and what ends it.
        session: a live session, in place of `engine` and not beside it; it stays open, and the
            caller's.
    """

    def __init__(
        self,
        engine: BaseEngine | None,
        model: Model | Mapping[str, Any] | str | None = None,
        options: RunOptions | None = None,
        *,
        session: BaseInferenceSession | None = None,
    ):
        check_installation()
        options = options or RunOptions()
        self._progress = ProgressFile(options.progress)
        self._options = options = replace(options, progress=self._progress)
        check_session(session, engine, isolate=options.isolate)
        self._engine = None if engine is None else check_engine(engine)
        self._model = resolve_model(model, options.backend, self._engine, isolate=options.isolate)
        self._checked: dict[int, _CheckedSuite] = {}
        self._planned: list[AnySuite] = []
        self._judging: list[tuple[GenerationSuite, SuiteResult]] = []
        self._stop = Event()
        self._is_running_suite = False
        self._closed = False
        self.result = _new_result(self._engine, self._model, session, options)
        self._record = RunRecord(self.result)
        self._store = RunStore(options, self.result.notices)
        self._holder = SessionHolder(
            self._engine,
            self._model,
            session,
            self.result.engine,
            isolate=options.isolate,
            backend=options.backend,
        )

    @property
    def has_begun(self) -> bool:
        """True if a model was ever loaded."""
        return self._record.has_begun

    @property
    def engine(self) -> dict[str, Any]:
        """The engine's part of `result`, with what was in use under `execution`."""
        return self.result.engine

    @property
    def model(self) -> dict[str, Any]:
        """The model's part of `result`."""
        return self.result.model

    def to_dict(self) -> dict[str, Any]:
        """Return what `results.json` holds."""
        return self.result.to_dict()

    def prepare(self, suites: Sequence[AnySuite]) -> None:
        """Check all that can be checked without the model; `run` does it for its own suite.

        These suites are the whole run: the folder of a run that had others is refused.

        Raises:
            ConfigurationError: an option of the engine, the model's path, or a row of a suite.
            UnsupportedRequestError: a suite needs what the engine can't do.
        """
        self._check(suites)
        self._planned = list(suites)
        named = name_suites(suites)
        counts = {name: self._checked[id(suite)].count for name, suite in named}
        counts |= plan_grades(named, counts)
        self.result.planned = counts
        self._progress.suites_planned(list(counts.values()))

    def _check(self, suites: Sequence[AnySuite]) -> None:
        if self._engine is not None:
            check_engine(self._engine)
            check_capabilities(
                suites, self._engine.capabilities, f"of engine {type(self._engine).__name__}"
            )
            check_model(self._model, self._engine)
        check_judges(suites)
        for suite in suites:
            suite.validate()
            options = suite.to_dict()
            known = self._checked.get(id(suite))
            if known is None or known.options != options:
                self._progress.rows_checking(suite.title)
                try:
                    count = suite.check_samples(self._options.limit)
                finally:
                    self._progress.rows_checked()
                self._checked[id(suite)] = _CheckedSuite(suite, options, count)

    def run(self, suite: SuiteDeclaration) -> Self:
        """Run one suite, or those of a set, and add the scores to `result`.

        Raises:
            SessionClosedError: the handle is closed.
            KeyboardInterrupt: `stop` was called.
            EvalutionError: as `evalution.run`.
        """
        if self._closed:
            raise SessionClosedError("this run is closed; start another one")
        suites = parse_tests([suite])
        self._check(suites)
        for one in suites:
            self._run_checked(one)
        return self

    def stop(self) -> bool:
        """Have the running suite finish what is in flight; `run` then ends as by Ctrl-C.

        Returns whether there is something in flight to wait for, and this was the first call.
        """
        is_first = not self._stop.is_set()
        self._stop.set()
        return is_first and self._is_running_suite

    def close(self) -> None:
        """Close the session, have judges grade the answers, and close the folder. Idempotent.

        Raises:
            EvalutionError: a judge can't be loaded, or failed; as `evalution.run`.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._record.is_running:
                self._holder.record_execution()
            self._holder.close()
            if self._record.is_running:
                self._grade()
        except BaseException as error:
            if self._record.is_running:
                self._record.fail(error)
            clean_up(error, self._holder.close, self._end_folder)
            raise
        self._record.finish()
        self._end_folder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
            return
        if self._record.is_running:
            self._record.fail(error)
        clean_up(error, self.close)

    def _run_checked(self, suite: AnySuite) -> None:
        try:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._begin(suite)
            self._run(suite)
        except BaseException as error:
            self._record_failure(error, suite)
            raise

    def _begin(self, suite: AnySuite) -> None:
        if self._holder.is_open:
            return
        # Before the weights: a folder that can't be written must not cost their loading.
        self._store.open(
            declare_run(
                self._engine,
                self._model,
                self._options.limit,
                self.result.engine,
                self._options.backend,
                self._options.step,
            ),
            declare_suites(self._planned or [suite]),
            is_whole=bool(self._planned),
        )
        try:
            self._progress.open(self._store.path)
            self._holder.open(self._progress, self._store.path)
            environment = self._holder.read_environment()
            base = make_run_answer_base(
                self._engine, self._model, self.result.engine, environment.software
            )
            self._store.bind(base, self.result.engine)
            self._collect_notices()
        except BaseException as error:
            clean_up(error, self._progress.close, self._holder.close, self._store.discard)
            raise
        self.result.folder = self._store.path
        self._record.begin(self._holder.build_seconds, environment.versions)
        self._store.write_results(self.result)

    def _run(self, suite: AnySuite) -> None:
        session = self._holder.prepare(suite)
        name = find_free_name(suite.title, [found.name for found in self.result.suites])
        known = self._store.begin_suite(name, declare_suite(suite))
        found = self._run_on(session, suite, name, known, self._checked[id(suite)].count)
        self._holder.record_execution()
        self._collect_notices()
        self._store.write_results(self.result)
        if isinstance(suite, GenerationSuite) and suite.judge is not None:
            self._judging.append((suite, found))

    def _grade(self) -> None:
        """Have each judge grade the answers of its suites."""
        for judge, suites in group_by_judge(self._judging):
            with closing(JudgeSession(judge, self._options, self._store.path)) as opened:
                for suite, answers in suites:
                    taken = [found.name for found in self.result.suites]
                    name = find_free_name(f"{answers.name}-{JUDGED}", taken)
                    try:
                        if self._stop.is_set():
                            raise KeyboardInterrupt
                        grading = opened.prepare(suite, answers)
                        known = self._store.begin_suite(name, base=opened.answer_base)
                        count = sum(1 for _ in grading.samples(self._options.limit))
                        self._run_on(opened.session, grading, name, known, count)
                    except BaseException as error:
                        self._record.fail(error, name)
                        raise
                    self._store.write_results(self.result)

    def _run_on(
        self,
        session: BaseInferenceSession,
        suite: AnySuite,
        name: str,
        known: KnownAnswers,
        expected: int,
    ) -> SuiteResult:
        self._progress.suite_started(name, expected)
        self._is_running_suite = True
        try:
            found = SuiteRun(
                suite,
                name,
                session,
                options=self._options,
                expected=expected,
                failed_before=self.result.failed,
                known=known,
                write=self._store.write,
                notices=self.result.notices,
                stop=self._stop,
            ).run()
        except TooManyFailuresError as error:
            if self._store.can_resume:
                again = f"with --retry-failed it goes on in {self._store.path}"
                error.args = (f"{error}; {again}, and asks again for what failed",)
            raise
        finally:
            self._is_running_suite = False
            self._progress.suite_finished()
        self._store.finish_suite(found)
        self.result.suites.append(found)
        return found

    def _collect_notices(self) -> None:
        """Take over the sentences that a session says about itself under `notices`, each once."""
        execution: dict[str, Any] = self.result.engine.get("execution") or {}
        said = execution.get("notices")
        for text in cast("list[str]", said) if isinstance(said, list) else []:
            if text not in self.result.notices:
                self.result.notices.append(text)

    def _record_failure(self, error: BaseException, suite: AnySuite) -> None:
        self._record.fail(error, suite.title)
        is_fatal = isinstance(error, EngineRuntimeError | SessionClosedError)
        if self.has_begun and (is_fatal or not isinstance(error, Exception)):
            clean_up(error, self.close)
        else:
            clean_up(error, self._write_results)

    def _write_results(self) -> None:
        if self.has_begun:
            self._store.write_results(self.result)

    def _end_folder(self) -> None:
        self._record.end()
        try:
            self._write_results()
        finally:
            self._progress.close()
            self._store.close()


@dataclass(frozen=True, slots=True)
class _CheckedSuite:
    """A suite whose rows were read once: `count` samples with these options."""

    suite: AnySuite
    options: Mapping[str, Any]
    count: int


def _new_result(
    engine: BaseEngine | None,
    model: Model,
    session: BaseInferenceSession | None,
    options: RunOptions,
) -> RunResult:
    backend = options.backend
    prepared = {} if backend is None else {"backend": mask_value(backend.to_dict())}
    return RunResult(
        model=model.to_dict() | prepared,
        engine=make_engine_record(engine, session),
        scoring_policy=dict(SCORING_POLICY),
        versions={},
        limit=options.limit,
        step=options.step,
        folder=options.folder,
    )


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
    record_tokens: bool = False,
) -> RunResult:
    """Run the suites `tests` in their order on a model, and close it.

    Engine, model and session are those of `Run`, the rest are those of `RunOptions`; `on_error` and
    `max_failures` are its `failures`.

    Raises:
        ConfigurationError: an option, a row or the model is wrong, or `output` holds another run;
            nothing was run.
        UnsupportedRequestError: a suite needs what the engine can't do; nothing was loaded.
        TooManyFailuresError: as `on_error` and `max_failures` say.
        EvalutionError: the run failed. What was finished stands in the run folder.
    """
    suites = parse_tests(tests)
    options = RunOptions(
        output=output,
        fresh=fresh,
        retry_failed=retry_failed,
        cache=cache,
        limit=limit,
        isolate=isolate,
        failures=FailurePolicy(on_error, max_failures),
        progress=progress or Progress(),
        backend=backend,
        step=step,
        record_tokens=record_tokens,
    )
    with Run(engine, model, options, session=session) as handle:
        handle.prepare(suites)
        for suite in suites:
            handle.run(suite)
    return handle.result
