"""Parity check: two engines are asked the same requests, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from time import perf_counter
from typing import Any

from evalution.environment import make_engine_record
from evalution.error_boundary import clean_up, wrap_errors
from evalution.parity.agreement import Failed, Key, Record, compare_answers, make_record
from evalution.parity.result import ParityResult, SuiteParity, Tolerance
from evalution.progress import Progress
from evalution.results import describe_precisions, read_precision
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
from evalution.runs.suite_run import call_session
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
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


class RequestEncoder:
    """Encodes requests with one tokenizer, so that two engines are asked exactly the same."""

    def __init__(self, codec: TextCodec):
        self._codec = codec
        self._contexts = ContextEncoder(codec)
        self._context: list[int] = []

    def encode(self, request: Request) -> Request | None:
        """Return the request asked by ids, or None for one that each engine has to encode itself.

        That is one with messages, which need a chat template, one that has ids already, and one
        that no engine could serve.
        """
        try:
            match request:
                case GenerationRequest(rendered_prompt=text, prompt=prompt, input_ids=None):
                    if text is None and request.messages is None:
                        text = prompt
                    return None if text is None else self._encode_prompt(request, text)
                case LoglikelihoodRequest(context_input_ids=None, continuation_input_ids=None):
                    is_text = request.messages is None and request.continuation
                    return self._encode_pair(request) if is_text else None
                case RollingLoglikelihoodRequest(input_ids=None, text=str(text)) if text:
                    # Each session leaves the leading ids out of ids as it does of a text.
                    return replace(request, input_ids=self._codec.encode(text))
                case _:
                    return None
        except InvalidRequestError:
            return None

    def _encode_prompt(self, request: GenerationRequest, text: str) -> Request:
        ids = encode_with_leading(self._codec, text) or [conditioning_id(self._codec)]
        return replace(request, input_ids=ids)

    def _encode_pair(self, request: LoglikelihoodRequest) -> Request | None:
        before, after = encode_pair(
            self._codec, request.context, request.continuation, contexts=self._contexts
        )
        # The choices of a question share one list.
        if before != self._context:
            self._context = before
        if not after:
            return None
        return replace(request, context_input_ids=self._context, continuation_input_ids=after)


@contextmanager
def open_side(
    side: EngineAndModel, progress: Progress, record: dict[str, Any], *, isolate: bool
) -> Generator[SessionHolder]:
    """Load the model, and free it at the end; `record` describes the engine then."""
    record.update(make_engine_record(side.engine, None))
    holder = SessionHolder(side.engine, side.model, None, record, isolate=isolate)
    holder.open(progress)
    try:
        yield holder
        holder.record_execution()
    except BaseException as error:
        clean_up(error, holder.close)
        raise
    holder.close()


def read_info(session: BaseInferenceSession) -> SessionInfo:
    """Return the facts about a session; raises `EngineRuntimeError` if it fails to give them."""
    with wrap_errors("info"):
        return session.info


def _make_ids_error(engine: BaseEngine) -> UnsupportedRequestError:
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
        for key, answer in call_session(session, suite, note_asked()):
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
    keeps its own to itself. Only one model is loaded at a time. Held in memory: the requests with
    their ids, and the log-probability of every token.

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
    found = check_suites(tests, limit, sides.values())
    for subject in () if by_text else sides.values():
        if Capability.TOKEN_IDS not in subject.engine.capabilities:
            raise _make_ids_error(subject.engine)
    suites = [_Asked(suite, name, rows) for name, suite, rows in found]
    check = _Check(suites, limit, progress or Progress(), isolate=isolate, by_text=by_text)
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
    requests: dict[Key, Request] = field(default_factory=dict[Key, Request])
    by_ids: int = 0
    answers: dict[str, Mapping[Key, Record]] = field(
        default_factory=dict[str, Mapping[Key, Record]]
    )

    def encode_requests(
        self, limit: int | None, encoder: RequestEncoder | None
    ) -> Iterator[tuple[Key, Request]]:
        """Yield the requests by ids, and keep them; all by text without an encoder."""
        for sample in self.suite.samples(limit):
            for position, request in enumerate(sample.requests):
                encoded = None if encoder is None else encoder.encode(request)
                self.by_ids += encoded is not None
                key = (sample.index, position)
                self.requests[key] = encoded or request
                yield key, self.requests[key]

    def compare(self) -> SuiteParity:
        return compare_answers(
            self.name,
            self.suite.request_kind,
            self.answers["left"],
            self.answers["right"],
            by_ids=self.by_ids,
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
        if by_text := sum(len(asked.requests) - asked.by_ids for asked in self._suites):
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
        precisions = (read_precision(self.engines[side]) for side in ("left", "right"))
        if found := describe_precisions(*precisions):
            notes.append(found)
        return notes

    def _ask_first(self, side: str, subject: EngineAndModel, *, is_needed: bool) -> bool:
        """Ask with ids of its own tokenizer; by text without one, but only if `is_needed`."""
        with self._open(side, subject) as holder:
            codec = self._require_ids(holder, subject)
            if codec is None and not is_needed:
                return False
            encoder = None if codec is None else RequestEncoder(codec)
            for asked in self._suites:
                self._ask(side, holder, asked, asked.encode_requests(self._limit, encoder))
        return True

    def _ask_again(self, side: str, subject: EngineAndModel) -> None:
        with self._open(side, subject) as holder:
            self._require_ids(holder, subject)
            for asked in self._suites:
                self._ask(side, holder, asked, asked.requests.items())

    def _open(self, side: str, subject: EngineAndModel) -> AbstractContextManager[SessionHolder]:
        self.engines[side] = {}
        return open_side(subject, self._progress, self.engines[side], isolate=self._isolate)

    def _require_ids(self, holder: SessionHolder, subject: EngineAndModel) -> TextCodec | None:
        """Return the session's tokenizer; None if it keeps that, or all are asked by text.

        Raises:
            UnsupportedRequestError: the session takes no ids.
        """
        session = holder.prepare(self._suites[0].suite)
        if self._by_text:
            return None
        if Capability.TOKEN_IDS not in read_info(session).capabilities:
            raise _make_ids_error(subject.engine)
        with wrap_errors("tokenizer"):
            return session.tokenizer

    def _ask(
        self,
        side: str,
        holder: SessionHolder,
        asked: _Asked,
        requests: Iterable[tuple[Key, Request]],
    ) -> None:
        session = holder.prepare(asked.suite)
        info = read_info(session)
        self._windows[side] = info.max_model_len
        if Capability.LOGPROBS in info.capabilities:
            requests = _ask_for_gaps(requests)
        done, failed = count(1), 0

        def count_row(key: Key, record: Record) -> None:
            nonlocal failed
            if key[1] == 0:  # the first request of a row
                failed += isinstance(record, Failed)
                self._progress.sample_finished(next(done), failed, None)

        self._progress.suite_started(f"{side}: {asked.name}", asked.rows)
        try:
            asked.answers[side] = collect(session, asked.suite, requests, count_row)
        finally:
            self._progress.suite_finished()


def check_suites(
    tests: Sequence[SuiteDeclaration], limit: int | None, subjects: Iterable[EngineAndModel] = ()
) -> list[tuple[str, AnySuite, int]]:
    """Return each suite with its name and its number of rows.

    Raises:
        ConfigurationError: what can be known before a model is loaded: an option, a row, a model.
        UnsupportedRequestError: a suite needs what an engine of `subjects` can't do.
    """
    suites = parse_tests(tests)
    check_limit(limit)
    for subject in subjects:
        engine = check_engine(subject.engine)
        check_model(subject.model, engine)
        check_capabilities(suites, engine.capabilities, f"of engine {type(engine).__name__}")
    found: dict[str, tuple[AnySuite, int]] = {}
    for suite in suites:
        suite.validate()
        found[find_free_name(suite.title, found)] = suite, suite.check_samples(limit)
    return [(name, suite, rows) for name, (suite, rows) in found.items()]


def _ask_for_gaps(requests: Iterable[tuple[Key, Request]]) -> Iterator[tuple[Key, Request]]:
    for key, request in requests:
        if isinstance(request, GenerationRequest):
            request = replace(request, logprobs=_TOP)
        yield key, request
