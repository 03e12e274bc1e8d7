"""The session of a run: built when it is first needed, or lent by the caller."""

from __future__ import annotations

import time
import weakref
from typing import Any, Self

from evalution.conditions.engine_record import record_execution, record_identity
from evalution.foreign_code import foreign_errors
from evalution.progress.reports import Progress
from evalution.runs.preflight import check_capabilities
from evalution.suites.suite import AnySuite, RequestKind
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    CheckResult,
    EngineRuntimeError,
    Model,
)


class SessionLease:
    """One session, used by suites in turn; closed at the end unless it was lent.

    A build that fails leaves the lease as it was, so it can be tried again. What the session says
    about itself goes into `record`, the engine's part of the results.
    """

    def __init__(
        self,
        engine: BaseEngine | None,
        model: Model,
        lent: BaseInferenceSession | None,
        record: dict[str, Any],
        *,
        isolate: bool,
    ):
        self._engine = engine
        self._model = model
        self._lent = lent
        self._record = record
        self._isolate = isolate
        self._session: BaseInferenceSession | None = None
        self._finalizer: weakref.finalize[..., Self] | None = None
        self._is_used = False
        self.build_seconds: float | None = None

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def open(self, progress: Progress) -> None:
        """Build the session, or take the lent one, and note what it is.

        Raises:
            ConfigurationError: the engine refuses the model.
            EngineUnavailableError: the engine's runtime is missing.
            EngineRuntimeError: the build failed in a way the engine doesn't know.
        """
        self._session = session = self._built(progress) if self._lent is None else self._lent
        record_identity(self._record, session)
        record_execution(self._record, session)

    def for_suite(self, suite: AnySuite) -> BaseInferenceSession:
        """The open session, tidied up after the last suite and checked for this one.

        Raises:
            UnsupportedRequestError: the session can do less than its engine declared, too little.
            EngineRuntimeError: its self check failed.
        """
        session = self._session
        assert session is not None
        with foreign_errors("capabilities"):
            capabilities = session.capabilities
        if capabilities is not None:
            check_capabilities([suite], capabilities, "of the model as it was loaded")
        if self._is_used:
            with foreign_errors("gc"):
                session.gc()
        self._is_used = True
        if suite.request_kind is not RequestKind.GENERATION:
            self._check(session)
        return session

    def note_execution(self) -> None:
        """Record anew what is in use: a fallback may have come since."""
        if self._session is not None:
            record_execution(self._record, self._session)

    def close(self) -> None:
        """Close the session if it was built here. Idempotent."""
        session, self._session = self._session, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if session is not None and session is not self._lent:
            with foreign_errors("close"):
                session.close()

    def _built(self, progress: Progress) -> BaseInferenceSession:
        assert self._engine is not None
        name = type(self._engine).__name__
        progress.model_loading(self._model.name, name)
        before = time.perf_counter()
        try:
            with foreign_errors(f"engine {name} could not load {self._model.name}"):
                session = self._build(self._engine)
        except BaseException:
            progress.model_failed()
            raise
        self.build_seconds = time.perf_counter() - before
        progress.model_ready(self.build_seconds)
        if not isinstance(session, BaseInferenceSession):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EngineRuntimeError(
                f"engine {name}: build() must return a BaseInferenceSession, got {session!r}"
            )
        # A run that is dropped without `close` must not leave a model in memory.
        self._finalizer = weakref.finalize(self, session.close)
        return session

    def _build(self, engine: BaseEngine) -> BaseInferenceSession:
        if not self._isolate:
            return engine.build(self._model)
        from evalution.workers import build_supervised  # noqa: PLC0415 - most runs need no process

        return build_supervised(engine, self._model)

    def _check(self, session: BaseInferenceSession) -> None:
        with foreign_errors("self check"):
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
