"""Every call of a runtime raises, hangs or returns garbage once: no answer is wrong, none is lost.

A counting pass numbers the calls of a small workload; then each of them fails in each way. What no
session can see is left out: a runtime that leaves out, doubles or swaps good tokens.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from evalution_core import (
    Capability,
    CheckResult,
    EvalutionError,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    TextDelta,
)
from evalution_enginekit import (
    ByteTokenizer,
    CompletionChunk,
    PromptQueue,
    RequestLoop,
    RequestPrompt,
    RequestSession,
    TokenEvent,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
    run_continuous_batching,
)
from evalution_enginekit.runtime import ServingOptions
from evalution_enginekit.serving import RequestUpdate, ServingRequest, SpanGroup
from evalution_enginekit.serving_session import ServedModel, ServingSession

pytestmark = pytest.mark.faults
WAIT_S = 20.0
_CAPABILITIES = frozenset(Capability) - {
    Capability.ATTACH,
    Capability.BEAMS,
    Capability.DISTRIBUTIONS,
    Capability.MULTIMODAL,
}


class Faults:
    """Numbers the calls that pass, and breaks the call `at` in the way `kind`."""

    def __init__(self) -> None:
        self.kind: str | None = None
        self.at, self.count = -1, 0
        self.hung, self.released = threading.Event(), threading.Event()
        self.has_fired = False

    def arm(self, kind: str | None, at: int = -1) -> None:
        self.kind, self.at, self.count, self.has_fired = kind, at, 0, False
        self.hung.clear()
        self.released.clear()

    def pass_through(self, found: Any) -> Any:
        """What the runtime's call returns: `found`, unless it is this call's turn to fail."""
        number, self.count = self.count, self.count + 1
        if number != self.at or self.kind is None:
            return found
        if self.kind == "raise":
            self.has_fired = True
            raise ArithmeticError("planned")
        if self.kind == "hang":
            self.has_fired = True
            self.hung.set()
            assert self.released.wait(WAIT_S)
            return found
        broken = GARBAGE[self.kind](found)
        self.has_fired = broken is not _WHOLE
        return found if broken is _WHOLE else broken


_WHOLE = object()
"""Returned by a kind of garbage that doesn't apply to a value."""
_NAMES = ("key", "request_id")


def _damage(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change the last of a list, or a value by itself."""

    def damage(found: Any) -> Any:
        if not isinstance(found, list):
            return change(found)
        if not found:
            return _WHOLE
        last = change(found[-1])
        return _WHOLE if last is _WHOLE else [*found[:-1], last]

    return damage


def _set_logprobs(read: Callable[[list[float]], Any]) -> Callable[[Any], Any]:
    def change(item: Any) -> Any:
        if isinstance(item, RequestUpdate) and item.scores:
            return replace(item, scores=[change(score) for score in item.scores])
        values = getattr(item, "logprobs", None)
        return replace(item, logprobs=read(list(values))) if values else _WHOLE

    return change


def _rename(item: Any) -> Any:
    for name in _NAMES:
        if hasattr(item, name):
            return replace(item, **{name: -7 if name == "key" else "no such request"})
    return _WHOLE


def _spoil_ids(item: Any) -> Any:
    return replace(item, token_ids=[None]) if getattr(item, "token_ids", None) else _WHOLE


def _change_scores(change: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def damage(found: Any) -> Any:
        if isinstance(found, list) and found and isinstance(found[0], TokenScore):
            return change(found)
        return _damage(change_update)(found)

    def change_update(item: Any) -> Any:
        scores = getattr(item, "scores", None)
        return replace(item, scores=change(scores)) if scores else _WHOLE

    return damage


GARBAGE: dict[str, Callable[[Any], Any]] = {
    "too few scores": _change_scores(lambda scores: scores[:-1]),
    "too many scores": _change_scores(lambda scores: [*scores, scores[-1]]),
    "too few values": _damage(_set_logprobs(lambda values: values[:-1])),
    "too many values": _damage(_set_logprobs(lambda values: [*values, -1.0])),
    "NaN": _damage(_set_logprobs(lambda values: [*values[:-1], math.nan])),
    "infinity": _damage(_set_logprobs(lambda values: [*values[:-1], math.inf])),
    "None for a value": _damage(_set_logprobs(lambda values: [*values[:-1], None])),
    "None for an id": _damage(_spoil_ids),
    "None for an item": _damage(lambda item: None),
    "unknown request": _damage(_rename),
}


_OF_MANY = {"too few scores", "too many scores", "unknown request"}
"""Garbage that a runtime which is asked for one request at a time can't return."""


def _next_token(prompt: TokenPrompt | RequestPrompt, count: int) -> int:
    return 97 + (sum(prompt.token_ids or ()) * 7 + count * 5) % 26


def _score(span: TokenSpan) -> TokenScore:
    ids = span.token_ids
    return TokenScore([-(sum(ids[:at]) % 31 + ids[at]) / 64 for at in range(span.start, len(ids))])


class _Sequence:
    def __init__(self, prompt: TokenPrompt):
        self.prompt, self.count = prompt, 0

    @property
    def is_done(self) -> bool:
        return self.count >= self.prompt.max_new_tokens

    def step(self) -> TokenEvent:
        self.count += 1
        token_id = _next_token(self.prompt, self.count)
        wanted = self.prompt.logprobs is not None
        return TokenEvent(self.prompt.key, [token_id], [-token_id / 64] if wanted else None)


class Tokens(TokenSession):
    """A runtime that is driven token by token."""

    def __init__(self, faults: Faults):
        self.faults = faults
        super().__init__(
            engine="Tokens",
            capabilities=_CAPABILITIES,
            tokenizer=ByteTokenizer(),
            max_model_len=24,
            batch_size=2,
            scoring_window=2,
        )

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        def step(sequences: list[_Sequence]) -> list[TokenEvent]:
            return self.faults.pass_through([sequence.step() for sequence in sequences])

        return run_continuous_batching(feed, 2, _Sequence, step)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[Any]:
        yield self.faults.pass_through([_score(span) for span in spans])

    def _release_caches(self) -> None:
        self.faults.pass_through(None)

    def _release(self) -> None:
        self.faults.pass_through(None)

    def _self_check(self) -> CheckResult:
        return CheckResult("passed", "")


class _Steps:
    """A serving runtime, each call of which passes `faults`."""

    def __init__(self, faults: Faults):
        self.faults = faults
        self.running: dict[str, ServingRequest] = {}
        self.counts: dict[str, int] = {}

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self.faults.pass_through(None)
        self.running[request_id] = prompt

    def score(self, request_id: str, group: SpanGroup) -> None:
        self.faults.pass_through(None)
        self.running[request_id] = group

    def advance(self) -> list[RequestUpdate]:
        updates: list[RequestUpdate] = []
        for name, work in list(self.running.items()):
            if isinstance(work, SpanGroup):
                updates.append(RequestUpdate(name, True, scores=[_score(s) for s in work.spans]))
            else:
                at = self.counts[name] = self.counts.get(name, 0) + 1
                is_over = at == work.max_new_tokens
                token_id = _next_token(work, at)
                values = [-token_id / 64] if work.logprobs is not None else None
                updates.append(RequestUpdate(name, is_over, [token_id], values))
            if updates[-1].is_finished:
                del self.running[name]
        return self.faults.pass_through(updates)

    def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self.running.pop(name, None)

    def wake(self) -> None: ...

    def flush(self) -> None:
        self.faults.pass_through(None)


class Serving(ServingSession):
    """A runtime that schedules by itself."""

    def __init__(self, faults: Faults):
        runtime = _Steps(faults)
        super().__init__(
            engine="Serving",
            capabilities=_CAPABILITIES,
            served=ServedModel(runtime, ByteTokenizer(), 24, None),
            requests=runtime,
            options=ServingOptions(batch_size=2),
            slots=2,
            listed_tokens=1,
            dtype="float32",
            execution={},
            resources=ExitStack(),
        )

    def _self_check(self) -> CheckResult:
        return CheckResult("passed", "")


class Requests(RequestSession):
    """A runtime that is asked for whole requests."""

    def __init__(self, faults: Faults):
        self.faults = faults
        super().__init__(
            engine="Requests",
            capabilities=_CAPABILITIES,
            loop=RequestLoop("the Requests session", 2),
            tokenizer=ByteTokenizer(),
            max_model_len=24,
        )

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        length = prompt.request.max_new_tokens
        for count in range(1, length + 1):
            token_id = _next_token(prompt, count)
            values = [-token_id / 64] if prompt.request.logprobs is not None else None
            finish = "length" if count == length else None
            yield self.faults.pass_through(
                CompletionChunk(token_ids=[token_id], logprobs=values, finish=finish)
            )

    async def _score(self, span: TokenSpan) -> TokenScore:
        return self.faults.pass_through(_score(span))

    async def _release_caches(self) -> None:
        self.faults.pass_through(None)

    async def _release(self) -> None:
        self.faults.pass_through(None)

    def _self_check(self) -> CheckResult:
        return CheckResult("passed", "")


FORMS: dict[str, Callable[[Faults], Any]] = {
    "tokens": Tokens,
    "serving": Serving,
    "requests": Requests,
}


def _read(answer: Any) -> Any:
    if isinstance(answer, EvalutionError):
        return answer
    if hasattr(answer, "error"):
        return answer.error
    names = ("text", "token_ids", "token_logprobs", "logprob", "token_count")
    return [getattr(answer, name, None) for name in names]


def _try(call: Callable[[], Sequence[Any]], count: int) -> list[Any]:
    """The answers of a list call, its error for each if it fails."""
    try:
        answers = [_read(answer) for answer in call()]
    except EvalutionError as error:
        return [error] * count
    assert len(answers) == count
    return answers


def _drain(stream: Iterator[tuple[int, Any]], count: int) -> list[Any]:
    """The answers of a stream by key; of what it ended without, its error."""
    answers: dict[int, Any] = {}
    texts = dict.fromkeys(range(count), "")
    missing: Any = AssertionError("no answer")
    try:
        for key, event in stream:
            assert key in texts, f"an answer to {key}, which nobody asked"
            assert key not in answers, f"two answers to {key}"
            if isinstance(event, TextDelta):
                texts[key] += event.text
                continue
            answers[key] = _read(event)
            if texts[key] and isinstance(answers[key], list):
                assert texts[key] == answers[key][0]
    except EvalutionError as error:
        missing = error
    return [answers.get(key, missing) for key in range(count)]


def run_workload(session: Any) -> list[Any]:
    """Every answer of one call of each kind, or its error, in the order of the requests."""
    prompts = [GenerationRequest(t, max_new_tokens=2, logprobs=0) for t in "abc"]
    pairs = [LoglikelihoodRequest(context, "xy") for context in "abc"]
    texts = [RollingLoglikelihoodRequest(text) for text in ("ab" * 20, "c")]
    return [
        *_try(lambda: session.generate(prompts), 3),
        *_drain(session.generate_continuous(enumerate(prompts)), 3),
        *_drain(session.stream(enumerate(prompts)), 3),
        *_try(lambda: session.loglikelihood(pairs), 3),
        *_drain(session.loglikelihood_continuous(enumerate(pairs)), 3),
        *_try(lambda: session.loglikelihood_rolling(texts), 2),
        *_drain(session.loglikelihood_rolling_continuous(enumerate(texts)), 2),
        *_try(lambda: [session.gc()], 1),
    ]


@pytest.mark.parametrize("kind", ["raise", "hang", *GARBAGE])
@pytest.mark.parametrize("form", FORMS)
def test_call_that_fails_once_costs_no_answer_of_another(form: str, kind: str) -> None:
    faults = Faults()
    with FORMS[form](faults) as session, ThreadPoolExecutor(1) as aside:
        right = run_workload(session)
        assert not any(isinstance(answer, BaseException) for answer in right)
        calls, fired = faults.count, 0
        for at in range(calls):
            faults.arm(kind, at)
            running = aside.submit(run_workload, session)
            if kind == "hang":
                assert faults.hung.wait(WAIT_S)
                assert not running.done()
                faults.released.set()
            found = running.result(WAIT_S)
            fired += faults.has_fired
            for answer, wanted in zip(found, right, strict=True):
                assert isinstance(answer, EvalutionError) or answer == wanted, f"call {at}"
                assert not isinstance(answer, EvalutionError) or len(str(answer)) > 20
            if kind == "hang":
                assert found == right
            assert session.requests_in_flight == 0
            faults.arm(None)
            assert run_workload(session) == right, f"after call {at}"
    is_possible = form != "requests" or kind not in _OF_MANY
    assert fired == calls if kind in ("raise", "hang") else bool(fired) == is_possible


@pytest.mark.parametrize("form", ["tokens", "requests"])
def test_release_that_raises_is_raised_and_the_session_stays_closed(form: str) -> None:
    faults = Faults()
    session = FORMS[form](faults)
    faults.arm("raise", at=0)
    with pytest.raises(ArithmeticError, match="planned"):
        session.close()
    with pytest.raises(SessionClosedError, match="is closed; build a new session"):
        session.generate([GenerationRequest("a", max_new_tokens=1)])
    session.close()
    assert faults.count == 1
