from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evalution_core
from evalution.journal.records import UnreadableAnswerError, decode_answer, encode_answer
from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)

METADATA = {"row": object()}
REQUESTS: dict[type[Any], Any] = {
    GenerationOutput: GenerationRequest("a", metadata=METADATA),
    LoglikelihoodOutput: LoglikelihoodRequest("a", "b", metadata=METADATA),
    RollingLoglikelihoodOutput: RollingLoglikelihoodRequest("a", metadata=METADATA),
}

texts = st.text(st.characters())
floats = st.floats(allow_nan=False)
counts = st.none() | st.integers(0, 2**70)
ids = st.none() | st.lists(st.integers(0, 2**31))
logprobs = st.none() | st.lists(floats)
runtime = st.none() | st.dictionaries(
    st.sampled_from("abc"), st.none() | st.booleans() | st.integers() | st.just("x")
)
answers = st.one_of(
    st.builds(
        GenerationOutput,
        texts,
        texts,
        st.just(METADATA),
        token_ids=ids,
        token_logprobs=logprobs,
        top_logprobs=st.none() | st.lists(st.dictionaries(st.integers(0, 2**31), floats)),
        finish_reason=st.sampled_from(["stop", "length", None]),
        prompt_tokens=counts,
        completion_tokens=counts,
        truncated_tokens=counts,
        runtime=runtime,
    ),
    st.builds(
        LoglikelihoodOutput,
        floats,
        st.none() | st.booleans(),
        st.integers(0),
        st.just(METADATA),
        token_ids=ids,
        token_logprobs=logprobs,
        prompt_tokens=counts,
        truncated_tokens=counts,
        runtime=runtime,
    ),
    st.builds(
        RollingLoglikelihoodOutput,
        floats,
        st.integers(0),
        st.just(METADATA),
        token_ids=ids,
        token_logprobs=logprobs,
        runtime=runtime,
    ),
)


def round_trip(answer: Any, request: Any = None) -> Any:
    return decode_answer(encode_answer(answer), request or REQUESTS[type(answer)])


@given(answers)
def test_every_field_comes_back(answer: Any) -> None:
    found = round_trip(answer)
    assert found == answer
    assert repr(found) == repr(answer)  # 1 isn't 1.0, and 0.0 isn't -0.0
    assert found.metadata is METADATA


def test_every_field_but_metadata_is_recorded() -> None:
    for kind in REQUESTS:
        names = {f.name for f in dataclasses.fields(kind)}
        (held,) = json.loads(encode_answer(kind(**dict.fromkeys(names, ())))).values()
        assert set(held) == names - {"metadata"}


def test_nan_stays_nan() -> None:
    assert math.isnan(round_trip(LoglikelihoodOutput(math.nan, None, 1)).logprob)


def test_numbers_of_a_library_become_pythons() -> None:
    found = round_trip(
        LoglikelihoodOutput(
            np.float32(0.1),  # pyright: ignore[reportArgumentType]
            np.bool_(True),  # pyright: ignore[reportArgumentType]
            np.int64(2),  # pyright: ignore[reportArgumentType]
            token_ids=np.array([1, 2]),  # pyright: ignore[reportArgumentType]
        )
    )
    assert found == LoglikelihoodOutput(float(np.float32(0.1)), True, 2, METADATA, token_ids=[1, 2])


def test_value_that_is_no_plain_one_is_refused() -> None:
    with pytest.raises(
        EngineRuntimeError, match=r"gave a GenerationOutput that can't be recorded: builtins\.bytes"
    ):
        encode_answer(GenerationOutput("a", b"b"))  # pyright: ignore[reportArgumentType]


def test_planted_key_is_not_recorded() -> None:
    runtime = {"api_key": "planted", "url": "http://u:planted@host/?token=planted"}
    failure = RequestFailure(InvalidRequestError("http://u:planted@host refused it"))
    for text in (
        encode_answer(GenerationOutput("a", "b", runtime=runtime)),
        encode_answer(failure),
    ):
        assert "planted" not in text


CORE_ERRORS = [
    kind
    for kind in vars(evalution_core).values()
    if isinstance(kind, type) and issubclass(kind, EvalutionError)
]


@pytest.mark.parametrize("kind", CORE_ERRORS)
def test_failure_keeps_its_class_and_message(kind: type[EvalutionError]) -> None:
    request = REQUESTS[GenerationOutput]
    found = round_trip(RequestFailure(kind("too long: é"), {"other": 1}), request)
    assert type(found.error) is kind
    assert str(found.error) == "too long: é"
    assert found.metadata is METADATA


class VendorError(InvalidRequestError):
    pass


def test_vendors_error_becomes_the_core_error_it_is() -> None:
    found = round_trip(RequestFailure(VendorError("no")), REQUESTS[GenerationOutput])
    assert type(found.error) is InvalidRequestError


def test_class_of_another_version_becomes_a_runtime_error() -> None:
    text = json.dumps({"failure": {"type": "QuotaError", "message": "spent"}})
    found = decode_answer(text, REQUESTS[GenerationOutput])
    assert isinstance(found, RequestFailure)
    assert type(found.error) is EngineRuntimeError
    assert str(found.error) == "spent"


@pytest.mark.parametrize("name", ["Model", "redact", "__name__", "errors"])
def test_only_an_error_is_made_of_a_failure(name: str) -> None:
    text = json.dumps({"failure": {"type": name, "message": "m"}})
    found = decode_answer(text, REQUESTS[GenerationOutput])
    assert isinstance(found, RequestFailure)
    assert type(found.error) is EngineRuntimeError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "can't be read"),
        ("{", "can't be read"),
        ("[]", "can't be read"),
        ("{}", "can't be read"),
        ('{"generation": {}, "more": {}}', "can't be read"),
        ('{"failure": {"type": "EvalutionError"}}', "can't be read"),
        ('{"failure": {"type": "EvalutionError", "message": "m", "at": 1}}', "can't be read"),
        ('{"failure": 1}', "can't be read"),
        ('{"generation": 1}', "a recorded GenerationOutput lacks prompt, text"),
        ('{"generation": {"prompt": "a"}}', "a recorded GenerationOutput lacks text"),
        (
            '{"generation": {"prompt": "a", "text": "b", "audio": 1}}',
            "holds audio, which this version of Evalution doesn't know; upgrade evalution",
        ),
        ('{"generation": {"prompt": "a", "text": "b", "metadata": {}}}', "holds metadata"),
        ('{"generation": {"prompt": "a", "text": "b", "top_logprobs": [1]}}', "can't be read"),
        ('{"video": {}}', "is for a video request, not for a generation request"),
        ('{"rolling": {"logprob": 0, "token_count": 0}}', "is for a rolling request, not for a"),
        ("[" * 100_000, "can't be read"),
    ],
)
def test_what_is_no_answer_to_the_request_is_not_served(text: str, message: str) -> None:
    with pytest.raises(UnreadableAnswerError, match=message):
        decode_answer(text, REQUESTS[GenerationOutput])


def test_log_probability_that_no_float_holds_is_not_served() -> None:
    text = json.dumps({"rolling": {"logprob": -(10**400), "token_count": 1}})
    with pytest.raises(UnreadableAnswerError, match="can't be read: int too large"):
        decode_answer(text, REQUESTS[RollingLoglikelihoodOutput])
