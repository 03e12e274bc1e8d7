"""Chat templates: foreign code in a sandbox, its refusals as ours, its environment complete."""

from __future__ import annotations

import pickle
import sys
from datetime import datetime
from typing import Any

import pytest

from evalution_core import EngineUnavailableError, InvalidRequestError
from evalution_enginekit import ChatTemplate

USER = {"role": "user", "content": "hi"}


def render(source: str, *messages: Any, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(list(messages or [USER]), **options)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages[0].update(role='x') %}",
        "{{ range(10 ** 9) }}",
    ],
)
def test_the_sandbox_refuses_what_a_prompt_does_not_need(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="the chat template refused the messages"):
        render(source)


@pytest.mark.parametrize("name", ["__class__", "__init__", "__dict__"])
def test_internals_read_as_nothing(name: str) -> None:
    assert render(f"{{{{ messages.{name} }}}}{{{{ raise_exception.{name} }}}}") == ""


def test_a_templates_own_reason_is_told() -> None:
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"
    with pytest.raises(InvalidRequestError, match=r"refused the messages: system first$"):
        render(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ bos_token + messages[0]['content'] }}", {"role": "user", "content": None}),
        ("{{ messages[0]['content'] | trim }}{{ messages[0].n // 0 }}", {**USER, "n": 1}),
        ("{{ messages[0]['content']['text'] + 'x' }}", USER),
        ("{{ bos_token + messages[0]['n'] }}", {**USER, "n": 1}),
        ("{% if %}", USER),
    ],
)
def test_messages_that_break_a_template_are_refused(source: str, message: Any) -> None:
    with pytest.raises(InvalidRequestError, match="the chat template refused the messages"):
        render(source, message)


def test_special_tokens_and_the_generation_prompt() -> None:
    source = "{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}"
    assert render(source) == "<s>>"
    assert render(source, add_generation_prompt=False) == "<s>"


def test_text_parts_are_joined_and_other_content_is_left_alone() -> None:
    source = "{{ messages[0]['content'] }}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(source, {"role": "user", "content": parts}) == "a\nb"
    mixed = [{"type": "text", "text": "a"}, {"type": "image_url"}]
    assert render("{{ messages[0]['content'] | length }}", {"content": mixed}) == "2"
    assert render(source, {"role": "assistant", "content": None}) == ""
    assert parts == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_tools_are_passed_on_and_absent_where_there_are_none() -> None:
    source = "{% if tools %}{{ tools | tojson }}{% else %}none{% endif %}"
    assert render(source, tools=[{"name": "é<"}]) == '[{"name": "é<"}]'
    assert render(source) == "none"
    assert render(source, tools=[]) == "none"


def test_json_keeps_order_and_takes_an_indent() -> None:
    message = {"role": "user", "content": "x", "b": 1, "a": "<&>"}
    assert render("{{ messages[0] | tojson }}", message) == (
        '{"role": "user", "content": "x", "b": 1, "a": "<&>"}'
    )
    assert render("{{ {'b': 1} | tojson(indent=2) }}") == '{\n  "b": 1\n}'


def test_blocks_leave_no_lines_behind() -> None:
    source = (
        "{% for m in messages %}\n    {%- if loop.first %}\nfirst\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "first\n"


def test_the_generation_tag_and_loop_controls() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}!{% endgeneration %}{% endfor %}"
    )
    assert render(source, USER, USER) == "hi!"


def test_the_date_is_todays() -> None:
    before, told = datetime.now().astimezone().date(), render("{{ strftime_now('%Y-%m-%d') }}")
    assert told in {before.isoformat(), datetime.now().astimezone().date().isoformat()}


def test_jinja_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        EngineUnavailableError, match=r'needs jinja2; pip install "evalution-enginekit\[tokenizers'
    ):
        render("{{ messages }}")


def test_a_template_crosses_processes() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    template.render([USER])
    assert pickle.loads(pickle.dumps(template)).render([USER]) == "<s>hi"
