from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.execution.rolling import rolling_continuous
from evalution_core import (
    EngineRuntimeError,
    InvalidRequestError,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    raise_failures,
)


class Session:
    """Refuses texts that begin with `bad`; `names_them` says which, or only that there are some."""

    def __init__(self, *, names_them: bool = True, answers: int | None = None) -> None:
        self.names_them = names_them
        self.answers = answers
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
        outputs = [RollingLoglikelihoodOutput(-float(len(r.text)), 1) for r in requests]
        return outputs[: self.answers]


def answers(session: Any, texts: list[str], batch_size: int | None = None) -> dict[int, Any]:
    requests = ((i, RollingLoglikelihoodRequest(text)) for i, text in enumerate(texts))
    return dict(rolling_continuous(session, requests, batch_size=batch_size))


@given(
    texts=st.lists(st.sampled_from(["a", "bb", "bad"])),
    batch_size=st.none() | st.integers(1, 5),
    names_them=st.booleans(),
)
def test_bad_texts_fail_alone(texts: list[str], batch_size: int | None, names_them: bool) -> None:
    found = answers(Session(names_them=names_them), texts, batch_size)
    assert len(found) == len(texts)
    for index, text in enumerate(texts):
        if text == "bad":
            assert isinstance(found[index], RequestFailure)
        else:
            assert found[index].logprob == -len(text)


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
