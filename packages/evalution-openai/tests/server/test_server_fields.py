"""Each field of each body changes the answer, is refused, or is listed as harmless."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

TEXT = "Tom has 3 apples and gets 4"
CHAT = [{"role": "user", "content": "What is 3 + 4?"}]
SAMPLED = {"temperature": 2.0, "seed": 5, "max_tokens": 12}
IDS = list(range(40, 60))
LONG = {"prompt": [40] * 600}

NAMED = {"model": ({}, "gpt-4")}
GENERATION: dict[str, tuple[dict[str, Any], Any]] = {
    **NAMED,
    "temperature": ({"seed": 5, "max_tokens": 12}, 2.0),
    "top_p": (SAMPLED, 0.01),
    "top_k": (SAMPLED, 1),
    "seed": (SAMPLED, 6),
    "stop": ({"max_tokens": 12}, " "),
    "n": ({}, 2),
    "stream": ({}, True),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "return_token_ids": ({}, True),
    "return_tokens_as_token_ids": ({"logprobs": True}, True),
    "ignore_eos": ({"max_tokens": 40}, True),
    "max_tokens": ({}, 1),
    "logprobs": ({}, True),
    "presence_penalty": ({}, 0.5),
    "frequency_penalty": ({}, 0.5),
    "repetition_penalty": ({}, 0.5),
    "min_p": ({}, 0.5),
    "min_tokens": ({}, 5),
    "num_beams": ({}, 2),
    "logit_bias": ({}, {"5": 1}),
    "response_format": ({}, {"type": "json_object"}),
}
COMPLETION = GENERATION | {
    "prompt": ({}, "A red"),
    "echo": ({}, True),
    "truncation": (LONG, "left"),
    "best_of": ({}, 2),
    "suffix": ({}, "b"),
}
CONVERSATION = GENERATION | {
    "messages": ({}, [{"role": "user", "content": "What is 2 + 5?"}]),
    "max_completion_tokens": ({}, 1),
    "top_logprobs": ({"logprobs": True}, 2),
    "add_generation_prompt": ({}, False),
    "truncation": ({"messages": [{"role": "user", "content": "a" * 3000}]}, "left"),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "tools": ({}, [{"type": "function", "function": {"name": "add"}}]),
    "tool_choice": ({}, "required"),
    "parallel_tool_calls": ({}, False),
    "continue_final_message": ({}, True),
}
PAIR = NAMED | {
    "context": ({}, "A red"),
    "continuation": ({}, " red"),
    "context_input_ids": ({"continuation_input_ids": [50]}, IDS),
    "continuation_input_ids": ({"context_input_ids": IDS}, [51]),
    "messages": ({}, CHAT),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "truncation": ({"context": "a" * 3000}, "error"),
    "top_logprobs": ({}, 2),
    "requests": ({}, [{"context": "a", "continuation": "b"}]),
}
ROLLING = NAMED | {
    "text": ({}, "A red"),
    "input_ids": ({}, IDS),
    "top_logprobs": ({}, 2),
    "requests": ({}, [{"text": "a"}]),
}
ROUTES: dict[str, tuple[str, dict[str, Any], dict[str, tuple[dict[str, Any], Any]]]] = {
    "CompletionBody": ("/v1/completions", {"prompt": TEXT, "max_tokens": 6}, COMPLETION),
    "ChatBody": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 6}, CONVERSATION),
    "LoglikelihoodBody": (
        "/v1/eval/loglikelihood", {"context": TEXT, "continuation": " more."}, PAIR,
    ),
    "RollingBody": ("/v1/eval/loglikelihood/rolling", {"text": TEXT}, ROLLING),
    "TokenizeBody": (
        "/tokenize",
        {"prompt": TEXT},
        {**NAMED, "prompt": ({}, "A red"), "add_special_tokens": ({}, False)},
    ),
    "DetokenizeBody": (
        "/detokenize",
        {"tokens": [40, 563]},
        {**NAMED, "tokens": ({}, [40]), "skip_special_tokens": ({}, True)},
    ),
}  # fmt: skip
"""For each body: the route, a base, and for each field an addition to the base and a value."""


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """The answer, without the id and the time that each has."""
    answer = client.post(path, json=body)
    return answer.status_code, re.sub(r'"id":"[^"]*"|"created":\d+', "", answer.text)


@pytest.mark.parametrize("kind", ROUTES)
def test_every_field_changes_the_answer_or_is_listed_as_harmless(
    client: httpx.Client, kind: str
) -> None:
    from evalution_openai.server import bodies

    path, base, witnesses = ROUTES[kind]
    body = getattr(bodies, kind)
    harmless = set(bodies.Unread.model_fields) if issubclass(body, bodies.Unread) else set[str]()
    assert set(body.model_fields) == harmless | set(witnesses)
    for field, (addition, value) in witnesses.items():
        before = ask(client, path, base | addition)
        after = ask(client, path, base | addition | {field: value})
        assert before != after, field
        if after[0] != 200:
            assert after[0] in (400, 404)
            assert f'"param":"{field}"' in after[1] or field in after[1], after[1]
    plain = ask(client, path, base)
    assert plain[0] == 200
    assert ask(client, path, base | dict.fromkeys(harmless, "tenant-17")) == plain


def test_tool_choice_none_leaves_the_tools_out(client: httpx.Client) -> None:
    plain = {"messages": CHAT, "max_tokens": 6}
    asked = plain | {"tools": [{"type": "function"}], "tool_choice": "none"}
    assert ask(client, "/v1/chat/completions", asked) == ask(client, "/v1/chat/completions", plain)


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("response_format", {"type": "json_object"}, "ask for JSON in the prompt, and check what"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {}},
            "only 'text' is, as nothing",
        ),
        ("tools", [{"type": "function"}], "leave `tools` out, or describe them in a message"),
        ("tool_choice", {"type": "function"}, "only 'none' and 'auto' are, as nothing here"),
        ("presence_penalty", 1, "presence_penalty=1.0 is not supported; leave it out, or send 0"),
        ("parallel_tool_calls", False, "leave it out, or send True"),
    ],
)
def test_refusal_says_what_is_possible(
    client: httpx.Client, field: str, value: Any, advice: str
) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": CHAT, field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported", field)
    assert advice in error["message"]
