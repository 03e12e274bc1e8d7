"""Requests and outputs: what the guide's constructors and the callers' metadata rely on."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    TextDelta,
)

# The Engine Guide's fields in its order; `...` where there is no default.
GUIDE_FIELDS: dict[type, dict[str, Any]] = {
    GenerationRequest: {
        "prompt": None,
        "messages": None,
        "rendered_prompt": None,
        "input_ids": None,
        "add_generation_prompt": True,
        "stop": [],
        "max_new_tokens": 256,
        "num_beams": 1,
        "do_sample": False,
        "temperature": 0.0,
        "metadata": {},
    },
    GenerationOutput: {"prompt": ..., "text": ..., "metadata": {}},
    LoglikelihoodRequest: {
        "context": "",
        "continuation": "",
        "context_input_ids": None,
        "continuation_input_ids": None,
        "metadata": {},
    },
    LoglikelihoodOutput: {"logprob": ..., "is_greedy": ..., "token_count": ..., "metadata": {}},
    RollingLoglikelihoodRequest: {"text": "", "input_ids": None, "metadata": {}},
    RollingLoglikelihoodOutput: {"logprob": ..., "token_count": ..., "metadata": {}},
}
ADDED_DEFAULTS: dict[type, dict[str, Any]] = {
    GenerationRequest: {
        "top_p": 1.0,
        "top_k": 0,
        "seed": None,
        "logprobs": None,
        "ignore_eos": False,
        "tools": None,
        "truncation": "left",
    },
    GenerationOutput: dict.fromkeys(
        [
            "token_ids",
            "token_logprobs",
            "top_logprobs",
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            "truncated_tokens",
            "runtime",
        ]
    ),
    LoglikelihoodRequest: {"messages": None, "truncation": "left", "top_logprobs": None},
    LoglikelihoodOutput: dict.fromkeys(
        [
            "token_ids",
            "token_logprobs",
            "prompt_tokens",
            "truncated_tokens",
            "runtime",
            "top_logprobs",
        ]
    ),
    RollingLoglikelihoodRequest: {"top_logprobs": None},
    RollingLoglikelihoodOutput: dict.fromkeys(
        ["token_ids", "token_logprobs", "runtime", "top_logprobs"]
    ),
}
each_kind = pytest.mark.parametrize("kind", list(GUIDE_FIELDS), ids=lambda kind: kind.__name__)


def minimal(kind: type) -> Any:
    """An instance from the fields without a default alone."""
    return kind(*(name for name, default in GUIDE_FIELDS[kind].items() if default is ...))


@each_kind
def test_the_guides_fields_are_positional_in_its_order(kind: type) -> None:
    built = kind(*GUIDE_FIELDS[kind])
    for name in GUIDE_FIELDS[kind]:
        assert getattr(built, name) == name


@each_kind
def test_what_came_later_is_keyword_only(kind: type) -> None:
    added = [field.name for field in dataclasses.fields(kind) if field.kw_only]
    assert added == list(ADDED_DEFAULTS[kind])
    with pytest.raises(TypeError, match="positional"):
        kind(*GUIDE_FIELDS[kind], "one more")


@each_kind
def test_defaults(kind: type) -> None:
    built = minimal(kind)
    for name, default in {**GUIDE_FIELDS[kind], **ADDED_DEFAULTS[kind]}.items():
        if default is not ...:
            assert getattr(built, name) == default, name


@each_kind
def test_slots_refuse_a_misspelt_attribute(kind: type) -> None:
    with pytest.raises(AttributeError):
        minimal(kind).max_tokens = 3


@each_kind
def test_metadata_is_the_callers_own_object(kind: type) -> None:
    metadata = {"row": object()}
    built = kind(
        *(name for name, default in GUIDE_FIELDS[kind].items() if default is ...),
        metadata=metadata,
    )
    assert built.metadata is metadata
    assert minimal(kind).metadata is not minimal(kind).metadata


@each_kind
def test_values_cross_a_process_unchanged(kind: type) -> None:
    built = kind(*GUIDE_FIELDS[kind])
    assert pickle.loads(pickle.dumps(built)) == built


def test_a_failure_and_a_delta_are_values_that_can_not_be_changed() -> None:
    failure = RequestFailure(InvalidRequestError("empty"), {"row": 1})
    assert failure.metadata == {"row": 1}
    assert RequestFailure(InvalidRequestError("empty")).metadata == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        failure.metadata = {}  # pyright: ignore[reportAttributeAccessIssue]
    assert TextDelta("a") == TextDelta("a", ())
    assert len({TextDelta("a"), TextDelta("a", ())}) == 1
    copied = pickle.loads(pickle.dumps(failure))
    assert str(copied.error) == "empty"
    assert copied.metadata == {"row": 1}
