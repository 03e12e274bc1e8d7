"""The session of a run: built when it is first needed, or given by the caller."""

from __future__ import annotations

import logging
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from evalution.environment import (
    DeclaredElsewhere,
    Environment,
    read_environment,
    record_execution,
    record_identity,
)
from evalution.error_boundary import clean_up, wrap_errors
from evalution.hints import suggest_generation
from evalution.progress import Progress
from evalution.redaction import register_secrets
from evalution.results import to_json
from evalution.runs.backend import ModelBackend
from evalution.runs.preflight import check_capabilities
from evalution.suites.suite import AnySuite
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    CheckResult,
    EngineRuntimeError,
    EvalutionError,
    Model,
    UnsupportedRequestError,
)
from evalution_core.kinds import RequestKind

_log = logging.getLogger("evalution")


class SessionHolder:
    """One session, used by suites in turn; closed at the end unless the caller gave it.

    With a backend, the engine attaches to what it prepares, and the end tears that down too. A
    build that fails can be tried again. The session's description of itself goes into `record`, the
    engine's part of the results.
    """

    def __init__(
        self,
        engine: BaseEngine | None,
        model: Model,
        given: BaseInferenceSession | None,
        record: dict[str, Any],
        *,
        isolate: bool,
        backend: ModelBackend | None = None,
    ):
        self._engine = engine
        self._model = model
        register_secrets(engine)
        register_secrets(model)
        self._given = given
        self._record = record
        self._isolate = isolate
        self._backend = backend
        self._session: BaseInferenceSession | None = None
        self._release = ExitStack()
        self._finalizer: weakref.finalize[..., Self] | None = None
        self._is_used = False
        self.build_seconds: float | None = None

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def session(self) -> BaseInferenceSession:
        """The open session as it is; `prepare` makes it ready for a suite."""
        assert self._session is not None
        return self._session

    def open(self, progress: Progress, folder: Path | None = None) -> None:
        """Build the session, or take the given one; record what it is, and log what is in use.

        A backend gets `folder`/backend to write to; without a folder, one that is removed.

        Raises:
            ConfigurationError: the engine refuses the model.
            EngineUnavailableError: the engine's runtime is missing.
            EngineRuntimeError: the build failed in a way the engine doesn't know.
        """
        session = self._build(progress, folder) if self._given is None else self._given
        self._session = session
        record_identity(self._record, session)
        record_execution(self._record, session)
        _log.info("session ready: %s", to_json(self._record["execution"]))

    def prepare(self, suite: AnySuite) -> BaseInferenceSession:
        """Return the open session, tidied up after the last suite and checked for this one.

        Raises:
            UnsupportedRequestError: the session can do less than its engine declared, too little.
            EngineRuntimeError: its self check failed.
        """
        session = self.session
        with wrap_errors("capabilities"):
            capabilities = session.capabilities
        if suite.request_kind.capability not in capabilities:
            _refuse(session, suite)
        check_capabilities([suite], capabilities, "of the model as it was loaded")
        if self._is_used:
            with wrap_errors("gc"):
                session.gc()
        self._is_used = True
        if suite.request_kind is not RequestKind.GENERATION:
            self._check(session)
        return session

    def read_environment(self) -> Environment:
        """Return the software of the open session."""
        return read_environment(self._engine, self._session)

    def record_execution(self) -> None:
        """Record again what is in use: the runtime may have fallen back since."""
        if self._session is not None:
            record_execution(self._record, self._session)

    def close(self) -> None:
        """Close the session if it was made here, and tear down what it attached to. Idempotent."""
        self._session = None
        if self._finalizer is not None:
            self._finalizer.detach()
        with wrap_errors("close"):
            self._release.close()

    def _build(self, progress: Progress, folder: Path | None) -> BaseInferenceSession:
        assert self._engine is not None
        name = type(self._engine).__name__
        progress.model_loading(self._model.name, name)
        before = time.perf_counter()
        try:
            with wrap_errors(f"engine {name} could not load {self._model.name}"):
                session = self._load(self._engine, folder)
        except BaseException as error:
            progress.model_failed()
            clean_up(error, self._release.close)
            raise
        self.build_seconds = time.perf_counter() - before
        progress.model_ready(self.build_seconds)
        if not isinstance(session, BaseInferenceSession):  # pyright: ignore[reportUnnecessaryIsInstance]
            call = "build" if self._backend is None else "attach"
            error = EngineRuntimeError(
                f"engine {name}: {call}() must return a BaseInferenceSession, got {session!r}"
            )
            clean_up(error, self._release.close)
            raise error
        self._release.callback(session.close)
        # A run that is dropped without `close` must not leave a model in memory.
        self._finalizer = weakref.finalize(self, self._release.close)
        return session

    def _load(self, engine: BaseEngine, folder: Path | None) -> BaseInferenceSession:
        if self._backend is not None:
            return engine.attach(self._handles(self._backend, folder), self._model)
        if not self._isolate or isinstance(engine, DeclaredElsewhere):
            return engine.build(self._model)
        from evalution.workers import build_supervised  # noqa: PLC0415 - most runs need no process

        return build_supervised(engine, self._model)

    def _handles(self, backend: ModelBackend, folder: Path | None) -> Mapping[str, Any]:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="evalution-")
            folder = Path(self._release.enter_context(made))
        run_dir = folder / "backend"
        run_dir.mkdir(exist_ok=True)
        self._release.callback(_remove_empty, run_dir)
        return self._release.enter_context(backend.prepare(run_dir))

    def _check(self, session: BaseInferenceSession) -> None:
        with wrap_errors("self check"):
            check = session.check()
            if not isinstance(check, CheckResult):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"check() must return a CheckResult, got {check!r}")
        self._record["self_check"] = {
            "outcome": check.outcome,
            "detail": check.detail,
            "max_difference": check.max_difference,
        }
        if check.outcome == "failed":
            raise EngineRuntimeError(
                f"the session failed its self check, so its scores would be wrong: {check.detail}"
            )


def _refuse(session: BaseInferenceSession, suite: AnySuite) -> None:
    """Raise the session's own refusal of the suite's requests, which may have a reason."""
    try:
        with wrap_errors(f"a request of suite {suite.title!r}"):
            suite.request_kind.answer(session, [suite.request_kind.example])
    except UnsupportedRequestError as error:
        why = next(iter(error.failures.values()), error)
        generates = Capability.GENERATE in session.capabilities
        scores = suite.request_kind is not RequestKind.GENERATION
        advice = suggest_generation(type(suite).__name__) if generates and scores else ""
        needed = suite.request_kind.capability
        raise UnsupportedRequestError(
            f"suite {suite.title!r} needs {needed}; {why}{advice}"
        ) from error
    except EvalutionError:
        return


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
