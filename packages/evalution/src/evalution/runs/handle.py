"""One engine, one model, any number of suites: what `engine.model` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

from evalution.execution.suite_execution import SuiteExecution
from evalution.foreign_code import clean_up
from evalution.progress.reports import Progress, Silence
from evalution.runs.backend import ModelBackend, run_model
from evalution.runs.declared import (
    free_name,
    run_declaration,
    suite_declaration,
    suite_declarations,
)
from evalution.runs.failure_policy import FailurePolicy, OnError
from evalution.runs.folder import DefaultFolder
from evalution.runs.lease import SessionLease
from evalution.runs.preflight import (
    check_capabilities,
    check_engine,
    check_limit,
    check_model,
    check_session,
    check_step,
    check_suites,
)
from evalution.runs.record import RunRecord, new_result
from evalution.runs.store import RunStore, Storage, run_answer_base
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    EngineRuntimeError,
    Model,
    SessionClosedError,
)


def start(engine: BaseEngine, model: Model) -> Run:
    """What `engine.model(…)` returns."""
    return Run(engine, model)


class Run:
    """Runs suites one after the other; the model is loaded by the first.

    `result` can be read at any time. A failed load leaves the handle usable: the next `run` tries
    again. Ctrl-C and a runtime that dies close it; what was finished stays.

    Args:
        engine: what to run `model` with.
        model: a `Model`, its fields, or its path.
        session: a live session, in place of `engine` and not beside it; it stays open, and the
            caller's.
        output: folder for `results.json`, `samples.jsonl` and the journal; None keeps all in
            memory. An unfinished run of the same spec that is there goes on: nothing that was
            answered is computed again.
        fresh: start over where `output` holds a run.
        retry_failed: ask again for what failed in the run that `output` holds.
        cache: folder of answers that runs share; an answer serves only the model that gave it, with
            the same engine and the same options.
        limit: at most that many rows of each suite.
        isolate: have the model in a process of its own, which is replaced when it dies.
        on_error: `raise` ends the run at the first failed sample.
        max_failures: more failed samples than that, over all suites, end it.
        progress: told how the run goes on; None is silent.
        backend: prepares the model that `engine` attaches to, in place of `model`.
        step: the step of training that the model is at; a report plots scores over it.
    """

    def __init__(
        self,
        engine: BaseEngine | None,
        model: Model | Mapping[str, Any] | str | None = None,
        *,
        session: BaseInferenceSession | None = None,
        output: str | Path | DefaultFolder | None = None,
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
    ):
        check_session(session, engine, isolate=isolate)
        check_limit(limit)
        check_step(step)
        storage = Storage(output, fresh, retry_failed, cache)
        self._engine = None if engine is None else check_engine(engine)
        self._model = run_model(model, backend, self._engine, isolate=isolate)
        self._backend = backend
        self._limit = limit
        self._failures = FailurePolicy(on_error, max_failures)
        self._progress: Progress = progress or Silence()
        self._checked: dict[int, tuple[AnySuite, dict[str, Any], int]] = {}
        self._planned: list[AnySuite] = []
        self._stop = Event()
        self._is_running = False
        self._closed = False
        self.result = new_result(self._engine, self._model, session, backend)
        self.result.limit, self.result.step = limit, step
        self.result.folder = storage.folder
        self._record = RunRecord(self.result)
        self._store = RunStore(storage, self.result.notices)
        self._lease = SessionLease(
            self._engine,
            self._model,
            session,
            self.result.engine,
            isolate=isolate,
            backend=backend,
        )

    @property
    def has_begun(self) -> bool:
        """Whether a model was ever loaded."""
        return self._record.has_begun

    def prepare(self, suites: Sequence[AnySuite]) -> None:
        """Check all that can be checked without the model; `run` does it for its own suite.

        These suites are the whole run: the folder of a run that had others is refused.

        Raises:
            ConfigurationError: an option of the engine, the model's path, or a row of a suite.
            UnsupportedRequestError: a suite needs what the engine can't do.
        """
        self._check(suites)
        self._planned = list(suites)

    def _check(self, suites: Sequence[AnySuite]) -> None:
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

    def run(self, suite: SuiteDeclaration) -> Self:
        """Run one suite, or those of a set, and add the scores to `result`.

        Raises:
            SessionClosedError: the handle is closed.
            KeyboardInterrupt: `stop` was called.
            EvalutionError: as `evalution.run`.
        """
        if self._closed:
            raise SessionClosedError("this run is closed; start another one")
        suites = check_suites([suite])
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
        return is_first and self._is_running

    def close(self) -> None:
        """Close the session and the run folder. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._record.goes_on:
                self._lease.note_execution()
            self._lease.close()
        except BaseException as error:
            if self._record.goes_on:
                self._record.fail(error)
            clean_up(error, self._lease.close, self._end_folder)
            raise
        self._record.finish()
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
        if self._record.goes_on:
            self._record.fail(error)
        clean_up(error, self.close)

    def _run_checked(self, suite: AnySuite) -> None:
        try:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._begin(suite)
            self._run(suite)
        except BaseException as error:
            self._note_failure(error, suite)
            raise

    def _begin(self, suite: AnySuite) -> None:
        if self._lease.is_open:
            return
        # Before the weights: a folder that can't be written must not cost their loading.
        self._store.open(
            run_declaration(
                self._engine, self._model, self._limit, self.result.engine, self._backend
            ),
            suite_declarations(self._planned or [suite]),
            is_whole=bool(self._planned),
        )
        try:
            self._lease.open(self._progress, self._store.path)
            base = run_answer_base(self._engine, self._model, self.result.engine)
            self._store.bind(base, self.result.engine)
        except BaseException as error:
            clean_up(error, self._lease.close, self._store.discard)
            raise
        self.result.folder = self._store.path
        self._record.begin(self._lease.build_seconds)
        self._store.write_results(self.result)

    def _run(self, suite: AnySuite) -> None:
        session = self._lease.for_suite(suite)
        name = free_name(suite.title, [found.name for found in self.result.suites])
        expected = self._checked[id(suite)][2]
        failed_before = self.result.failed
        store = self._store.begin_suite(name, suite_declaration(suite))
        self._progress.suite_started(name, expected)
        self._is_running = True
        try:
            found = SuiteExecution(
                suite,
                name,
                session,
                expected=expected,
                limit=self._limit,
                write=self._store.write,
                progress=self._progress,
                store=store,
                failed=lambda count, latest: self._failures.check(failed_before + count, latest),
                notice=self.result.notices.append,
                stop=self._stop,
            ).run()
        finally:
            self._is_running = False
            self._progress.suite_finished()
        self._store.finish_suite(found)
        self.result.suites.append(found)
        self._lease.note_execution()
        self._store.write_results(self.result)

    def _note_failure(self, error: BaseException, suite: AnySuite) -> None:
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
            self._store.close()
