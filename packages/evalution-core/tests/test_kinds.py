"""The table of request kinds agrees with the contract's types and calls."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import pytest

from evalution_core.kinds import RequestKind, find_kind
from evalution_core.requests import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Output,
    Request,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.session import BaseInferenceSession
from evalution_core.streams import RequestStream


def test_table_holds_every_request_and_output_of_the_contract() -> None:
    assert tuple(kind.request for kind in RequestKind) == get_args(Request)
    assert tuple(kind.output for kind in RequestKind) == get_args(Output)


@pytest.mark.parametrize("kind", RequestKind, ids=lambda kind: kind.label)
def test_calls_are_methods_of_a_session(kind: Any) -> None:
    for call in (kind.list_call, kind.continuous_call):
        assert callable(getattr(BaseInferenceSession, call))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (GenerationRequest("a"), RequestKind.GENERATION),
        (GenerationOutput("a", "b"), RequestKind.GENERATION),
        (GenerationRequest, RequestKind.GENERATION),
        (LoglikelihoodRequest("a", "b"), RequestKind.LOGLIKELIHOOD),
        (LoglikelihoodOutput(-1.0, True, 1), RequestKind.LOGLIKELIHOOD),
        (RollingLoglikelihoodRequest("a"), RequestKind.ROLLING),
        (RollingLoglikelihoodOutput, RequestKind.ROLLING),
    ],
)
def test_kind_is_found_by_value_or_class(value: object, kind: Any) -> None:
    assert find_kind(value) is kind


@pytest.mark.parametrize("value", [None, 3, "rolling", object()])
def test_anything_else_has_no_kind(value: object) -> None:
    assert find_kind(value) is None


def test_subclass_of_a_request_has_no_kind() -> None:
    class Own(GenerationRequest):
        pass

    assert find_kind(Own("a")) is None


@pytest.mark.parametrize("kind", RequestKind, ids=lambda kind: kind.label)
def test_kind_survives_a_worker_pipe(kind: Any) -> None:
    assert pickle.loads(pickle.dumps(kind)) is kind


class Echo(BaseInferenceSession):
    """Generates what it is asked, by a plain generator."""

    def generate(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return [GenerationOutput(r.prompt, f"{r.prompt}{batch_size}") for r in requests]

    def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        for key, request in requests:
            yield key, self.generate([request], batch_size=batch_size)[0]

    def gc(self) -> None: ...

    def close(self) -> None: ...


def test_kind_asks_the_session_by_list_and_by_stream() -> None:
    requests = [GenerationRequest("a"), GenerationRequest("b")]
    outputs = RequestKind.GENERATION.answer(Echo(), requests)
    assert [output.text for output in outputs] == ["aNone", "bNone"]
    with RequestKind.GENERATION.open_stream(Echo(), enumerate(requests), batch_size=1) as stream:
        assert isinstance(stream, RequestStream)
        assert dict(stream) == {
            0: GenerationOutput("a", "a1"),
            1: GenerationOutput("b", "b1"),
        }
