"""What may enter: every refusal with its message, and every well-formed request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit.request_encoding import RequestValidator, parse_batch_size

ALL = RequestValidator("Toy", frozenset(Capability))
USER = {"role": "user", "content": "hi"}


def refused(request: GenerationRequest, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ALL.check_generation(request)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "needs input_ids, rendered_prompt, messages or prompt"),
        ({"prompt": 3}, "prompt must be a string, got 3"),
        ({"rendered_prompt": b"x"}, "rendered_prompt must be a string, got b'x'"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": "12"}, "input_ids must be a list of ints, .*, got '12'"),
        ({"input_ids": 5}, "input_ids must be a list of ints, .*, got 5"),
        ({"input_ids": [1, -1]}, "input_ids must hold Python ints >= 0, found -1"),
        ({"input_ids": [1, True]}, "input_ids must hold Python ints >= 0, found True"),
        ({"input_ids": [1, 2.0]}, r"input_ids must hold Python ints >= 0, found 2\.0"),
        ({"messages": []}, r"messages must be a non-empty list, got \[\]"),
        ({"messages": "hi"}, "messages must be a non-empty list, got 'hi'"),
        ({"messages": ["hi"]}, "a message must be a dict with a role, got 'hi'"),
        ({"messages": [{"content": "hi"}]}, "a message must be a dict with a role"),
        ({"messages": [{"role": "user", "content": 3}]}, "must be a string or a list of parts"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "part must be a dict with a type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "a text part needs a string under 'text'",
        ),
        ({"max_new_tokens": 0}, "max_new_tokens must be an int >= 1, got 0"),
        ({"max_new_tokens": True}, "max_new_tokens must be an int >= 1, got True"),
        ({"max_new_tokens": 2.5}, r"max_new_tokens must be an int >= 1, got 2\.5"),
        ({"num_beams": 0}, "num_beams must be an int >= 1, got 0"),
        ({"ignore_eos": "no"}, "ignore_eos must be True or False, got 'no'"),
        ({"do_sample": 1}, "do_sample must be True or False, got 1"),
        ({"tools": "abc"}, "tools must be a list of dicts, got 'abc'"),
        ({"tools": ["abc"]}, "a tool must be a dict, got 'abc'"),
        (
            {"tools": [{}]},
            "tools need messages: the model's chat template writes them into the prompt, and "
            "prompt is taken as it is; give messages, or the rendered_prompt with tools",
        ),
        ({"metadata": None}, "metadata must be a dict, got None"),
        ({"stop": "###"}, "stop must be a list of strings, got '###'"),
        ({"stop": None}, "stop must be a list of strings, got None"),
        ({"stop": ["a", ""]}, "a stop string must not be empty, got ''"),
        ({"stop": [1]}, "a stop string must not be empty, got 1"),
        ({"truncation": "right"}, "truncation must be 'left' or 'error', got 'right'"),
        ({"logprobs": -1}, "logprobs must be an int >= 0, got -1"),
        ({"temperature": -0.1}, r"temperature must be >= 0 and below 1e300, got -0\.1"),
        ({"temperature": float("nan")}, "temperature must be >= 0 and below 1e300, got nan"),
        ({"temperature": 10**400}, "temperature must be >= 0 and below 1e300, got 10000"),
        ({"top_p": 10**400}, "top_p must be above 0 and at most 1, got 10000"),
        ({"temperature": "0"}, "temperature must be >= 0 and below 1e300, got '0'"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1, got 0\.0"),
        ({"top_p": 1.5}, r"top_p must be above 0 and at most 1, got 1\.5"),
        ({"top_k": -1}, "top_k must be an int >= 0, got -1"),
        ({"seed": -1}, "seed must be an int >= 0, got -1"),
        ({"do_sample": True}, "needs a temperature above 0; for greedy output leave do_sample off"),
    ],
)
def test_a_wrong_generation_request_is_refused(change: dict[str, Any], message: str) -> None:
    refused(replace(GenerationRequest("p"), **change), message)


def test_a_request_of_another_kind_is_refused() -> None:
    refused("hello", "expected a GenerationRequest, got 'hello'")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidRequestError, match="expected a LoglikelihoodRequest, got None"):
        ALL.check_loglikelihood(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidRequestError, match="expected a RollingLoglikelihoodRequest"):
        ALL.check_rolling(LoglikelihoodRequest())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (LoglikelihoodRequest("a", ""), "the continuation is empty: there is nothing to score"),
        (LoglikelihoodRequest("a", "b", continuation_input_ids=[]), "continuation_input_ids is em"),
        (LoglikelihoodRequest("a", "b", "1"), "context_input_ids must be a list of ints"),  # pyright: ignore[reportArgumentType]
        (LoglikelihoodRequest(1, "b"), "context must be a string, got 1"),  # pyright: ignore[reportArgumentType]
        (LoglikelihoodRequest("a", None), "continuation must be a string, got None"),  # pyright: ignore[reportArgumentType]
        (LoglikelihoodRequest("", "b", messages=[]), "messages must be a non-empty list"),
        (LoglikelihoodRequest("a", "b", truncation="no"), "truncation must be 'left' or 'error'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_wrong_loglikelihood_request_is_refused(
    request_: LoglikelihoodRequest, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ALL.check_loglikelihood(request_)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (RollingLoglikelihoodRequest(), "a rolling request's text is empty"),
        (RollingLoglikelihoodRequest("", input_ids=[]), "input_ids is empty"),
        (RollingLoglikelihoodRequest(5), "text must be a string, got 5"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_wrong_rolling_request_is_refused(
    request_: RollingLoglikelihoodRequest, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ALL.check_rolling(request_)


@pytest.mark.parametrize(
    ("capability", "request_"),
    [
        (Capability.GENERATE, GenerationRequest("p")),
        (Capability.CHAT, GenerationRequest(messages=[USER])),
        (Capability.TOKEN_IDS, GenerationRequest(input_ids=[1])),
        (Capability.BEAMS, GenerationRequest("p", num_beams=2)),
        (Capability.IGNORE_EOS, GenerationRequest("p", ignore_eos=True)),
        (Capability.TOOLS, GenerationRequest(messages=[USER], tools=[{}])),
        (Capability.LOGPROBS, GenerationRequest("p", logprobs=0)),
        (Capability.TRUNCATION, GenerationRequest("p", truncation="error")),
        (Capability.SAMPLING, GenerationRequest("p", do_sample=True, temperature=1.0)),
        (Capability.SEED, GenerationRequest("p", do_sample=True, temperature=1.0, seed=1)),
        (
            Capability.MULTIMODAL,
            GenerationRequest(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        ),
        (Capability.LOGLIKELIHOOD, LoglikelihoodRequest("a", "b")),
        (Capability.CHAT, LoglikelihoodRequest("", "b", messages=[USER])),
        (Capability.TOKEN_IDS, LoglikelihoodRequest("a", continuation_input_ids=[1])),
        (Capability.TRUNCATION, LoglikelihoodRequest("a", "b", truncation="error")),
        (Capability.ROLLING, RollingLoglikelihoodRequest("a")),
        (Capability.TOKEN_IDS, RollingLoglikelihoodRequest(input_ids=[1])),
    ],
)
def test_what_is_not_declared_is_unsupported(capability: Capability, request_: Any) -> None:
    def check(admission: RequestValidator) -> None:
        if isinstance(request_, GenerationRequest):
            admission.check_generation(request_)
        elif isinstance(request_, LoglikelihoodRequest):
            admission.check_loglikelihood(request_)
        else:
            admission.check_rolling(request_)

    check(ALL)
    with pytest.raises(
        UnsupportedRequestError,
        match=rf"engine Toy can't do .*: it lacks the capability '{capability}' \(declares: ",
    ):
        check(RequestValidator("Toy", frozenset(Capability) - {capability}))


def test_a_seed_that_greedy_decoding_ignores_needs_no_capability() -> None:
    greedy_only = frozenset({Capability.GENERATE})
    RequestValidator("Toy", greedy_only).check_generation(
        GenerationRequest("p", seed=1, temperature=0.7)
    )


TEXTS = st.text(max_size=5)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"])},
        optional={
            "content": TEXTS
            | st.none()
            | st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXTS))
        },
    ),
    min_size=1,
    max_size=3,
)
IDS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4)
VALID = st.builds(
    GenerationRequest,
    TEXTS,
    st.none() | MESSAGES,
    st.none() | TEXTS,
    st.none() | IDS | IDS.map(tuple),
    st.booleans(),
    st.lists(st.text(min_size=1, max_size=3), max_size=3) | st.just(("\n",)),
    st.integers(1, 1 << 40),
    st.integers(1, 4),
    st.booleans(),
    st.floats(0.001, 10) | st.integers(1, 2),
    top_p=st.floats(0.001, 1.0) | st.just(1),
    top_k=st.integers(0, 100),
    seed=st.none() | st.integers(0, 1 << 70),
    logprobs=st.none() | st.integers(0, 20),
    ignore_eos=st.booleans(),
    tools=st.none() | st.just([{"type": "function"}]),
    truncation=st.sampled_from(["left", "error"]),
).filter(
    lambda asked: (
        not asked.tools
        or (asked.messages, asked.rendered_prompt, asked.input_ids) != (None, None, None)
    )
)


@settings(deadline=None, max_examples=100)
@given(VALID)
def test_every_well_formed_generation_request_is_admitted(request_: GenerationRequest) -> None:
    ALL.check_generation(request_)


@settings(deadline=None, max_examples=50)
@given(TEXTS, st.text(min_size=1), st.none() | st.just([]) | IDS, st.none() | IDS, MESSAGES)
def test_every_well_formed_loglikelihood_request_is_admitted(
    context: str, continuation: str, left: Any, right: Any, messages: Any
) -> None:
    ALL.check_loglikelihood(
        LoglikelihoodRequest(context, continuation, left, right, messages=messages)
    )


def test_list_calls_name_every_bad_request() -> None:
    requests = [GenerationRequest("a"), *[GenerationRequest() for _ in range(5)]]
    with pytest.raises(InvalidRequestError, match=r"^5 of 6 requests refused.* and 2 more$") as e:
        ALL.check_all(ALL.check_generation, requests)
    assert list(e.value.failures) == [1, 2, 3, 4, 5]
    few = RequestValidator("Toy", frozenset({Capability.GENERATE}))
    with pytest.raises(UnsupportedRequestError) as unsupported:
        few.check_all(few.check_generation, [GenerationRequest("p", num_beams=2)])
    assert list(unsupported.value.failures) == [0]
    mixed = [GenerationRequest(), GenerationRequest("p", num_beams=2)]
    with pytest.raises(InvalidRequestError, match=r"^2 of 2 requests refused"):
        few.check_all(few.check_generation, mixed)


@pytest.mark.parametrize("batch_size", [0, -1, True, 1.0, "8"])
def test_a_batch_size_is_a_positive_int(batch_size: Any) -> None:
    with pytest.raises(InvalidRequestError, match="batch_size must be an int >= 1, got"):
        parse_batch_size(batch_size)
    assert parse_batch_size(None) is None
    assert parse_batch_size("auto") is None
    assert parse_batch_size(1) == 1
