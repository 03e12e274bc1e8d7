"""Parity check: two engines are asked the same requests, one after the other."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from evalution.environment import make_engine_record
from evalution.error_boundary import clean_up, wrap_errors
from evalution.parity.agreement import Failed, Key, Record, agreement, make_record
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
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    SessionInfo,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.encoding import (
    ContextEncoder,
    conditioning_id,
    encode_pair,
    encode_with_leading,
)
from evalution_core.requests import Request


@dataclass(frozen=True, slots=True)
class RequestIds:
    """A request's ids: a prompt, a text, or a continuation after its context."""

    token_ids: array[int]
    context_ids: array[int] | None = None


class RequestEncoder:
    """Encodes requests with one tokenizer, so that two engines are asked exactly the same."""

    def __init__(self, codec: TextCodec):
        self._codec = codec
        self._contexts = ContextEncoder(codec)
        self._context: array[int] = array("q")

    def encode(self, request: Request) -> RequestIds | None:
        """Return the ids, or None for a request that each engine has to encode itself.

        That is one with messages, which need a chat template, one that has ids already, and one
        that no engine could serve.
        """
        try:
            match request:
                case GenerationRequest(rendered_prompt=text, prompt=prompt, input_ids=None):
                    if text is None and request.messages is None:
                        text = prompt
                    return None if text is None else self._encode_prompt(text)
                case LoglikelihoodRequest(context_input_ids=None, continuation_input_ids=None):
                    is_text = request.messages is None and request.continuation
                    return self._encode_pair(request) if is_text else None
                case RollingLoglikelihoodRequest(input_ids=None, text=str(text)) if text:
                    # Each session leaves the leading ids out of ids as it does of a text.
                    return RequestIds(array("q", self._codec.encode(text)))
                case _:
                    return None
        except InvalidRequestError:
            return None

    def _encode_prompt(self, text: str) -> RequestIds:
        ids = encode_with_leading(self._codec, text) or [conditioning_id(self._codec)]
        return RequestIds(array("q", ids))

    def _encode_pair(self, request: LoglikelihoodRequest) -> RequestIds | None:
        before, after = encode_pair(
            self._codec, request.context, request.continuation, contexts=self._contexts
        )
        # The choices of a question share one array.
        if (context := array("q", before)) != self._context:
            self._context = context
        return RequestIds(array("q", after), self._context) if after else None


def with_ids(request: Request, ids: RequestIds | None) -> Request:
    """Return `request` asked by ids; by text where there are none."""
    if ids is None:
        return request
    token_ids = ids.token_ids.tolist()
    if not isinstance(request, LoglikelihoodRequest):
        return replace(request, input_ids=token_ids)
    context_ids = [] if ids.context_ids is None else ids.context_ids.tolist()
    return replace(request, context_input_ids=context_ids, continuation_input_ids=token_ids)


class ParitySide(AbstractContextManager["ParitySide"]):
    """A lane whose model is loaded; leaving it frees the model. `record` describes the engine."""

    def __init__(self, lane: EngineAndModel, progress: Progress, *, isolate: bool):
        self._lane = lane
        self._progress = progress
        self.record: dict[str, Any] = make_engine_record(lane.engine, None)
        self._holder = SessionHolder(lane.engine, lane.model, None, self.record, isolate=isolate)

    def __enter__(self) -> Self:
        self._holder.open(self._progress)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._holder.record_execution()
            self._holder.close()
        else:
            clean_up(error, self._holder.close)

    def session(self, suite: AnySuite) -> BaseInferenceSession:
        """The session, ready for this suite; errors as `SessionHolder.prepare`."""
        return self._holder.prepare(suite)

    def make_encoder(self, session: BaseInferenceSession) -> RequestEncoder | None:
        """Return an encoder with the session's tokenizer; None if it doesn't give it away.

        Raises:
            UnsupportedRequestError: the session takes no ids.
        """
        self.require_ids(session)
        with wrap_errors("tokenizer"):
            codec = session.tokenizer
        return None if codec is None else RequestEncoder(codec)

    def require_ids(self, session: BaseInferenceSession) -> None:
        """Raise `UnsupportedRequestError` if the session takes no ids."""
        if Capability.TOKEN_IDS not in read_info(session).capabilities:
            raise no_ids(self._lane.engine)


def read_info(session: BaseInferenceSession) -> SessionInfo:
    """Return the facts about a session; raises `EngineRuntimeError` if it fails to give them."""
    with wrap_errors("info"):
        return session.info


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
    note: Callable[[Key, Record], None],
) -> Mapping[Key, Record]:
    """Every answer by its request, in whatever order they came.

    Raises:
        EngineRuntimeError: the runtime died, or answered what nobody had asked, or twice.
    """
    asked: set[Key] = set()
    found: dict[Key, Record] = {}

    def note_asked() -> Iterator[tuple[Key, Request]]:
        for key, request in requests:
            asked.add(key)
            yield key, request

    with wrap_errors(f"suite {suite.title!r}"):
        for key, answer in open_stream(session, suite, note_asked()):
            if key not in asked or key in found:
                raise EngineRuntimeError(
                    f"the session answered {key!r}, which was not asked or is answered already"
                )
            found[key] = make_record(answer)
            note(key, found[key])
    if lost := len(asked) - len(found):
        raise EngineRuntimeError(
            f"suite {suite.title!r}: the session left {lost} of {len(asked)} requests unanswered"
        )
    return found


_TOP = 2
"""The two most likely tokens of each generated step: their gap distinguishes a tie from a fault."""


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
        progress: receives the progress; None is silent.

    Raises:
        ConfigurationError: an option, a row or a model is wrong; nothing was run.
        UnsupportedRequestError: an engine can't do what a suite asks for, or takes no ids.
        EvalutionError: an engine failed.
    """
    sides = {"left": left, "right": right}
    suites = _check_suites(sides, tests, limit, by_text=by_text)
    check = _Check(suites, limit, progress or Silence(), isolate=isolate, by_text=by_text)
    started, before = datetime.now(UTC).isoformat(timespec="seconds"), perf_counter()
    check.run(sides)
    return ParityResult(
        left={"model": left.model.to_dict(), "engine": check.engines["left"]},
        right={"model": right.model.to_dict(), "engine": check.engines["right"]},
        tolerance=tolerance or Tolerance(),
        limit=limit,
        notes=check.notes(),
        suites=[asked.compare() for asked in suites],
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

    def encode_requests(
        self, limit: int | None, encoder: RequestEncoder | None
    ) -> Iterator[tuple[Key, Request]]:
        """The requests by ids, which are noted; all by text without an encoder."""
        for sample in self.suite.samples(limit):
            for position, request in enumerate(sample.requests):
                key = (sample.index, position)
                self.ids[key] = None if encoder is None else encoder.encode(request)
                yield key, with_ids(request, self.ids[key])

    def repeat_requests(self, limit: int | None) -> Iterator[tuple[Key, Request]]:
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

    def compare(self) -> SuiteParity:
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
        """Return caveats about the result."""
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
            encoder = None if self._by_text else opened.make_encoder(first)
            if encoder is None and not is_needed:
                return False
            for asked in self._suites:
                self._ask(side, opened, asked, asked.encode_requests(self._limit, encoder))
        return True

    def _ask_again(self, side: str, lane: EngineAndModel) -> None:
        with self._open(side, lane) as opened:
            first = opened.session(self._suites[0].suite)
            if not self._by_text:
                opened.require_ids(first)
            for asked in self._suites:
                self._ask(side, opened, asked, asked.repeat_requests(self._limit))

    def _open(self, side: str, lane: EngineAndModel) -> ParitySide:
        opened = ParitySide(lane, self._progress, isolate=self._isolate)
        self.engines[side] = opened.record
        return opened

    def _ask(
        self, side: str, opened: ParitySide, asked: _Asked, requests: Iterator[tuple[Key, Request]]
    ) -> None:
        session = opened.session(asked.suite)
        info = read_info(session)
        self._windows[side] = info.max_model_len
        has_gaps = Capability.LOGPROBS in info.capabilities
        counter = _Counter(self._progress)
        self._progress.suite_started(f"{side}: {asked.name}", asked.rows)
        try:
            asked.answers[side] = collect(
                session,
                asked.suite,
                _with_gaps(requests) if has_gaps else requests,
                counter.count_answer,
            )
        finally:
            self._progress.suite_finished()


class _Counter:
    """Counts finished rows for the progress; each has exactly one first request."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._done = 0
        self._failed = 0

    def count_answer(self, key: Key, record: Record) -> None:
        if key[1] == 0:
            self._done += 1
            self._failed += isinstance(record, Failed)
            self._progress.sample_finished(self._done, self._failed, None)


def _check_suites(
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
