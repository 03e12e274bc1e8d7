"""Scoring through a toy engine: values, order, chunks, and what one span's failure does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    EngineRuntimeError,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
)
from evalution_enginekit import TokenScore, TokenSpan, scoring
from evalution_enginekit.runtime_thread import RuntimeThread
from evalution_enginekit.scoring import ScoringJob, ScoringLoop
from evalution_enginekit.streams import StreamLimits

Echoes = Callable[..., Any]
TEXTS = st.text("ab ", min_size=1, max_size=8)


def logprob(before: int, token_id: int) -> float:
    return -(1 + (before * 31 + token_id * 7) % 97) / 16


def chain(token_ids: list[int]) -> list[float]:
    return [logprob(a, b) for a, b in pairwise(token_ids)]


def asked(*texts: str) -> list[LoglikelihoodRequest]:
    return [LoglikelihoodRequest("q", text, metadata={"text": text}) for text in texts]


def test_outputs_are_the_scores_of_their_own_request(echo: Echoes) -> None:
    session = echo(scoring_window=3)

    @settings(deadline=None, max_examples=20)
    @given(st.lists(TEXTS, max_size=8), st.none() | st.integers(1, 4))
    def check(texts: list[str], batch_size: int | None) -> None:
        outputs = session.loglikelihood(asked(*texts), batch_size=batch_size)
        for text, output in zip(texts, outputs, strict=True):
            token_ids = [113, *text.encode()]
            assert output.token_logprobs == chain(token_ids)
            assert output.logprob == math.fsum(chain(token_ids))
            assert output.token_ids == token_ids[1:]
            assert (output.token_count, output.prompt_tokens) == (len(text), 2)
            assert (output.is_greedy, output.truncated_tokens) == (None, 0)
            assert output.metadata == {"text": text}

    check()
    assert max(map(len, session.chunks)) == 3


def test_short_call_waits_for_one_chunk_of_long_ones_and_long_ones_for_one_short_call() -> None:
    order: list[int] = []

    def score(spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        order.append(len(spans))
        yield [TokenScore([-1.0])] * len(spans)

    thread = RuntimeThread("toy")
    loop = ScoringLoop(thread, score)

    def open_stream(count: int) -> None:
        stream = loop.open(StreamLimits(running=8, ahead=8))
        for index in range(count):
            stream.submit(index, ScoringJob(TokenSpan([1, 2], 1), lambda found: found, {}))
        stream.finish_input()

    for count in (8, 7, 1, 2, 6, 3):
        open_stream(count)
    while loop.step() == 0:
        pass
    thread.close(lambda: None)
    assert order == [1, 8, 2, 7, 3, 6]


def test_spans_with_a_shared_prefix_are_scored_together(echo: Echoes) -> None:
    session = echo(scoring_window=2)
    session.loglikelihood([LoglikelihoodRequest(q, c) for c in ("1", "2") for q in ("abc", "xyz")])
    prefixes = [{bytes(span.token_ids[1:4]) for span in chunk} for chunk in session.chunks[-2:]]
    assert prefixes == [{b"abc"}, {b"xyz"}]


def test_spans_of_a_continuous_call_are_grouped_too(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_CHUNK_PATIENCE_S", 60.0)
    session = echo(scoring_window=4)
    session.check()
    texts = [q + c for c in "12" for q in ("abc", "xyz")]
    requests = [(text, LoglikelihoodRequest(text, "!")) for text in texts]
    results = dict(session.loglikelihood_continuous(requests))
    (chunk,) = session.chunks[1:]
    heads = [bytes(span.token_ids[1:4]) for span in chunk]
    assert heads == [b"abc", b"abc", b"xyz", b"xyz"]
    for text in texts:
        assert results[text].token_logprobs == [logprob(ord(text[-1]), ord("!"))]


def test_a_long_context_is_cut_from_the_left(echo: Echoes) -> None:
    session = echo(max_model_len=16)
    (output,) = session.loglikelihood([LoglikelihoodRequest("a" * 40 + "z", "bcd")])
    assert output.truncated_tokens == 45 - 17
    assert output.token_logprobs == chain([122, *b"bcd"])
    assert all(len(span.fed) <= 16 for chunk in session.chunks for span in chunk)


def test_continuous_scores_come_with_their_ids_and_failures_as_values(echo: Echoes) -> None:
    requests = [("a", *asked("x")), ("b", LoglikelihoodRequest("q", "")), ("c", *asked("yz"))]
    results = dict(echo().loglikelihood_continuous(requests, batch_size=2))
    assert isinstance(results["b"], RequestFailure)
    assert isinstance(results["b"].error, InvalidRequestError)
    assert [results[key].token_count for key in "ac"] == [1, 2]


def test_a_span_of_its_own_error_fails_alone(echo: Echoes) -> None:
    session = echo()
    session.check()
    good = session.score

    def poisoned(span: TokenSpan) -> Any:
        return EngineRuntimeError("bad span") if 33 in span.token_ids else good(span)

    session.score = poisoned
    results = dict(session.loglikelihood_continuous(zip("abc", asked("x", "!", "y"), strict=True)))
    assert isinstance(results["b"], RequestFailure)
    assert results["b"].metadata == {"text": "!"}
    assert isinstance(results["a"], LoglikelihoodOutput)
    with pytest.raises(EngineRuntimeError, match=r"^bad span$"):
        session.loglikelihood(asked("x", "!"))


def test_a_crash_names_what_was_in_flight_and_the_next_call_works(echo: Echoes) -> None:
    session = echo()
    session.check()
    good, crash = session.score, OSError("worker died")

    def broken(_: TokenSpan) -> TokenScore:
        raise crash

    session.score = broken
    failed: list[int] = []
    stream = session.loglikelihood_continuous(zip(range(8), asked(*"abcdefgh"), strict=True))
    with pytest.raises(EngineRuntimeError, match="scoring failed: OSError: worker died") as raised:
        failed.extend(key for key, result in stream if isinstance(result, RequestFailure))
    assert raised.value.__cause__ is crash
    assert len(raised.value.in_flight) >= 6
    session.score = good
    assert session.loglikelihood(asked("x"))[0].token_count == 1


def test_poisoned_span_fails_alone(echo: Echoes) -> None:
    session = echo()
    session.check()
    good = session.score

    def broken(span: TokenSpan) -> TokenScore:
        if 33 in span.token_ids:
            raise FloatingPointError("not a number")
        return good(span)

    session.score = broken
    texts = "abcdefgh!ijklmn"
    results = dict(session.loglikelihood_continuous(zip(texts, asked(*texts), strict=True)))
    failed = {key: result for key, result in results.items() if isinstance(result, RequestFailure)}
    assert list(failed) == ["!"]
    assert len(results) == len(texts)
    assert isinstance(failed["!"].error, EngineRuntimeError)
    assert failed["!"].error.in_flight == ("!",)
    assert isinstance(failed["!"].error.__cause__, FloatingPointError)


def test_scores_are_handed_on_step_by_step_and_an_abort_stops_the_rest(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = echo()
    session.check()
    steps: list[int] = []
    read = threading.Event()

    def slowly(spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        for number, span in enumerate(spans):
            if number == 1:
                assert read.wait(20)
            steps.append(number)
            yield [session.score(span)]

    monkeypatch.setattr(session._scoring, "_score_tokens", slowly)
    stream = session.loglikelihood_continuous(zip("abcd", asked(*"abcd"), strict=True))
    key, _ = next(stream)
    assert key in "abcd"
    (chunk,) = session._scoring._chunks
    closing = threading.Thread(target=stream.close)
    closing.start()
    with chunk.stream._changed:
        assert chunk.stream._changed.wait_for(lambda: chunk.stream.ended, 20)
    read.set()
    closing.join(20)
    assert steps == [0, 1], "the second one was in the making"
    assert not session._scoring._chunks


def test_a_missing_score_is_not_given_to_another_request(
    echo: Echoes, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = echo()
    session.check()
    monkeypatch.setattr(
        session._scoring, "_score_tokens", lambda spans: iter([[TokenScore([-1.0])]])
    )
    with pytest.raises(EngineRuntimeError, match="scored 1 of 2 spans"):
        session.loglikelihood(asked("x", "y"))


def test_a_score_that_lacks_tokens_is_an_error_and_not_a_smaller_sum(echo: Echoes) -> None:
    session = echo()
    session.check()
    good = session.score

    def short(span: TokenSpan) -> TokenScore:
        """A runtime whose prefix cache swallows the first log-probability of a long span."""
        logprobs = good(span).logprobs
        return TokenScore(logprobs[1:] if len(logprobs) > 3 else logprobs)

    session.score = short
    message = r"^4 tokens were to be scored and 3 log-probabilities came$"
    with pytest.raises(EngineRuntimeError, match=message):
        session.loglikelihood(asked("abcd"))
    with pytest.raises(EngineRuntimeError, match=message):
        session.loglikelihood_rolling([RollingLoglikelihoodRequest("abcd")])
    results = dict(session.loglikelihood_continuous(zip("ab", asked("abcd", "x"), strict=True)))
    assert isinstance(results["a"], RequestFailure)
    assert results["b"].token_count == 1


def test_rolling_scores_each_token_once(echo: Echoes) -> None:
    session = echo(max_model_len=9)

    @settings(deadline=None, max_examples=30)
    @given(st.lists(st.text("abc", min_size=1, max_size=40), min_size=1, max_size=3))
    def check(texts: list[str]) -> None:
        requests = [RollingLoglikelihoodRequest(text, metadata={"t": text}) for text in texts]
        for text, output in zip(texts, session.loglikelihood_rolling(requests), strict=True):
            expected = chain([256, *text.encode()])
            assert output.token_logprobs == expected
            assert output.logprob == math.fsum(expected)
            assert (output.token_count, output.metadata) == (len(text), {"t": text})
            assert output.token_ids == list(text.encode())

    check()
    assert max(len(span.fed) for chunk in session.chunks for span in chunk) == 9


def test_rolling_takes_ids_without_the_leading_one(echo: Echoes) -> None:
    (output,) = echo().loglikelihood_rolling(
        [RollingLoglikelihoodRequest("not this", input_ids=[256, 97, 98])]
    )
    assert output.token_ids == [97, 98]
    assert output.token_logprobs == chain([256, 97, 98])


def test_bad_requests_are_refused_before_any_is_scored(echo: Echoes) -> None:
    session = echo()
    with pytest.raises(InvalidRequestError) as raised:
        session.loglikelihood([*asked("x"), LoglikelihoodRequest("q", "")])
    assert list(raised.value.failures) == [1]
    with pytest.raises(InvalidRequestError, match="rolling request's text is empty"):
        session.loglikelihood_rolling([RollingLoglikelihoodRequest("")])
    assert session.chunks == []


@pytest.mark.parametrize("value", [float("nan"), 0.5, None])
def test_value_that_is_no_log_probability_fails_its_request_alone(echo: Any, value: Any) -> None:
    session = echo()
    good = session.score
    session.score = lambda span: TokenScore([value]) if 33 in span.token_ids else good(span)
    pairs = [(text, LoglikelihoodRequest(text, "a")) for text in ("x", "!", "y")]
    found = dict(session.loglikelihood_continuous(pairs))
    assert isinstance(found["!"], RequestFailure)
    assert f"the runtime returned {value!r} as a log-probability" in str(found["!"].error)
    assert "set a dtype of a wider range" in str(found["!"].error)
    assert [isinstance(found[key], LoglikelihoodOutput) for key in "xy"] == [True, True]


def test_span_that_spoils_the_scores_beside_it_fails_alone(echo: Any) -> None:
    session = echo()
    good = session.score

    def score(span: TokenSpan) -> TokenScore:
        is_spoiled = any(33 in each.token_ids for each in session.chunks[-1])
        return TokenScore([math.nan]) if is_spoiled else good(span)

    session.score = score
    pairs = [(text, LoglikelihoodRequest(text, "a")) for text in "abcdefg!"]
    found = dict(session.loglikelihood_continuous(pairs))
    assert [key for key in found if isinstance(found[key], RequestFailure)] == ["!"]
    assert "set a dtype of a wider range" in str(found["!"].error)
    assert [len(chunk) for chunk in session.chunks].count(1) <= 3, "not each is scored alone"
    texts = [RollingLoglikelihoodRequest(text) for text in ("abc", "a!c", "cab")]
    outputs = dict(session.loglikelihood_rolling_continuous(enumerate(texts)))
    assert [isinstance(outputs[at], RequestFailure) for at in range(3)] == [False, True, False]
