from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evalution
from evalution import Perplexity
from evalution.runs.rolling import rolling_continuous
from evalution_core import (
    EngineRuntimeError,
    InvalidRequestError,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    raise_failures,
)
from evalution_enginekit import TokenScore, TokenSpan
from evalution_enginekit.mock import MockSession


class Session:
    """Refuses texts that begin with `bad`, and fails in the runtime with one that is `poison`.

    Args:
        names_them: says which texts are bad; else only that there are some.
        lost: what it claims to have lost when it fails, as positions in the call.
        dies_at: from this call on nothing can be scored.
    """

    def __init__(
        self,
        *,
        names_them: bool = True,
        answers: int | None = None,
        lost: Sequence[int] = (),
        dies_at: int | None = None,
    ) -> None:
        self.names_them = names_them
        self.answers = answers
        self.lost = lost
        self.dies_at = dies_at
        self.sizes: list[int] = []

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        self.sizes.append(len(requests))
        bad = [index for index, request in enumerate(requests) if request.text.startswith("bad")]
        if bad and self.names_them:
            raise_failures({i: InvalidRequestError(f"{i} is bad") for i in bad}, len(requests))
        if bad:
            raise InvalidRequestError("something is bad")
        is_dead = self.dies_at is not None and len(self.sizes) >= self.dies_at
        if is_dead or any(request.text == "poison" for request in requests):
            raise EngineRuntimeError("no memory", in_flight=self.lost)
        outputs = [RollingLoglikelihoodOutput(-float(len(r.text)), 1) for r in requests]
        return outputs[: self.answers]


def answers(session: Any, texts: list[str], batch_size: int | None = None) -> dict[int, Any]:
    requests = ((i, RollingLoglikelihoodRequest(text)) for i, text in enumerate(texts))
    return dict(rolling_continuous(session, requests, batch_size=batch_size))


@given(
    texts=st.lists(st.sampled_from(["a", "bb", "bad", "poison"])),
    batch_size=st.none() | st.integers(1, 5),
    names_them=st.booleans(),
    lost=st.lists(st.integers(0, 20)),
)
def test_bad_texts_fail_alone(
    texts: list[str], batch_size: int | None, names_them: bool, lost: list[int]
) -> None:
    found = answers(Session(names_them=names_them, lost=lost), texts, batch_size)
    assert len(found) == len(texts)
    for index, text in enumerate(texts):
        if text in ("bad", "poison"):
            assert isinstance(found[index], RequestFailure)
            assert isinstance(found[index].error, EngineRuntimeError) == (text == "poison")
        else:
            assert found[index].logprob == -len(text)


def test_what_an_error_names_as_lost_is_tried_apart_from_the_rest_first() -> None:
    session = Session(lost=[5])
    found = answers(session, ["a"] * 5 + ["poison"] + ["a"] * 10)
    assert session.sizes == [16, 1, 1, 8, 7]
    assert [index for index, answer in found.items() if isinstance(answer, RequestFailure)] == [5]


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_dead_runtime_ends_the_stream_with_what_was_in_flight(dies_at: int) -> None:
    session: Any = Session(dies_at=dies_at)
    requests = ((i, RollingLoglikelihoodRequest("a")) for i in range(100))
    found: list[int] = []

    def read() -> None:
        for key, answer in rolling_continuous(session, requests, batch_size=None):
            assert not isinstance(answer, RequestFailure)
            found.append(key)

    with pytest.raises(EngineRuntimeError, match=r"no memory; .* too \(16 in flight\)") as told:
        read()
    assert found == list(range(16 * (dies_at - 1)))
    assert told.value.in_flight == tuple(range(len(found), len(found) + 16))
    assert session.sizes[dies_at - 1 :] == [16, 8, 4, 2, 1, 1]


@pytest.mark.parametrize("first_bad", [0, 3])
def test_a_run_records_texts_side_by_side_with_which_the_runtime_fails(
    scripted: Any, first_bad: int
) -> None:
    class Failing(MockSession):
        def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
            if any(ord("!") in span.token_ids for span in spans):
                raise RuntimeError("no memory")
            return super()._score_tokens(spans)

    bad = range(first_bad, first_bad + 5)
    rows = [{"text": f"text {i}{'!' if i in bad else ''}"} for i in range(20)]
    result = evalution.run(
        engine=scripted(session=Failing("m", 512, 8)),
        model="m",
        tests=[Perplexity(data=rows, text="text")],
    )
    suite = result.suites[0]
    assert (suite.n, suite.failed) == (20, 5)
    assert suite.first_failure is not None
    assert suite.first_failure.startswith(f"row {first_bad}: EngineRuntimeError: scoring failed:")


def test_a_call_holds_no_more_than_a_batch() -> None:
    session = Session()
    answers(session, ["a"] * 7, batch_size=3)
    assert session.sizes == [3, 3, 1]


def test_a_call_that_answers_too_few_is_an_error() -> None:
    with pytest.raises(EngineRuntimeError, match="answered 2 of 3 rolling requests"):
        answers(Session(answers=2), ["a"] * 3)


def test_a_session_that_streams_rolling_requests_is_left_to_do_so(scripted_session: Any) -> None:
    class Streaming(scripted_session):
        def loglikelihood_rolling_continuous(
            self, requests: Any, *, batch_size: int | None = None
        ) -> Any:
            assert batch_size == 3
            return reversed([(key, f"answer to {request}") for key, request in requests])

    found = rolling_continuous(Streaming(), [(0, "a"), (1, "b")], batch_size=3)  # pyright: ignore[reportArgumentType]
    assert list(found) == [(1, "answer to b"), (0, "answer to a")]
