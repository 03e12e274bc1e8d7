"""What the client makes of the facts that a server tells of its tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

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
