"""A request whose preparation fails in a way that nobody foresaw: it fails alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_enginekit.completion import CompletionChunk, RequestPrompt
from evalution_enginekit.mock import ByteTokenizer, MockSession
from evalution_enginekit.request_loop import RequestLoop
from evalution_enginekit.request_session import RequestSession

REQUESTS = [
    (text, GenerationRequest(text, max_new_tokens=2, metadata={"of": text}))
    for text in ("one", "poison", "two")
]


class Fragile(ByteTokenizer):
    def encode(self, text: str) -> list[int]:
        if "poison" in text:
            raise RecursionError("too deep")
        return super().encode(text)


class FragileSession(MockSession):
    def __init__(self) -> None:
        super().__init__("a", 64, 2)
        self._encoder._tokenizer = Fragile()


class HostedFragileSession(RequestSession):
    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        yield CompletionChunk(token_ids=[97], finish="stop")

    def identity(self) -> dict[str, object]:
        return {}


@pytest.fixture(params=["tokens", "requests"])
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    capabilities = frozenset(
        {Capability.GENERATE, Capability.STREAM, Capability.CONTINUOUS_BATCHING}
    )
    built: Any = (
        FragileSession()
        if request.param == "tokens"
        else HostedFragileSession(
            engine="Hosted",
            capabilities=capabilities,
            loop=RequestLoop("Hosted", depth=2),
            tokenizer=Fragile(),
            max_model_len=64,
        )
    )
    with built:
        yield built


@pytest.mark.parametrize("form", ["generate_continuous", "stream"])
def test_the_other_requests_of_the_stream_are_answered(session: Any, form: str) -> None:
    found = {
        key: event
        for key, event in getattr(session, form)(REQUESTS)
        if hasattr(event, "finish_reason") or isinstance(event, RequestFailure)
    }
    failure = found.pop("poison")
    assert isinstance(failure.error, EngineRuntimeError)
    assert "preparing a request failed: RecursionError: too deep" in str(failure.error)
    assert failure.metadata == {"of": "poison"}
    assert {key: output.metadata for key, output in found.items()} == {
        "one": {"of": "one"},
        "two": {"of": "two"},
    }


def test_the_other_pairs_are_scored() -> None:
    pairs = [(text, LoglikelihoodRequest(text, " a")) for text in ("one", "poison", "two")]
    with FragileSession() as session:
        found = dict(session.loglikelihood_continuous(pairs))
    assert isinstance(found["poison"], RequestFailure)
    assert not isinstance(found["one"], RequestFailure)
    assert not isinstance(found["two"], RequestFailure)
