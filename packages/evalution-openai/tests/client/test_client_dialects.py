"""What servers of one kind are sent beyond OpenAI's fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalution_core import (
    Capability,
    ConfigurationError,
    GenerationRequest,
    InvalidRequestError,
    Model,
    UnsupportedRequestError,
)
from evalution_enginekit import ByteTokenizer, ChatTemplate

CHAT = [{"role": "user", "content": "Hi?"}]
OF_VLLM = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "top_k": -1,
}
OF_LLAMA_CPP = {
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "logit_bias": [],
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
}
OF_LLAMA_CPP_PYTHON = {"repeat_penalty": 1.0, "min_p": 0.0, "top_k": 0}
NEUTRAL = {
    "vllm": OF_VLLM,
    "sglang": OF_VLLM,
    "llamacpp": OF_LLAMA_CPP,
    "me": OF_LLAMA_CPP_PYTHON,
    "scripted": {},
}
"""By what a server says of itself in `owned_by`."""


def asked(session: Any, server: Any, **settings: Any) -> list[dict[str, Any]]:
    """The settings in the bodies that one request by text and one by messages are sent as."""
    requests = [
        GenerationRequest("a", max_new_tokens=2, **settings),
        GenerationRequest(messages=CHAT, max_new_tokens=2, **settings),
    ]
    session.generate(requests)
    others = {"model", "prompt", "messages", "max_tokens", "return_token_ids"}
    bodies = server.bodies("v1/completions")[-1], server.bodies("/chat/completions")[-1]
    return [{name: body[name] for name in body if name not in others} for body in bodies]


@pytest.mark.parametrize("owner", NEUTRAL)
def test_a_servers_own_sampling_settings_are_neutralised(
    connect: Callable[..., Any], server: Any, owner: str
) -> None:
    server.routes -= {"/tokenize"}
    server.owner = owner
    session = connect()
    greedy = {**NEUTRAL[owner], "temperature": 0.0}
    assert asked(session, server) == [greedy] * 2
    sampled = {**NEUTRAL[owner], "temperature": 0.7, "top_p": 1.0}
    assert asked(session, server, do_sample=True, temperature=0.7) == [sampled] * 2
    cut = {**sampled, "top_k": 5}
    assert asked(session, server, do_sample=True, temperature=0.7, top_k=5) == [cut] * 2


@pytest.mark.parametrize(
    ("dialect", "defaults"),
    [
        ("vllm", "neutral"),
        ("sglang", "neutral"),
        ("llamacpp", "neutral"),
        ("llama-cpp-python", "neutral"),
        ("evalution", "neutral"),
        ("openai", "the server's"),
        ("plain", "the server's"),
    ],
)
def test_description_says_whose_sampling_settings_apply(
    connect: Callable[..., Any], dialect: str, defaults: str
) -> None:
    described = connect(dialect=dialect, scoring="none").describe_execution()
    assert (described["dialect"], described["sampling_defaults"]) == (dialect, defaults)


@pytest.mark.parametrize("dialect", ["evalution", "openai", "plain"])
def test_servers_that_refuse_unknown_fields_are_sent_none(
    connect: Callable[..., Any], server: Any, dialect: str
) -> None:
    connect(dialect=dialect, scoring="none").generate([GenerationRequest("a", max_new_tokens=2)])
    bodies = server.bodies("v1/completions")
    assert bodies
    assert not {name for body in bodies for name in body} & (OF_VLLM.keys() | OF_LLAMA_CPP.keys())


def test_extra_fields_go_before_the_neutral_ones(connect: Callable[..., Any], server: Any) -> None:
    server.routes -= {"/tokenize"}
    extra = {"repetition_penalty": 1.2, "min_p": None}
    session = connect(dialect="sglang", extra_body=extra)
    settings = {name: value for name, value in OF_VLLM.items() if name != "min_p"}
    expected = {**settings, "repetition_penalty": 1.2, "temperature": 0.0}
    assert asked(session, server) == [expected] * 2


def test_probe_sends_the_same_fields_as_requests(connect: Callable[..., Any], server: Any) -> None:
    server.owner = "vllm"
    assert Capability.LOGLIKELIHOOD in connect().capabilities
    bodies = server.bodies("v1/completions")
    assert bodies
    assert all(OF_VLLM.items() <= body.items() for body in bodies)


def test_refused_neutral_field_is_named_with_a_remedy(
    connect: Callable[..., Any], server: Any, faulty: Callable[..., Any]
) -> None:
    server.routes -= {"/tokenize"}
    server.owner = "sglang"
    server.fails("/completions", faulty(400, "min_p, top_k: extra fields not permitted"))
    with pytest.raises(
        InvalidRequestError,
        match=r"not permitted; sent in place of the server's own setting: extra_body="
        r"\{'min_p': None, 'top_k': None\} leaves that to the server",
    ):
        connect().generate([GenerationRequest("a")])
    sampled = GenerationRequest("a", do_sample=True, temperature=1.0, top_k=9000)
    server.fails("/completions", faulty(400, "top_k is too large"))
    with pytest.raises(InvalidRequestError, match=r"top_k is too large$"):
        connect().generate([sampled])


def test_llama_cpp_pythons_server_lacks_ignore_eos(
    connect: Callable[..., Any], server: Any
) -> None:
    server.owner = "me"
    with pytest.raises(UnsupportedRequestError, match="ignore_eos"):
        connect().generate([GenerationRequest("a", ignore_eos=True)])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_kwargs": {"dtype": "float32"}},
            "takes no model.model_kwargs: the server loads the model; fields of its requests go "
            "into the engine's extra_body",
        ),
        (
            {"revision": "main"},
            "takes no model.revision: the server loads the model, so start it with the revision",
        ),
        (
            {"tokenizer_kwargs": {"use_fast": True}},
            "takes no model.tokenizer_kwargs: they are for a tokenizer that is loaded here; name "
            "one in tokenizer_path, or leave them out",
        ),
        (
            {"tokenizer_kwargs": {"use_fast": True}, "tokenizer": ByteTokenizer()},
            "takes no model.tokenizer_kwargs: they are for a tokenizer that is loaded here",
        ),
    ],
)
def test_fields_of_the_model_that_are_the_servers_are_refused(
    connect: Callable[..., Any], server: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"engine OpenAICompatible {message}"):
        connect(Model("scripted", **fields))
    assert not server.requests


THINKING_OFF = Model("scripted", chat_template_kwargs={"enable_thinking": False})
ASKS_FOR_A_THOUGHT = (
    "{{ messages[0].content }}"
    "{% if enable_thinking is defined and not enable_thinking %} now{% endif %}"
)


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp", "evalution"])
def test_a_server_that_renders_is_sent_the_variables_with_messages_alone(
    connect: Callable[..., Any], server: Any, owner: str
) -> None:
    server.routes -= {"/tokenize"}
    server.owner = owner
    requests = [GenerationRequest("a"), GenerationRequest(messages=CHAT)]
    options = {"dialect": owner, "scoring": "none", "model_name": "scripted"}
    connect(THINKING_OFF, **options).generate(requests)
    assert server.bodies("/chat/completions")[-1]["chat_template_kwargs"] == {
        "enable_thinking": False
    }
    assert "chat_template_kwargs" not in server.bodies("v1/completions")[-1]
    connect(**options).generate(requests)
    assert "chat_template_kwargs" not in server.bodies("/chat/completions")[-1]


@pytest.mark.parametrize("dialect", ["plain", "openai", "llama-cpp-python"])
def test_a_server_that_may_ignore_the_variables_is_refused(
    connect: Callable[..., Any], server: Any, dialect: str
) -> None:
    server.routes -= {"/tokenize"}
    with pytest.raises(ConfigurationError) as caught:
        connect(THINKING_OFF, dialect=dialect, scoring="none")
    assert str(caught.value) == (
        "engine OpenAICompatible takes no model.chat_template_kwargs: the server renders the "
        f"chat, and one of the dialect {dialect!r} isn't known to take variables for it; set "
        "tokenizer_path and api='completions' so that chats are rendered here, the option dialect "
        "if it is one of evalution, vllm, sglang, llamacpp, or, in extra_body, what it takes "
        "instead"
    )
    extra = THINKING_OFF.chat_template_kwargs
    asked = {"extra_body": {"chat_template_kwargs": extra}, "scoring": "none"}
    session = connect(Model("scripted"), dialect=dialect, **asked)
    session.generate([GenerationRequest(messages=CHAT)])
    assert server.bodies("/chat/completions")[-1]["chat_template_kwargs"] == extra


@pytest.mark.parametrize("options", [{"dialect": "vllm"}, {"api": "completions"}])
def test_variables_in_extra_body_are_refused(
    connect: Callable[..., Any], options: dict[str, Any]
) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(ConfigurationError) as caught:
        connect(Model("scripted"), extra_body=extra, **options)
    assert str(caught.value) == (
        "extra_body has chat_template_kwargs, which have no effect on chats that are rendered "
        "here; set chat_template_kwargs of the model instead, which hold wherever chats are "
        "rendered"
    )


def test_a_template_that_the_server_keeps_is_rendered_with_the_variables(
    connect: Callable[..., Any], server: Any
) -> None:
    server.has_template = True
    with pytest.raises(ConfigurationError, match="the server renders the chat, and one of the d"):
        connect(THINKING_OFF)
    server.owner = "vllm"
    session = connect(THINKING_OFF)
    session.generate([GenerationRequest(messages=CHAT, max_new_tokens=2)])
    assert session.tokenizer.chat_template.variables == {"enable_thinking": False}
    rendered = [body for body in server.bodies("/tokenize") if body.get("messages") == CHAT]
    assert [body["chat_template_kwargs"] for body in rendered] == [{"enable_thinking": False}]


@pytest.mark.parametrize(
    ("fields", "options"),
    [({}, {}), ({"enable_thinking": False}, {"api": "completions"})],
)
def test_a_local_template_is_rendered_with_the_variables(
    connect: Callable[..., Any],
    server: Any,
    fields: dict[str, Any],
    options: dict[str, Any],
) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = ChatTemplate(ASKS_FOR_A_THOUGHT)
    model = Model("scripted", tokenizer=tokenizer, chat_template_kwargs=fields)
    connect(model, **options).generate([GenerationRequest(messages=CHAT, max_new_tokens=2)])
    expected = "Hi? now" if fields else "Hi?"
    assert server.bodies("v1/completions")[-1]["prompt"] == [256, *expected.encode()]


def test_variables_without_a_renderer_are_refused(connect: Callable[..., Any], server: Any) -> None:
    server.routes -= {"/tokenize"}
    with pytest.raises(ConfigurationError, match="sets enable_thinking, and this model has no ch"):
        connect(THINKING_OFF, api="completions")
    server.requests.clear()
    with pytest.raises(ConfigurationError, match="may not set 'messages': a chat template is giv"):
        connect(Model("scripted", chat_template_kwargs={"messages": []}))
    assert not server.requests
