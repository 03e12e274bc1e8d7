"""Chat templates as Transformers renders them: equal strings, or a refusal by both."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_core import InvalidRequestError
from evalution_enginekit import ChatTemplate

transformers = pytest.importorskip(
    "transformers", reason="needs the environment torch of tools/envs"
)
pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

HEADERS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|header|>system<|end|>\\n\\nToday: ' + strftime_now('%Y') + '\\n' + system + '<|eot|>' }}
{%- for message in messages %}
    {{- '<|header|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""
CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TURNS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {% endif %}
    {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{ '<turn>' + role + '\\n' + message['content'] | trim + '<end>\\n' }}
{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"""
STRICT = """{%- set ns = namespace(last=none, count=0) -%}
{{ bos_token }}{%- for message in messages -%}
{%- if message.role == ns.last -%}{{ raise_exception('Twice ' ~ ns.last) }}{%- endif -%}
{%- set ns.last = message.role -%}{%- set ns.count = ns.count + 1 -%}
{%- if message.role == 'user' -%}{{ ' [INST] ' + message.content + ' [/INST]' }}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}
{%- else -%}{% continue %}{%- endif -%}{%- endfor -%}{{ ns.count }}"""
THINKING = """{%- macro told(message) -%}
{{ '<turn>' + message.role + '\\n' + message.content + (effort | tojson if effort else '') }}
{%- endmacro -%}
{%- set effort = effort if effort is defined else 'low' -%}
{%- for message in messages -%}{{ told(message) }}{%- endfor -%}
{%- if add_generation_prompt -%}<turn>model
{% if thinks is defined and thinks is false %}<think>\\n\\n</think>\\n\\n{% endif %}
{%- endif %}{{ effort }}"""
TOOLS = """{% if tools %}<tools>
{% for tool in tools %}
{{ tool | tojson }}
{{ tool | tojson(indent=2) }}
{{ tool | tojson(separators=(',', ':'), sort_keys=True) }}
{{ tool | tojson(ensure_ascii=True) }}
{% endfor %}
</tools>{% endif %}{% if documents is not none %}{{ documents | length }}{% endif %}
{% for m in messages %}{{ m.role }}: {{ m.content if m.content is not none else '' }}
{%- if m.tool_calls %}{% for call in m.tool_calls %}
{{ call.function.name }}({% for k, v in call.function.arguments.items() %}
{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})
{%- endfor %}{% endif %}

{% endfor %}"""
GENERATION = """{% for m in messages %}{% if m['role'] == 'assistant' %}
{% generation %}
{{ m['content'] + eos_token }}
{% endgeneration %}
{% else %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endif %}{% endfor %}"""
TEMPLATES = {
    "headers": HEADERS,
    "chatml": CHATML,
    "turns": TURNS,
    "strict": STRICT,
    "tools": TOOLS,
    "generation": GENERATION,
}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "  2 < 3 & é日\n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "few shots": [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "1+2"},
    ],
    "twice the user": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "a call": [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "look", "arguments": {"where": "Zürich", "n": 2}},
                }
            ],
        },
        {"role": "tool", "content": "sunny"},
    ],
    "empty": [{"role": "user", "content": ""}],
}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "<b>é</b>", "parameters": {"z": 1, "a": [2]}},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="</s>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIALS)


def by_transformers(tokenizer: Any, template: str, messages: Any, **options: Any) -> str | None:
    """None where the template refuses, or breaks on, the messages."""
    import jinja2

    try:
        return tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, **options
        )
    except (jinja2.TemplateError, TypeError):
        return None


def by_us(template: str, messages: Any, **options: Any) -> str | None:
    try:
        return ChatTemplate(template, SPECIALS).render(messages, **options)
    except InvalidRequestError:
        return None


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["", "tools"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_renders_the_prompt_of_transformers(
    tokenizer: Any, template: str, chat: str, tools: Any, add_generation_prompt: bool
) -> None:
    options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    theirs = by_transformers(tokenizer, TEMPLATES[template], CHATS[chat], **options)
    if tools and template != "tools":
        theirs = None  # a model that isn't shown the tools would be asked as if it were
    assert by_us(TEMPLATES[template], CHATS[chat], **options) == theirs


def test_the_cases_hold_prompts_and_refusals(tokenizer: Any) -> None:
    refused = {
        (template, chat)
        for template in TEMPLATES
        for chat in CHATS
        if by_transformers(tokenizer, TEMPLATES[template], CHATS[chat]) is None
    }
    assert refused == {
        ("chatml", "a call"),
        ("turns", "system"),
        ("turns", "twice the user"),
        ("turns", "a call"),
        ("strict", "twice the user"),
        ("strict", "a call"),
        ("generation", "a call"),
    }


@pytest.mark.parametrize(
    "variables",
    [
        {"thinks": False},
        {"thinks": True, "effort": "high"},
        {"effort": None},
        {"effort": ["a", {"b": 1.5}]},
    ],
)
def test_variables_are_rendered_alike(tokenizer: Any, variables: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    template = ChatTemplate(THINKING, SPECIALS).with_variables(variables)
    theirs = by_transformers(tokenizer, THINKING, messages, add_generation_prompt=True, **variables)
    assert theirs is not None
    assert template.render(messages) == theirs
