"""Reasoning and tool calls in what a model writes, and conversations on their way to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
)
from inspect_ai.tool import ToolCall, ToolCallError

from evalution_core import InvalidRequestError, UnsupportedRequestError
from evalution_inspect.messages import (
    find_tool_format,
    make_messages,
    make_plain_prompt,
    split_tool_calls,
)
from evalution_inspect.outputs import split_reasoning

pytestmark = pytest.mark.wide

ARGUMENTS = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=12), max_size=4)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=4)


def read(calls: list[ToolCall]) -> list[tuple[str, dict[str, Any]]]:
    assert len({call.id for call in calls}) == len(calls)
    assert not any(call.parse_error for call in calls)
    return [(call.function, call.arguments) for call in calls]


@pytest.mark.parametrize(
    ("prompt", "text", "split"),
    [
        ("", "an answer", (None, "an answer")),
        ("", " kept as it is ", (None, " kept as it is ")),
        ("", "<think>\nhm\n</think>\n\nyes", ("hm", "yes")),
        ("…<assistant><think>\n", "hm</think>yes", ("hm", "yes")),
        ("…<think>", "it never ends", ("it never ends", "")),
        ("", "<think></think>yes", (None, "yes")),
        ("", "the tag is </think>, you see", (None, "the tag is </think>, you see")),
    ],
)
def test_reasoning_is_split_from_the_answer(
    prompt: str, text: str, split: tuple[str | None, str]
) -> None:
    assert split_reasoning(prompt, text) == split


@given(CALLS)
def test_hermes_calls_are_parsed(calls: list[tuple[str, dict[str, Any]]]) -> None:
    spelled = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    text = "I look.\n" + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in spelled)
    rest, found = split_tool_calls(text, "hermes")
    assert (rest, read(found)) == ("I look.", calls)


@given(CALLS)
def test_mistral_calls_are_parsed(calls: list[tuple[str, dict[str, Any]]]) -> None:
    listed = json.dumps([{"name": name, "arguments": given} for name, given in calls])
    for text in (listed, f"[TOOL_CALLS] {listed}"):
        rest, found = split_tool_calls(text, "mistral")
        assert (rest, read(found)) == ("", calls)


@given(NAMES, ARGUMENTS)
def test_llama3_call_is_parsed(name: str, arguments: dict[str, Any]) -> None:
    text = json.dumps({"name": name, "parameters": arguments})
    rest, found = split_tool_calls(text, "llama3")
    assert (rest, read(found)) == ("", [(name, arguments)])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("no call at all", "hermes"),
        ("[1] as Smith says", "mistral"),
        ('{"colour": "red"}', "llama3"),
        ('{"name": "Marie Curie", "born": 1867}', "llama3"),
        ('[{"name": "Marie Curie"}, {"name": "Lise Meitner"}]', "mistral"),
        ('{"answer": {"name": "x"}}', "llama3"),
        (" kept ", "hermes"),
    ],
)
def test_text_without_calls_is_unchanged(text: str, form: Any) -> None:
    assert split_tool_calls(text, form) == (text, [])


def _nest(levels: int) -> str:
    return '{"name": "a", "parameters": {"b": ' + "[" * levels + "]" * levels + "}}"


@pytest.mark.parametrize(
    ("text", "form", "why"),
    [
        ("<tool_call>{broken</tool_call>", "hermes", "can't be read"),
        ("<tool_call>[1]</tool_call>", "hermes", "it is no JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "hermes", "it has no name"),
        ('<tool_call>{"name": "a", "arguments": "b"}', "hermes", "its arguments are no JSON"),
        ('{"name": "a", "parameters": {', "llama3", "can't be read"),
        ('[TOOL_CALLS] [{"name": 5}]', "mistral", "it has no name"),
        (f"<tool_call>{_nest(200_000)}", "hermes", "can't be read, "),
        (f"[TOOL_CALLS][{_nest(200_000)}]", "mistral", "can't be read, "),
        (_nest(200_000), "llama3", "can't be read, "),
        (_nest(100), "llama3", "its arguments have more than 100 levels"),
    ],
)
def test_unreadable_call_has_a_parse_error(text: str, form: Any, why: str) -> None:
    _, (call,) = split_tool_calls(text, form)
    assert call.parse_error is not None
    assert why in call.parse_error


def test_deepest_call_that_is_read_can_be_logged() -> None:
    _, (call,) = split_tool_calls(_nest(99), "llama3")
    assert call.parse_error is None
    message = ChatMessageAssistant(content="", tool_calls=[call])
    assert message.model_dump_json().count("[") > 99


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3"),
    ],
)
def test_tool_format_is_found_in_the_template(template: str, form: str) -> None:
    assert find_tool_format(template) == form


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages }}", "doesn't know any: the model would never see them"),
        ("{{ tools }} in a form of its own", "-M tool_format=NAME"),
        ("{{ tools }}<tool_call><function=a>", "-M tool_format=NAME"),
        ("{{ tools }}[TOOL_CALLS]a[ARGS]{}", "-M tool_format=NAME"),
    ],
)
def test_unknown_tool_format_is_refused(template: str, said: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=said.replace("[", r"\[")):
        find_tool_format(template)


def test_messages_have_the_form_of_chat_templates() -> None:
    call = ToolCall("c1", "add", {"x": 1})
    messages = [
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(content=[ContentText(text="one"), ContentText(text="two")]),
        ChatMessageAssistant(
            content=[ContentReasoning(reasoning="hm"), ContentText(text="I add.")],
            tool_calls=[call],
        ),
        ChatMessageTool(content="3", tool_call_id="c1", function="add"),
        ChatMessageTool(content="", function="add", error=ToolCallError("timeout", "too slow")),
    ]
    spelled = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"x": 1}}}
    assert make_messages(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [spelled],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
        {"role": "tool", "content": "Error: too slow", "name": "add"},
    ]


def test_image_is_refused() -> None:
    image = ContentImage(image="data:image/png;base64,AAAA")
    with pytest.raises(UnsupportedRequestError, match="user message holds content of the type 'im"):
        make_messages([ChatMessageUser(content=[image])])


def test_plain_prompt_is_one_user_message_or_its_ids() -> None:
    assert make_plain_prompt([ChatMessageUser(content="a")]) == {"prompt": "a"}
    ids = ChatMessageUser(content="", metadata={"prompt_token_ids": [1, 2]})
    assert make_plain_prompt([ids]) == {"input_ids": [1, 2]}
    with pytest.raises(InvalidRequestError, match="messages of the roles: system, user"):
        make_plain_prompt([ChatMessageSystem(content="s"), ChatMessageUser(content="u")])
    with pytest.raises(InvalidRequestError, match="prompt_token_ids must be a list of ints, got 5"):
        make_plain_prompt([ChatMessageUser(content="", metadata={"prompt_token_ids": 5})])
