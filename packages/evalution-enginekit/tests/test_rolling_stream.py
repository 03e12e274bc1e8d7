"""Texts as a stream: each is answered once, whatever becomes of its windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    InvalidRequestError,
    RequestFailure,
    RequestStream,
    RollingLoglikelihoodRequest,
)
from evalution_core.encoding import TokenSpan
from evalution_enginekit import RequestLoop, RequestSession, TokenScore, scoring

Echoes = Callable[..., Any]
TEXTS = ["a", "a piece of several windows " * 4, "b", "the last one " * 3]


class Scoring(RequestSession):
    """Scores spans one by one; fails at a span that holds an `x`."""

    def __init__(self, **options: Any):
        from evalution_enginekit import ByteTokenizer

        super().__init__(
            engine="Scoring",
            capabilities=frozenset({Capability.ROLLING, Capability.LOGLIKELIHOOD}),
            loop=RequestLoop("scoring", 3),
            tokenizer=ByteTokenizer(),
            max_model_len=16,
            **options,
        )

    def _complete(self, prompt: Any) -> Any:
        raise NotImplementedError

    async def _score(self, span: TokenSpan) -> TokenScore:
        if ord("x") in span.token_ids:
            raise OSError("poisoned")
        ids = span.token_ids
        return TokenScore([-(1 + ids[at] % 97) / 16 for at in range(span.start, len(ids))])


def asked(*texts: str) -> list[tuple[str, RollingLoglikelihoodRequest]]:
    return [
        (f"{at}", RollingLoglikelihoodRequest(text, metadata={"row": at}))
        for at, text in enumerate(texts)
    ]


@pytest.fixture(params=["tokens", "requests"])
def session(request: pytest.FixtureRequest, echo: Echoes) -> Iterator[Any]:
    if request.param == "tokens":
        made = echo(max_model_len=16)
        plain = made.score

        def score(span: TokenSpan) -> Any:
            return EngineRuntimeError("poisoned") if ord("x") in span.token_ids else plain(span)

        made.score = score
        yield made
        return
    with Scoring() as made:
        yield made


def test_stream_gives_the_scores_of_the_list_call(session: Any) -> None:
    expected = session.loglikelihood_rolling([request for _, request in asked(*TEXTS)])
    with session.loglikelihood_rolling_continuous(asked(*TEXTS)) as stream:
        assert isinstance(stream, RequestStream)
        found = dict(stream)
    assert [found[str(at)] for at in range(len(TEXTS))] == expected


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_bad_text_is_a_value_and_its_neighbours_are_scored(session: Any, batch_size: Any) -> None:
    requests = asked("a", "", "a long text with an x in it " * 3, "b")
    results = dict(session.loglikelihood_rolling_continuous(requests, batch_size=batch_size))
    empty, poisoned = results["1"], results["2"]
    assert isinstance(empty, RequestFailure)
    assert isinstance(empty.error, InvalidRequestError)
    assert isinstance(poisoned, RequestFailure)
    assert "poisoned" in str(poisoned.error)
    assert poisoned.metadata == {"row": 2}
    assert [results[key].token_count for key in ("0", "3")] == [1, 1]


def test_cancelled_text_yields_nothing_and_the_others_are_scored(session: Any) -> None:
    stream = session.loglikelihood_rolling_continuous(asked(*TEXTS), batch_size=1)
    first, _ = next(stream)
    assert first == "0"
    stream.cancel("1")
    stream.cancel("unknown")
    keys = [key for key, _ in stream]
    assert set(keys) - {"1"} == {"2", "3"}
    assert len(keys) == len(set(keys))


def test_text_cancelled_as_its_score_comes_is_left_out(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelled(scoring._Text[str]):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if (name, value, self.key) == ("left", 0, "1"):  # where another thread's may come
                stream.cancel("1")

    monkeypatch.setattr(scoring, "_Text", Cancelled)
    stream = session.loglikelihood_rolling_continuous(asked(*TEXTS))
    assert sorted(key for key, _ in stream) == ["0", "2", "3"]


def test_closed_stream_frees_the_session(session: Any) -> None:
    stream = session.loglikelihood_rolling_continuous(asked(*TEXTS * 20), batch_size=1)
    next(stream)
    stream.close()
    assert session.requests_in_flight == 0
    assert len(session.loglikelihood_rolling([RollingLoglikelihoodRequest("a")])) == 1


def test_malformed_item_fails_alone(session: Any) -> None:
    items: list[Any] = [*asked("a"), 7, ("k", "no request"), *asked("b")]
    results = list(session.loglikelihood_rolling_continuous(items))
    failed = {key: r.error for key, r in results if isinstance(r, RequestFailure)}
    assert str(failed[None]) == "item 1 of the input must be a pair of key and request, got 7"
    assert str(failed["k"]) == "expected a RollingLoglikelihoodRequest, got 'no request'"
    assert [key for key, r in results if not isinstance(r, RequestFailure)] == ["0", "0"]


def test_dead_runtime_ends_the_stream_with_the_keys_of_texts(echo: Echoes) -> None:
    session = echo(max_model_len=16)
    stream = session.loglikelihood_rolling_continuous(asked(*TEXTS), batch_size=1)
    next(stream)

    def die(span: TokenSpan) -> Any:
        raise OSError("the device is gone")

    session.score = die
    with pytest.raises(EngineRuntimeError, match="the device is gone") as caught:
        raise_first_error(stream)
    assert caught.value.in_flight
    assert set(caught.value.in_flight) <= {"1", "2", "3"}


def raise_first_error(stream: Any) -> None:
    for _, result in stream:
        if isinstance(result, RequestFailure):
            raise result.error
