"""What a session gets from its base class, on a session that counts letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import (
    BaseInferenceSession,
    Capability,
    CheckResult,
    ContextLengthError,
    EngineRuntimeError,
    EvalutionError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    SessionInfo,
    UnsupportedRequestError,
)
from evalution_core.capabilities import GUIDE_CAPABILITIES
from evalution_core.errors import raise_failures


@dataclass(slots=True)
class Letters(BaseInferenceSession):
    """Scores a continuation by its length; refuses an empty one, `poison` and `image` by value."""

    calls: list[tuple[int, int | None]] = field(default_factory=list[tuple[int, int | None]])
    closed: int = 0

    def generate(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        self.calls.append((len(requests), batch_size))
        failures = {
            index: failure
            for index, request in enumerate(requests)
            if (failure := refusal(request)) is not None
        }
        if failures:
            raise_failures(failures, len(requests))
        if any(request.continuation == "boom" for request in requests):
            raise EngineRuntimeError("the runtime died", in_flight=[0])
        return [
            LoglikelihoodOutput(
                -float(len(request.continuation)), None, len(request.continuation), request.metadata
            )
            for request in requests
        ]

    def loglikelihood_rolling(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def gc(self) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


def refusal(request: LoglikelihoodRequest) -> EvalutionError | None:
    refused: dict[str, EvalutionError] = {
        "": InvalidRequestError("the continuation is empty"),
        "poison": ContextLengthError("too long"),
        "image": UnsupportedRequestError("no images"),
    }
    return refused.get(request.continuation)


def asked(*texts: str) -> Iterator[tuple[str, LoglikelihoodRequest]]:
    for index, text in enumerate(texts):
        yield f"{index}:{text}", LoglikelihoodRequest("c", text, metadata={"row": index})


def test_a_stream_is_scored_in_windows_of_the_batch_size() -> None:
    session = Letters()
    scored = list(session.loglikelihood_continuous(asked(*["ab"] * 7), batch_size=3))
    assert [key for key, _ in scored] == [f"{index}:ab" for index in range(7)]
    assert session.calls == [(3, 3), (3, 3), (1, 3)]


def test_without_a_batch_size_a_window_holds_64() -> None:
    session = Letters()
    assert len(list(session.loglikelihood_continuous(asked(*["a"] * 130)))) == 130
    assert session.calls == [(64, None), (64, None), (2, None)]


def test_an_empty_stream_scores_nothing() -> None:
    session = Letters()
    assert list(session.loglikelihood_continuous(asked())) == []
    assert session.calls == []


def test_a_bad_request_is_a_value_with_its_metadata_and_the_others_are_scored() -> None:
    session = Letters()
    texts = ["ab", "", "abc", "poison", "image", "a"]
    results = dict(session.loglikelihood_continuous(asked(*texts)))
    assert sorted(results) == sorted(key for key, _ in asked(*texts))
    empty, poison, image = results["1:"], results["3:poison"], results["4:image"]
    assert isinstance(empty, RequestFailure)
    assert isinstance(poison, RequestFailure)
    assert isinstance(image, RequestFailure)
    assert type(empty.error) is InvalidRequestError
    assert type(poison.error) is ContextLengthError
    assert type(image.error) is UnsupportedRequestError
    assert empty.metadata == {"row": 1}
    scored = {key: value for key, value in results.items() if not isinstance(value, RequestFailure)}
    assert {key: value.logprob for key, value in scored.items()} == {
        "0:ab": -2.0,
        "2:abc": -3.0,
        "5:a": -1.0,
    }
    assert scored["5:a"].metadata == {"row": 5}


def test_a_window_of_bad_requests_alone_is_not_scored_again() -> None:
    session = Letters()
    results = list(session.loglikelihood_continuous(asked("", "", "ab"), batch_size=2))
    assert [isinstance(result, RequestFailure) for _, result in results] == [True, True, False]
    assert session.calls == [(2, 2), (1, 2)]


@given(
    st.lists(st.sampled_from(["", "poison", "image", "a", "bb", "ccc"]), max_size=20),
    st.integers(1, 6),
)
def test_every_key_is_answered_once_whatever_the_windows(texts: list[str], size: int) -> None:
    results = list(Letters().loglikelihood_continuous(asked(*texts), batch_size=size))
    assert sorted(key for key, _ in results) == sorted(key for key, _ in asked(*texts))
    for key, result in results:
        text = key.partition(":")[2]
        if text in ("", "poison", "image"):
            assert isinstance(result, RequestFailure)
        else:
            assert isinstance(result, LoglikelihoodOutput)
            assert result.logprob == -len(text)


def test_runtime_death_ends_the_stream_and_names_unanswered_keys() -> None:
    class Dying(Letters):
        def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
            if len(self.calls) > 2:
                raise EngineRuntimeError("the runtime died")
            return Letters.loglikelihood(self, requests, batch_size=batch_size)

    stream = Dying().loglikelihood_continuous(asked("ab", "cd", "ef", "gh", "ij"), batch_size=1)
    assert [next(stream)[0] for _ in range(3)] == ["0:ab", "1:cd", "2:ef"]
    with pytest.raises(EngineRuntimeError, match=r"^the runtime died; a request that should") as e:
        next(stream)
    assert e.value.in_flight == ("3:gh",)


def test_poisoned_request_fails_alone_and_its_neighbours_are_scored() -> None:
    texts = ["ab", "cd", "boom", "ef", "gh"]
    results = dict(Letters().loglikelihood_continuous(asked(*texts)))
    assert sorted(results) == sorted(key for key, _ in asked(*texts))
    failed = {key: r for key, r in results.items() if isinstance(r, RequestFailure)}
    assert [(key, str(r.error)) for key, r in failed.items()] == [("2:boom", "the runtime died")]
    assert failed["2:boom"].metadata == {"row": 2}


def test_dead_runtime_is_recognized_before_it_has_scored_anything() -> None:
    class Dead(Letters):
        def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
            raise EngineRuntimeError("the runtime died")

    with pytest.raises(EngineRuntimeError) as caught:
        list(Dead().loglikelihood_continuous(asked("ab", "cd", "ef")))
    assert set(caught.value.in_flight) == {"0:ab", "1:cd", "2:ef"}


def test_list_call_with_too_few_outputs_is_an_error() -> None:
    class Short(Letters):
        def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
            return []

    with pytest.raises(EngineRuntimeError, match="answered 0 of 1 requests and does not say which"):
        list(Short().loglikelihood_continuous(asked("ab")))


def test_list_call_that_returns_no_list_is_named() -> None:
    class Forgetful(Letters):
        def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
            super().loglikelihood(requests)

    with pytest.raises(EngineRuntimeError, match=r"^loglikelihood\(\) must .* outputs, got None$"):
        list(Forgetful().loglikelihood_continuous(asked("ab")))


def test_rolling_requests_are_scored_as_a_stream_by_default() -> None:
    class Rolling(Letters):
        def loglikelihood_rolling(self, requests: Any, *, batch_size: int | None = None) -> Any:
            self.calls.append((len(requests), batch_size))
            bad = {i: InvalidRequestError("empty") for i, r in enumerate(requests) if not r.text}
            if bad:
                raise_failures(bad, len(requests))
            return [RollingLoglikelihoodOutput(-1.0, len(r.text), r.metadata) for r in requests]

    session = Rolling()
    texts = [RollingLoglikelihoodRequest(text, metadata={"t": text}) for text in ("ab", "", "abc")]
    results = dict(session.loglikelihood_rolling_continuous(enumerate(texts), batch_size=2))
    assert isinstance(results[1], RequestFailure)
    outputs = [results[0], results[2]]
    assert [o.token_count for o in outputs if not isinstance(o, RequestFailure)] == [2, 3]
    assert [o.metadata for o in outputs] == [{"t": "ab"}, {"t": "abc"}]
    assert session.calls == [(2, 2), (1, 2), (1, 2)]


def test_a_refusal_that_names_no_request_ends_the_stream() -> None:
    class Refusing(Letters):
        def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
            raise UnsupportedRequestError("this session can't score")

    with pytest.raises(UnsupportedRequestError, match=r"^this session can't score$"):
        list(Refusing().loglikelihood_continuous(asked("ab")))


def test_the_input_is_read_a_window_ahead_at_most() -> None:
    read: list[int] = []

    def endless() -> Iterator[tuple[int, LoglikelihoodRequest]]:
        while True:
            read.append(len(read))
            yield read[-1], LoglikelihoodRequest("c", "ab")

    stream = Letters().loglikelihood_continuous(endless(), batch_size=4)
    assert [next(stream)[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(read) == 8


def test_an_error_of_the_input_comes_out() -> None:
    def failing() -> Iterator[tuple[int, LoglikelihoodRequest]]:
        yield 0, LoglikelihoodRequest("c", "ab")
        raise OSError("the rows are gone")

    with pytest.raises(OSError, match="the rows are gone"):
        list(Letters().loglikelihood_continuous(failing(), batch_size=1))


def test_a_session_without_streaming_refuses_it_at_once() -> None:
    with pytest.raises(UnsupportedRequestError, match=r"^Letters can't stream$"):
        Letters().stream([(0, GenerationRequest("a"))])


def test_a_session_is_closed_by_its_with_block_also_after_an_error() -> None:
    with Letters() as session:
        assert session.closed == 0
    assert session.closed == 1
    with pytest.raises(KeyError), session:
        raise KeyError("row")
    assert session.closed == 2


def test_session_facts_have_defaults() -> None:
    session = Letters()
    assert session.check() == CheckResult("not checkable", "the session has no self check")
    assert session.identity() is None
    assert session.info == SessionInfo()
    assert session.capabilities == GUIDE_CAPABILITIES
    assert session.tokenizer is None
    assert session.requests_in_flight is None
    assert session.describe_execution() is None


@dataclass(slots=True)
class WithFields(Letters):
    """Sets the facts as fields of a dataclass."""

    info: SessionInfo = field(default_factory=SessionInfo)  # pyright: ignore
    tokenizer: Any = None


class WithAttributes(Letters):
    """Sets the facts as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.info = SessionInfo(frozenset({Capability.GENERATE}), 8, 4)  # pyright: ignore
        self.tokenizer = "codec"  # pyright: ignore
        self.requests_in_flight = 3  # pyright: ignore


class WithProperties(Letters):
    """Sets the facts as properties."""

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(frozenset({Capability.GENERATE}), 8, 4)


def test_session_facts_may_be_properties_fields_or_attributes() -> None:
    generates = SessionInfo(frozenset({Capability.GENERATE}), 8, 4)
    assert WithProperties().info == WithAttributes().info == generates
    assert WithProperties().capabilities == {Capability.GENERATE}
    assert (WithAttributes().tokenizer, WithAttributes().requests_in_flight) == ("codec", 3)
    assert WithFields(info=generates).capabilities == {Capability.GENERATE}
    assert WithFields().tokenizer is None


def test_a_session_must_write_the_six_calls() -> None:
    class Half(BaseInferenceSession):
        def gc(self) -> None: ...

    with pytest.raises(TypeError) as caught:
        Half()  # pyright: ignore[reportAbstractUsage]
    for name in (
        "close",
        "generate",
        "generate_continuous",
        "loglikelihood",
        "loglikelihood_rolling",
    ):
        assert name in str(caught.value)
