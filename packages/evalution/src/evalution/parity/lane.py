"""One side of a parity check: a session that answers the requests of all suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from evalution.environment import make_engine_record
from evalution.error_boundary import clean_up, wrap_errors
from evalution.exchange import Request
from evalution.parity.answers import Key, Record, record_of
from evalution.parity.encoding import Encoder, encoder_of
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel
from evalution.runs.session import SessionHolder
from evalution.runs.suite_run import open_stream
from evalution.suites.suite import AnySuite
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    HasMaxModelLen,
    UnsupportedRequestError,
)


class OpenLane(AbstractContextManager["OpenLane"]):
    """A lane whose model is loaded; leaving it frees the model. `record` describes the engine."""

    def __init__(self, lane: EngineAndModel, progress: Progress, *, isolate: bool):
        self._lane = lane
        self._progress = progress
        self.record: dict[str, Any] = make_engine_record(lane.engine, None)
        self._lease = SessionHolder(lane.engine, lane.model, None, self.record, isolate=isolate)

    def __enter__(self) -> Self:
        self._lease.open(self._progress)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._lease.record_execution()
            self._lease.close()
        else:
            clean_up(error, self._lease.close)

    def session(self, suite: AnySuite) -> BaseInferenceSession:
        """The session, ready for this suite; errors as `SessionHolder.prepare`."""
        return self._lease.prepare(suite)

    def can(self, capability: Capability, session: BaseInferenceSession) -> bool:
        """Whether the model as it was loaded can do something."""
        with wrap_errors("capabilities"):
            narrowed = session.capabilities
        return capability in (self._lane.engine.capabilities if narrowed is None else narrowed)

    def encoder(self, session: BaseInferenceSession) -> Encoder | None:
        """What turns requests into ids as this session would; None where it keeps that to itself.

        Raises:
            UnsupportedRequestError: the session takes no ids.
        """
        self.require_ids(session)
        with wrap_errors("tokenizer"):
            return encoder_of(session)

    def require_ids(self, session: BaseInferenceSession) -> None:
        """Raise `UnsupportedRequestError` if the session takes no ids."""
        if not self.can(Capability.TOKEN_IDS, session):
            raise no_ids(self._lane.engine)

    def max_model_len(self, session: BaseInferenceSession) -> int | None:
        with wrap_errors("max_model_len"):
            return session.max_model_len if isinstance(session, HasMaxModelLen) else None


def no_ids(engine: BaseEngine) -> UnsupportedRequestError:
    """The error for an engine that can't be asked by ids, to be raised."""
    return UnsupportedRequestError(
        f"engine {type(engine).__name__} takes no token ids, so it can't be asked the same ids as "
        "another; --text compares by text, where the two may encode differently"
    )


def collect(
    session: BaseInferenceSession,
    suite: AnySuite,
    requests: Iterable[tuple[Key, Request]],
    told: Callable[[Key, Record], None],
) -> Mapping[Key, Record]:
    """Every answer by its request, in whatever order they came.

    Raises:
        EngineRuntimeError: the runtime died, or answered what nobody had asked, or twice.
    """
    asked: set[Key] = set()
    found: dict[Key, Record] = {}

    def noted() -> Iterator[tuple[Key, Request]]:
        for key, request in requests:
            asked.add(key)
            yield key, request

    with wrap_errors(f"suite {suite.title!r}"):
        for key, answer in open_stream(session, suite, noted()):
            if key not in asked or key in found:
                raise EngineRuntimeError(
                    f"the session answered {key!r}, which was not asked or is answered already"
                )
            found[key] = record_of(answer)
            told(key, found[key])
    if lost := len(asked) - len(found):
        raise EngineRuntimeError(
            f"suite {suite.title!r}: the session left {lost} of {len(asked)} requests unanswered"
        )
    return found
