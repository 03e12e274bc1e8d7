"""Chat templates: foreign code in a sandbox, its refusals as ours, its environment complete."""

from __future__ import annotations

import math
import pickle
import sys
from datetime import date, datetime
from typing import Any

import pytest

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    InvalidRequestError,
    Model,
    RequestFailure,
)
from evalution_enginekit import ByteTokenizer, ChatTemplate
from evalution_enginekit.chat import bind_template
from evalution_enginekit.mock import MockSession

USER = {"role": "user", "content": "hi"}
THINKS = (
    "{{ bos_token }}{{ messages[0].content }}{% if depth is not defined %}{% set depth = 2 %}"
    "{% endif %}{{ '' if enable_thinking is defined and enable_thinking is false else '<think>' }}"
    "{{ depth }}"
)
"""Shaped like those of models that think unless they are told not to."""


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
def test_templates_cannot_read_internals(name: str) -> None:
    assert render(f"{{{{ messages.{name} }}}}{{{{ raise_exception.{name} }}}}") == ""


def test_refusal_of_a_template_has_its_own_reason() -> None:
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
        ("{{ messages[0]['n'] * 1e999 }}", {**USER, "n": 1}),
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


def test_tools_that_a_template_does_not_read_are_refused() -> None:
    for source in ("{{ messages[0].content }} tools", "{% set tools = 1 %}{{ tools }}"):
        assert render(source, tools=[]) is not None
        with pytest.raises(InvalidRequestError, match="reads none, so the model would never see"):
            render(source, tools=[{"name": "f"}])
    assert "f" in render("{% set tools = tools or [] %}{{ tools }}", tools=[{"name": "f"}])


def test_json_keeps_order_and_takes_an_indent() -> None:
    message = {"role": "user", "content": "x", "b": 1, "a": "<&>"}
    assert render("{{ messages[0] | tojson }}", message) == (
        '{"role": "user", "content": "x", "b": 1, "a": "<&>"}'
    )
    assert render("{{ {'b': 1} | tojson(indent=2) }}") == '{\n  "b": 1\n}'


def test_blocks_add_no_blank_lines() -> None:
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


def test_strftime_now_is_today() -> None:
    before, told = datetime.now().astimezone().date(), render("{{ strftime_now('%Y-%m-%d') }}")
    assert told in {before.isoformat(), datetime.now().astimezone().date().isoformat()}


def test_missing_jinja_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    told = r'needs jinja2; pip install "evalution-enginekit\[tokenizers'
    with pytest.raises(EngineUnavailableError, match=told):
        render("{{ messages }}")
    with pytest.raises(EngineUnavailableError, match=told):
        ChatTemplate(THINKS).with_variables({"enable_thinking": False})


def test_template_survives_pickling() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    template.render([USER])
    assert pickle.loads(pickle.dumps(template)).render([USER]) == "<s>hi"


def test_day_is_known_of_templates_that_show_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "{{ today or strftime_now('%d') }}"
    shows = ChatTemplate(own)
    assert shows.day == f"{datetime.now().astimezone().date()}"
    assert shows.with_variables({"today": "1 May"}).day is None
    assert ChatTemplate("{{ messages }}").day is None
    assert ChatTemplate("{{ raise_exception('no') or strftime_now('%d') }}").day == shows.day
    if_system = "{% if messages[0].role == 'system' %}{{ strftime_now('%d') }}{% endif %}"
    assert ChatTemplate(if_system).day == shows.day
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert shows.day is None


def test_bound_variables_survive_pickling() -> None:
    template = ChatTemplate(THINKS, {"bos_token": "<s>"})
    bound = template.with_variables({"enable_thinking": False})
    for each in (bound, pickle.loads(pickle.dumps(bound))):
        assert each.render([USER]) == "<s>hi2"
        assert each.source == THINKS
    assert bound.with_variables({"depth": 5}).render([USER]) == "<s>hi5"
    assert bound.with_variables({"enable_thinking": True}).render([USER]) == "<s>hi<think>2"
    assert template.render([USER]) == "<s>hi<think>2"


def test_a_variable_reaches_macros_and_loops() -> None:
    source = (
        "{% macro told(m) %}{{ m.content }}{{ tone }}{% endmacro %}"
        "{% for m in messages %}{{ told(m) }}{{ tone }}{% endfor %}"
    )
    assert ChatTemplate(source).with_variables({"tone": "!"}).render([USER]) == "hi!!"


@pytest.mark.parametrize(
    "name",
    ["messages", "add_generation_prompt", "tools", "documents", "pad_token", "image_token"],
)
def test_variables_that_every_template_gets_are_refused(name: str) -> None:
    template = ChatTemplate(f"{{{{ {name} }}}}", {"image_token": "<image>"})
    with pytest.raises(ConfigurationError) as caught:
        template.with_variables({name: "x"})
    assert str(caught.value) == (
        f"model.chat_template_kwargs may not set {name!r}: a chat template is given that one "
        "anyway; leave it out"
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (THINKS, "; did you mean 'enable_thinking'? (it reads: depth, enable_thinking)"),
        ("{{ messages[0].content }}{{ bos_token }}", " (it reads: none)"),
        ("{% set enable_thinkin = 1 %}{{ enable_thinkin }}", " (it reads: none)"),
    ],
)
def test_unread_variable_is_refused_with_the_nearest_name(source: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ChatTemplate(source).with_variables({"enable_thinkin": False})
    assert str(caught.value) == (
        f"the model's chat template reads no variable 'enable_thinkin'{told}; leave it out of "
        "chat_template_kwargs"
    )


def test_variables_of_both_templates_are_taken() -> None:
    template = ChatTemplate("{{ tone }}", tool_source="{{ depth }}{{ tools }}")
    bound = template.with_variables({"tone": "calm", "depth": 2})
    assert (bound.render([USER]), bound.render([USER], tools=[{}])) == ("calm", "2[{}]")
    with pytest.raises(ConfigurationError, match=r"no variable 'x' \(it reads: depth, tone\)"):
        template.with_variables({"x": 1})


def test_a_broken_template_for_tools_fails_its_request_alone() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = ChatTemplate("hi", tool_source="{{ tools }}{% endfor %}")
    plain, given = (
        GenerationRequest(messages=[USER], tools=tools, max_new_tokens=1) for tools in (None, [{}])
    )
    with MockSession("m", 64, 2, tokenizer) as session:
        found = dict(session.generate_continuous(enumerate([plain, given, plain])))
        failure = found[1]
        assert isinstance(failure, RequestFailure)
        assert isinstance(failure.error, InvalidRequestError)
        assert str(failure.error) == (
            "the chat template refused the messages: Encountered unknown tag 'endfor'."
        )
        assert not isinstance(found[0], RequestFailure)
        assert not isinstance(found[2], RequestFailure)


def test_a_broken_template_takes_no_variables() -> None:
    with pytest.raises(ConfigurationError, match="the model's chat template is broken: "):
        ChatTemplate("{% if %}").with_variables({"x": 1})


def test_a_model_without_a_template_takes_no_variables() -> None:
    assert bind_template(Model("m"), None) is None
    with pytest.raises(ConfigurationError) as caught:
        bind_template(Model("m", chat_template_kwargs={"a": 1, "b": 2}), None)
    assert str(caught.value) == (
        "model.chat_template_kwargs sets a, b, and this model has no chat template that could read "
        "it; leave it out, or set tokenizer_path to the tokenizer of the matching chat model"
    )


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("tone", date(2026, 7, 26), "'<datetime.date>'"),
        ("tone", {"a": [1, b"x"]}, "{'a': [1, '<builtins.bytes>']}"),
        ("tone", {1: "x"}, "{'1': 'x'}"),
        ("tone", [math.nan], "['nan']"),
    ],
)
def test_variables_must_be_json_values(name: Any, value: Any, got: str) -> None:
    template = ChatTemplate("{{ tone }}")
    with pytest.raises(ConfigurationError) as caught:
        template.with_variables({name: value})
    assert str(caught.value) == (
        f"model.chat_template_kwargs[{name!r}] must be text, a finite number, true, false, "
        f"null, or a list or mapping of those whose names are text, got {got}; quote what is meant "
        "as text"
    )
    with pytest.raises(ConfigurationError) as caught:
        bind_template(Model("m", chat_template_kwargs={1: "x"}), None)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        "a name in model.chat_template_kwargs must be text, got 1; quote it"
    )
    plain = {"a": [1, 2.5, None, True, ("x",)]}
    assert template.with_variables({"tone": plain}).variables == {"tone": plain}
