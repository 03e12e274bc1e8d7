"""A kit session where callers err: malformed input, a fork, a batch size left to it."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    SessionClosedError,
)
from evalution_enginekit import (
    ByteTokenizer,
    CompletionChunk,
    PromptQueue,
    RequestLoop,
    RequestPrompt,
    RequestSession,
    TokenEvent,
    TokenScore,
)
from evalution_enginekit.mock import MOCK_CAPABILITIES

Echoes = Callable[..., Any]


class Served(RequestSession):
    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        yield CompletionChunk("text", finish="length")


@pytest.fixture(params=["tokens", "requests"])
def session(request: pytest.FixtureRequest, echo: Echoes) -> Iterator[Any]:
    if request.param == "tokens":
        yield echo()
        return
    loop = RequestLoop("the Served session", 3)
    with Served(engine="Served", capabilities=MOCK_CAPABILITIES, loop=loop, encodes=False) as made:
        yield made


ASK = GenerationRequest("a", max_new_tokens=1)


@pytest.mark.parametrize("call", ["generate_continuous", "stream"])
@pytest.mark.parametrize("item", [7, None, "ab", (1, 2, 3), ASK])
def test_item_that_is_no_pair_fails_alone(session: Any, call: str, item: Any) -> None:
    results = dict(getattr(session, call)([("first", ASK), item, ("last", ASK)]))
    failure = results.pop(None)
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, InvalidRequestError)
    assert str(failure.error).startswith("item 1 of the input must be a pair of key and request")
    assert set(results) == {"first", "last"}


@pytest.mark.parametrize("wrong", [None, "a", LoglikelihoodRequest("a", "b")])
def test_item_that_holds_no_request_fails_alone(session: Any, wrong: Any) -> None:
    results = dict(session.generate_continuous([("first", ASK), ("bad", wrong)]))
    assert isinstance(results["bad"], RequestFailure)
    assert str(results["bad"].error).startswith("expected a GenerationRequest, got ")
    assert not isinstance(results["first"], RequestFailure)


@pytest.mark.parametrize("batch_size", [None, "auto", 1])
def test_batch_size_may_be_left_to_the_session(session: Any, batch_size: Any) -> None:
    assert len(session.generate([ASK, ASK], batch_size=batch_size)) == 2
    assert len(list(session.generate_continuous([(0, ASK)], batch_size=batch_size))) == 1


@pytest.mark.parametrize("batch_size", [None, "auto"])
def test_token_session_chooses_its_batch_size(echo: Echoes, batch_size: Any) -> None:
    session = echo(batch_size=batch_size)
    assert session.info.preferred_batch_size == 16
    assert len(session.generate([ASK])) == 1


def test_error_of_gc_is_an_engine_error(echo: Echoes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("device lost")

    session = echo()
    monkeypatch.setattr(session, "_release_caches", fail)
    with pytest.raises(EngineRuntimeError, match="freeing caches failed: OSError: device lost"):
        session.gc()
    assert len(session.generate([ASK])) == 1


MISTAKES: dict[str, Any] = {
    "the engine generated for key 99, no prompt's": [TokenEvent(99, [97])],
    "the engine generated for key '0', no prompt's": [TokenEvent(cast("int", "0"), [97])],
    "yield a list of TokenEvent a step, not one event": TokenEvent(0, [97]),
    "IndexError: 2 token_ids and 0 logprobs came in one event": [TokenEvent(0, [97, 98], [])],
    "IndexError: no such id; token_ids [999], a vocabulary of 260": [TokenEvent(0, [999])],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_wrong_events_fail_the_generation_and_the_message_says_what_came(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    class Strict(ByteTokenizer):
        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            if 999 in token_ids:
                raise IndexError("no such id")
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    session = echo(tokenizer=Strict())

    def mistake(feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        feed.take(1)
        yield MISTAKES[message]

    monkeypatch.setattr(session._generation, "_generate", mistake)
    with pytest.raises(EngineRuntimeError, match=re.escape(message)):
        session.generate([ASK])


def test_wrong_scores_fail_the_scoring_and_the_message_says_what_came(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, asked = echo(), [LoglikelihoodRequest("a", "b")]
    session.check()
    for made, message in (
        (iter([TokenScore([-1.0])]), "yield a list of TokenScore a step, not one score"),
        (iter([[[-1.0] * 500]]), r"must be a TokenScore or an error, got \[[-01., ]{79} \("),
    ):
        monkeypatch.setattr(session._scoring, "_score_tokens", lambda _, made=made: made)
        with pytest.raises(EngineRuntimeError, match=message):
            session.loglikelihood(asked)


CALLS: list[Callable[[Any], object]] = [
    lambda session: session.generate([ASK]),
    lambda session: list(session.generate_continuous([(0, ASK)])),
    lambda session: session.gc(),
    lambda session: session.check(),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_session_in_a_forked_child_raises_and_closes_without_hanging(session: Any) -> None:
    session.generate([ASK])
    child = os.fork()
    if child == 0:
        try:
            refusals = [_refusal(session, call) for call in CALLS]
            session.close()
            os._exit(
                0 if all("a fork of it; build a session there" in text for text in refusals) else 1
            )
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(session.generate([ASK])) == 1


def _refusal(session: Any, call: Callable[[Any], object]) -> str:
    try:
        call(session)
    except SessionClosedError as error:
        return str(error)
    return ""
