"""One side of a parity check: a session that answers the requests of all suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from evalution.environment import make_engine_record
from evalution.error_boundary import clean_up, wrap_errors
from evalution.exchange import Request
from evalution.parity.agreement import Failed, Key, Record, agreement, make_record
from evalution.parity.encoding import Encoder, RequestIds, encoder_of, with_ids
from evalution.parity.result import ParityResult, SuiteParity, Tolerance
from evalution.progress import Progress, Silence
from evalution.runs.preflight import (
    EngineAndModel,
    check_capabilities,
    check_engine,
    check_limit,
    check_model,
    parse_tests,
)
from evalution.runs.run_identity import find_free_name
from evalution.runs.session import SessionHolder
from evalution.runs.suite_run import open_stream
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    GenerationRequest,
    HasMaxModelLen,
    UnsupportedRequestError,
)


class ParitySide(AbstractContextManager["ParitySide"]):
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
            found[key] = make_record(answer)
            told(key, found[key])
    if lost := len(asked) - len(found):
        raise EngineRuntimeError(
            f"suite {suite.title!r}: the session left {lost} of {len(asked)} requests unanswered"
        )
    return found


_TOP = 2
"""The two most likely tokens of each generated step: their gap tells a tie from a fault."""


def check_parity(
    left: EngineAndModel,
    right: EngineAndModel,
    tests: Sequence[SuiteDeclaration],
    *,
    tolerance: Tolerance | None = None,
    limit: int | None = None,
    by_text: bool = False,
    isolate: bool = False,
    progress: Progress | None = None,
) -> ParityResult:
    """Ask both engines the requests of all suites, by the same token ids.

    The ids are made once, by the tokenizer of the left session, or the right one's where the left
    keeps its own to itself. Only one model is loaded at a time. Held in memory: the ids, and the
    log-probability of every token.

    Args:
        left: the engine that is held to be right.
        right: the engine that is checked.
        tests: the suites whose requests are put; their scores don't matter.
        tolerance: what still counts as the same.
        limit: at most that many rows of each suite.
        by_text: ask by text, for an engine that takes no ids; the two may encode it differently.
        isolate: run each engine in a process of its own.
        progress: told how it goes on; None is silent.

    Raises:
        ConfigurationError: an option, a row or a model is wrong; nothing was run.
        UnsupportedRequestError: an engine can't do what a suite asks for, or takes no ids.
        EvalutionError: an engine failed.
    """
    sides = {"left": left, "right": right}
    suites = _checked(sides, tests, limit, by_text=by_text)
    check = _Check(suites, limit, progress or Silence(), isolate=isolate, by_text=by_text)
    started, before = datetime.now(UTC).isoformat(timespec="seconds"), perf_counter()
    check.run(sides)
    return ParityResult(
        left={"model": left.model.to_dict(), "engine": check.engines["left"]},
        right={"model": right.model.to_dict(), "engine": check.engines["right"]},
        tolerance=tolerance or Tolerance(),
        limit=limit,
        notes=check.notes(),
        suites=[asked.compared() for asked in suites],
        timings={"started": started, "total_s": round(perf_counter() - before, 3)},
    )


@dataclass(slots=True)
class _Asked:
    """A suite under its name in this check, what was asked, and what each side answered."""

    suite: AnySuite
    name: str
    rows: int
    ids: dict[Key, RequestIds | None] = field(default_factory=dict[Key, RequestIds | None])
    answers: dict[str, Mapping[Key, Record]] = field(
        default_factory=dict[str, Mapping[Key, Record]]
    )

    def encoded(self, limit: int | None, encoder: Encoder | None) -> Iterator[tuple[Key, Request]]:
        """The requests by ids, which are noted; all by text without an encoder."""
        for sample in self.suite.samples(limit):
            for position, request in enumerate(sample.requests):
                key = (sample.index, position)
                self.ids[key] = None if encoder is None else encoder.encode(request)
                yield key, with_ids(request, self.ids[key])

    def repeated(self, limit: int | None) -> Iterator[tuple[Key, Request]]:
        """The same requests with the same ids."""
        for sample in self.suite.samples(limit):
            for position, request in enumerate(sample.requests):
                key = (sample.index, position)
                if key not in self.ids:
                    raise ConfigurationError(
                        f"suite {self.name!r}: row {sample.index} wasn't there before; the data "
                        "changed during the check"
                    )
                yield key, with_ids(request, self.ids[key])

    def compared(self) -> SuiteParity:
        return agreement(
            self.name,
            self.suite.request_kind,
            self.answers["left"],
            self.answers["right"],
            by_ids=sum(ids is not None for ids in self.ids.values()),
        )


class _Check:
    def __init__(
        self,
        suites: Sequence[_Asked],
        limit: int | None,
        progress: Progress,
        *,
        isolate: bool,
        by_text: bool,
    ):
        self._suites = suites
        self._limit = limit
        self._progress = progress
        self._isolate = isolate
        self._by_text = by_text
        self._windows: dict[str, int | None] = {}
        self.engines: dict[str, dict[str, Any]] = {}

    def run(self, sides: Mapping[str, EngineAndModel]) -> None:
        """Ask the left first, unless the right alone lets callers have its tokenizer."""
        if self._ask_first("left", sides["left"], is_needed=self._by_text):
            self._ask_again("right", sides["right"])
        else:
            self._ask_first("right", sides["right"], is_needed=True)
            self._ask_again("left", sides["left"])

    def notes(self) -> list[str]:
        """What a reader of the result has to know."""
        notes: list[str] = []
        by_text = sum(ids is None for asked in self._suites for ids in asked.ids.values())
        if by_text:
            notes.append(
                f"requests asked by text, which each engine encodes itself: {by_text}; where the "
                "ids differ, so do the numbers"
            )
        left, right = self._windows["left"], self._windows["right"]
        if left != right:
            notes.append(
                f"max_model_len is {left} on the left and {right} on the right: long texts are cut "
                "at different places; set the same on both"
            )
        return notes

    def _ask_first(self, side: str, lane: EngineAndModel, *, is_needed: bool) -> bool:
        """Ask with ids of this lane's tokenizer; by text without one, but only if `is_needed`."""
        with self._open(side, lane) as opened:
            first = opened.session(self._suites[0].suite)
            encoder = None if self._by_text else opened.encoder(first)
            if encoder is None and not is_needed:
                return False
            for asked in self._suites:
                self._ask(side, opened, asked, asked.encoded(self._limit, encoder))
        return True

    def _ask_again(self, side: str, lane: EngineAndModel) -> None:
        with self._open(side, lane) as opened:
            first = opened.session(self._suites[0].suite)
            if not self._by_text:
                opened.require_ids(first)
            for asked in self._suites:
                self._ask(side, opened, asked, asked.repeated(self._limit))

    def _open(self, side: str, lane: EngineAndModel) -> ParitySide:
        opened = ParitySide(lane, self._progress, isolate=self._isolate)
        self.engines[side] = opened.record
        return opened

    def _ask(
        self, side: str, opened: ParitySide, asked: _Asked, requests: Iterator[tuple[Key, Request]]
    ) -> None:
        session = opened.session(asked.suite)
        self._windows[side] = opened.max_model_len(session)
        tells_gaps = opened.can(Capability.LOGPROBS, session)
        counter = _Counter(self._progress)
        self._progress.suite_started(f"{side}: {asked.name}", asked.rows)
        try:
            asked.answers[side] = collect(
                session,
                asked.suite,
                _with_gaps(requests) if tells_gaps else requests,
                counter.answered,
            )
        finally:
            self._progress.suite_finished()


class _Counter:
    """Tells the progress of rows; each has exactly one first request."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._done = 0
        self._failed = 0

    def answered(self, key: Key, record: Record) -> None:
        if key[1] == 0:
            self._done += 1
            self._failed += isinstance(record, Failed)
            self._progress.sample_finished(self._done, self._failed, None)


def _checked(
    sides: Mapping[str, EngineAndModel],
    tests: Sequence[SuiteDeclaration],
    limit: int | None,
    *,
    by_text: bool,
) -> list[_Asked]:
    """The suites with the names they get; raises what can be known before a model is loaded."""
    suites = parse_tests(tests)
    check_limit(limit)
    for lane in sides.values():
        engine = check_engine(lane.engine)
        check_model(lane.model, engine)
        check_capabilities(suites, engine.capabilities, f"of engine {type(engine).__name__}")
        if not by_text and Capability.TOKEN_IDS not in engine.capabilities:
            raise no_ids(engine)
    found: dict[str, _Asked] = {}
    for suite in suites:
        suite.validate()
        name = find_free_name(suite.title, found)
        found[name] = _Asked(suite, name, suite.check_samples(limit))
    return list(found.values())


def _with_gaps(requests: Iterator[tuple[Key, Request]]) -> Iterator[tuple[Key, Request]]:
    for key, request in requests:
        if isinstance(request, GenerationRequest):
            request = replace(request, logprobs=_TOP)
        yield key, request
