"""The table of request kinds agrees with the contract's types and calls."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from evalution_core.kinds import GENERATION, LOGLIKELIHOOD, REQUEST_KINDS, ROLLING, find_kind
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
    assert tuple(kind.request for kind in REQUEST_KINDS) == get_args(Request)
    assert tuple(kind.output for kind in REQUEST_KINDS) == get_args(Output)


@pytest.mark.parametrize("kind", REQUEST_KINDS, ids=lambda kind: kind.label)
def test_calls_are_methods_of_a_session(kind: Any) -> None:
    for call in (kind.list_call, kind.continuous_call):
        assert callable(getattr(BaseInferenceSession, call))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (GenerationRequest("a"), GENERATION),
        (GenerationOutput("a", "b"), GENERATION),
        (GenerationRequest, GENERATION),
        (LoglikelihoodRequest("a", "b"), LOGLIKELIHOOD),
        (LoglikelihoodOutput(-1.0, True, 1), LOGLIKELIHOOD),
        (RollingLoglikelihoodRequest("a"), ROLLING),
        (RollingLoglikelihoodOutput, ROLLING),
        ("rolling", ROLLING),
    ],
)
def test_kind_is_found_by_value_class_or_label(value: object, kind: Any) -> None:
    assert find_kind(value) is kind


@pytest.mark.parametrize("value", [None, 3, "chat", object()])
def test_anything_else_has_no_kind(value: object) -> None:
    assert find_kind(value) is None


def test_subclass_of_a_request_has_no_kind() -> None:
    class Own(GenerationRequest):
        pass

    assert find_kind(Own("a")) is None


def test_table_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GENERATION.label = "other"  # pyright: ignore[reportAttributeAccessIssue]


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
    outputs = GENERATION.answer(Echo(), requests, batch_size=2)
    assert [output.text for output in outputs] == ["a2", "b2"]
    with GENERATION.open_stream(Echo(), enumerate(requests), batch_size=1) as stream:
        assert isinstance(stream, RequestStream)
        assert dict(stream) == {
            0: GenerationOutput("a", "a1"),
            1: GenerationOutput("b", "b1"),
        }
