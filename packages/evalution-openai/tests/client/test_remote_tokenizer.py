"""What the client makes of the facts that a server tells of its tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_core import EngineRuntimeError
from evalution_openai.client.tokenizer import RemoteTokenizer

CHAT = [{"role": "user", "content": "say"}]


@pytest.mark.parametrize(
    ("facts", "prompt"),
    [
        ({}, "say#<e>"),
        ({"special_tokens": None}, "say#<e>"),
        ({"special_tokens": {"sep_token": "~", "eos_token": None}}, "say~"),
    ],
)
def test_special_tokens_are_the_templates_or_the_tokenizers(
    facts: dict[str, Any], prompt: str
) -> None:
    source = "{{ messages[0]['content'] }}{{ sep_token }}{{ eos_token }}"
    as_vllm = {"chat_template": source, "sep_token": "#", "eos_token": "<e>"}
    template = RemoteTokenizer(
        lambda path, body: {"tokens": [1]}, "", None, {**as_vllm, **facts}
    ).chat_template
    assert template is not None
    assert template.render(CHAT) == prompt


@pytest.mark.parametrize(
    ("facts", "prompt"),
    [
        ({}, "default"),
        ({"tool_chat_template": None}, "default"),
        ({"tool_chat_template": "{{ tools }}"}, "[{}]"),
    ],
)
def test_template_for_tools_is_the_one_that_the_server_has_for_them(
    facts: dict[str, Any], prompt: str
) -> None:
    facts = {"chat_template": "{{ tools and 'default' }}", **facts}
    template = RemoteTokenizer(lambda path, body: {"tokens": [1]}, "", None, facts).chat_template
    assert template is not None
    assert template.render(CHAT, tools=[{}]) == prompt


@pytest.mark.parametrize("field", ["prompt", "text"])
def test_detokenized_text_is_read_in_the_forms_of_vllm_and_sglang(field: str) -> None:
    tokenizer = RemoteTokenizer(lambda path, body: {"tokens": [1], field: "say"}, "", None, {})
    assert tokenizer.decode([1]) == "say"


def test_detokenize_without_a_text_is_named() -> None:
    tokenizer = RemoteTokenizer(lambda path, body: {"tokens": [1]}, "", None, {})
    with pytest.raises(EngineRuntimeError, match="without a text in 'prompt' or 'text'"):
        tokenizer.decode([1])


def test_ids_that_a_caller_changes_are_not_those_of_the_next() -> None:
    tokenizer = RemoteTokenizer(lambda path, body: {"tokens": [72, 105]}, "", None, {})
    tokenizer.encode("Hi").append(33)
    assert tokenizer.encode("Hi") == [72, 105]
