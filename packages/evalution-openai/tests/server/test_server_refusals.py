"""What is wrong is told with a 4xx status and a reason, whatever is sent."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import BaseInferenceSession

POSTS = [
    "/v1/completions", "/v1/chat/completions", "/v1/eval/loglikelihood",
    "/v1/eval/loglikelihood/rolling", "/tokenize", "/detokenize",
]  # fmt: skip
CHAT = [{"role": "user", "content": "hi"}]
LARGE = 10**30


def refused(answer: httpx.Response) -> dict[str, Any]:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["message"]
    assert "Traceback" not in answer.text
    return error


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"1", b'"text"', b"{}x", b"\xff\xfe{}", b'{"prompt": "\xc3("}',
        b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b'{"a": ' + b"[" * 5000, b"\0" * 100,
        b'{"prompt": null, "messages": null, "tokens": null}',
    ],
    ids=range(14),
)  # fmt: skip
def test_invalid_body_is_refused(client: httpx.Client, path: str, body: bytes) -> None:
    refused(client.post(path, content=body))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "input_ids"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["1", 2]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["12"], "max_tokens": "3"}, "max_tokens"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [LARGE]}, "prompt"),
        ({"prompt": [567_890]}, "vocabulary"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": LARGE}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**6}, "max_tokens=1000000 leaves no room"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": LARGE}, "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "top_p": 2}, "top_p"),
        ({"prompt": "a", "top_k": -2}, "top_k"),
        ({"prompt": "a", "seed": -1}, "seed"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 100_000}, "n"),
        ({"prompt": "a", "stop": 5}, "stop"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"prompt": "a", "stop": [None]}, "stop"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "best_of": 4}, "best_of"),
        ({"prompt": "a", "presence_penalty": 1}, "presence_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "a", "truncation": "right"}, "truncation"),
        ({"prompt": "a" * 5000}, "max_model_len"),
    ],
)
def test_a_wrong_completion_names_its_field(
    client: httpx.Client, body: dict[str, Any], field: str
) -> None:
    assert field in refused(client.post("/v1/completions", json=body))["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": CHAT, "tools": [{"type": "function"}]}, "tools"),
        ({"messages": CHAT, "tool_choice": "required"}, "tool_choice"),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": CHAT, "max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_wrong_conversation_names_its_field(
    client: httpx.Client, body: dict[str, Any], field: str
) -> None:
    assert field in refused(client.post("/v1/chat/completions", json=body))["message"]


def test_long_name_of_an_unknown_field_is_cut(client: httpx.Client) -> None:
    error = refused(client.post("/v1/completions", json={"prompt": "a", "b" * 10**6: 1}))
    assert len(error["message"]) < 2000
    assert error["param"] == "b" * 100


ELSEWHERE = [
    "max_completion_tokens", "functions", "function_call", "chat_template", "documents", "audio",
    "modalities", "prediction", "reasoning_effort", "verbosity", "web_search_options",
    "stop_token_ids", "bad_words", "allowed_token_ids", "use_beam_search", "length_penalty",
    "typical_p", "prompt_logprobs", "add_special_tokens", "skip_special_tokens",
    "include_stop_str_in_output", "truncate_prompt_tokens", "guided_json", "guided_regex",
    "structured_outputs", "grammar", "json_schema", "prompt_embeds", "do_sample",
]  # fmt: skip
"""Fields that change an answer on other servers, and that completions here don't have."""


@pytest.mark.parametrize("field", ELSEWHERE)
def test_field_of_another_server_is_refused(client: httpx.Client, field: str) -> None:
    error = refused(client.post("/v1/completions", json={"prompt": "a", field: 1}))
    assert f"this route has no field {field!r}" in error["message"]
    assert (error["code"], error["param"]) == ("unknown_parameter", field)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (POSTS[0], {"prompt": "a", "temprature": 1}, "'temprature'; did you mean 'temperature'?"),
        (POSTS[0], {"promt": "a"}, "'promt'; did you mean 'prompt'?"),
        (
            POSTS[0],
            {"prompt": "a", "stream_options": {"include_usge": True}},
            "'stream_options.include_usge'; did you mean 'include_usage'?",
        ),
        (POSTS[1], {"messages": CHAT, "chat_template": "x"}, "mean 'chat_template_kwargs'?"),
        (
            POSTS[2],
            {"requests": [{"context": "a", "continuatoin": "b"}]},
            "'requests.0.continuatoin'; did you mean 'continuation'?",
        ),
        (
            POSTS[3],
            {"txt": "a"},
            "did you mean 'text'? (fields: top_logprobs, text, input_ids, model,",
        ),
        (POSTS[4], {"prompt": "a", "add_special_token": False}, "mean 'add_special_tokens'?"),
        (POSTS[5], {"tokens": [1], "skip_specials": True}, "mean 'skip_special_tokens'?"),
    ],
)
def test_misspelt_field_is_refused_with_the_nearest_name(
    client: httpx.Client, path: str, body: dict[str, Any], message: str
) -> None:
    assert message in refused(client.post(path, json=body))["message"]


def test_fields_that_cannot_change_an_answer_are_accepted(client: httpx.Client) -> None:
    unread = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "flex",
        "safety_identifier": "x", "prompt_cache_key": "k", "request_id": "1", "priority": 3,
    }  # fmt: skip
    neutral = {"parallel_tool_calls": True, "continue_final_message": False, "num_beams": 1}
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    body = {"messages": CHAT, "max_tokens": 1, **unread, **neutral}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    streamed = {"stream": True, "stream_options": options}
    assert client.post("/v1/chat/completions", json={**body, **streamed}).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("parallel_tool_calls", False), ("continue_final_message", True), ("num_beams", 4)],
)
def test_field_with_an_effect_that_no_engine_has_is_unsupported(
    client: httpx.Client, field: str, value: object
) -> None:
    error = refused(client.post("/v1/chat/completions", json={"messages": CHAT, field: value}))
    assert (error["code"], error["param"]) == ("unsupported", field)


def test_stream_with_an_invalid_prompt_gets_400(client: httpx.Client) -> None:
    refused(client.post("/v1/completions", json={"prompt": "a" * 5000, "stream": True}))


def test_chat_stream_with_an_invalid_prompt_gets_400(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a" * 5000}]
    error = refused(
        client.post("/v1/chat/completions", json={"messages": messages, "stream": True})
    )
    assert error["code"] == "context_length_exceeded"
    echo = {"prompt": "a" * 5000, "stream": True, "echo": True}
    assert refused(client.post("/v1/completions", json=echo))["code"] == error["code"]


def test_null_continuation_is_refused(client: httpx.Client) -> None:
    body = {"context": "a", "continuation": None}
    assert "nothing to score" in refused(client.post(POSTS[2], json=body))["message"]
    strings = {"context_input_ids": "12", "continuation_input_ids": [3]}
    refused(client.post(POSTS[2], json=strings))


def test_another_model_is_not_found(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "gpt-4"})
    assert answer.status_code == 404
    assert refused(answer)["code"] == "model_not_found"


def test_unknown_routes_and_methods(client: httpx.Client) -> None:
    unknown = client.get("/v1/complete")
    assert unknown.status_code == 404
    assert "/openapi.json" in refused(unknown)["message"]
    wrong = client.get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    refused(wrong)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
FIELDS = [
    "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n",
    "logprobs", "echo", "stream", "context", "continuation", "context_input_ids", "text",
    "continuation_input_ids", "input_ids", "requests", "tokens", "truncation", "top_logprobs",
]  # fmt: skip


@settings(max_examples=60)
@given(
    path=st.sampled_from(POSTS),
    body=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5),
)
def test_no_json_makes_the_server_fail(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    answer = client.post(path, content=json.dumps(body))
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        refused(answer)


def test_limits_of_the_operator(serving: Any, tiny: BaseInferenceSession) -> None:
    client = serving(session=tiny, max_body_bytes=1000, max_prompts=3)
    large = client.post("/v1/completions", json={"prompt": "a" * 2000})
    assert large.status_code == 413
    assert refused(large)["code"] == "body_too_large"

    def parts() -> Any:
        yield from [b"a" * 400] * 4

    assert client.post("/v1/completions", content=parts()).status_code == 413
    many = client.post("/v1/completions", json={"prompt": ["a"] * 2, "n": 2})
    assert "this server takes 3" in refused(many)["message"]
    many = client.post("/v1/eval/loglikelihood", json={"requests": [{"context": "a"}] * 4})
    assert "this server takes 3" in refused(many)["message"]


def test_key_is_required(serving: Any, tiny: BaseInferenceSession) -> None:
    key = "a-key-of-tests"
    client = serving(session=tiny, api_key=key)
    body = {"prompt": "a", "max_tokens": 1}
    wrong = [
        {}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"},
        {"Authorization": key}, {"Authorization": f"Basic {key}"}, {"X-Api-Key": "wrong"},
        {"Authorization": f"Bearer {key}x"},
    ]  # fmt: skip
    for headers in wrong:
        for answer in (
            client.post("/v1/completions", json=body, headers=headers),
            client.get("/v1/models", headers=headers),
            client.get("/metrics", headers=headers),
            client.get("/unknown", headers=headers),
        ):
            assert answer.status_code == 401
            assert refused(answer)["code"] == "invalid_api_key"
            assert key not in answer.text
    assert client.get("/health").status_code == 200
    for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
        assert client.post("/v1/completions", json=body, headers=headers).status_code == 200


def test_any_key_is_accepted_by_a_server_without_one(client: httpx.Client) -> None:
    for header in ("Bearer", "Bearer anything"):
        answer = client.get("/v1/models", headers={"Authorization": header})
        assert answer.status_code == 200
