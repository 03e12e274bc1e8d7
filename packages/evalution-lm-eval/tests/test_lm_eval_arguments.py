"""`--model_args` and generation settings: strict, and read as lm-eval reads them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.models.utils import normalize_gen_kwargs

from evalution_core import ConfigurationError, InvalidRequestError
from evalution_core.builtins import builtin_path
from evalution_enginekit.chat import ChatTemplate
from evalution_lm_eval.arguments import read_arguments
from evalution_lm_eval.requests import ChatPrompt, map_generation_settings, render_chat
from evalution_reference import Reference


def test_engine_model_and_bridge_arguments_are_distinguished() -> None:
    found = read_arguments(
        {
            "engine": "reference",
            "pretrained": "builtin:tiny",
            "dtype": "float64",
            "revision": 1234,
            "tokenizer": "elsewhere",
            "max_gen_toks": 32,
            "on_failure": "worst",
        }
    )
    assert found.engine == Reference(dtype="float64")
    assert (found.model.path, found.model.revision) == ("builtin:tiny", "1234")
    assert found.model.tokenizer_path == "elsewhere"
    assert (found.max_gen_toks, found.on_failure) == (32, "worst")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pretrained": "a"}, "model_args name no engine; for instance"),
        ({"engine": "Refrence"}, "Reference"),
        ({"engine": "Reference", "dtyp": 1}, "'dtyp', which is unknown; did you mean 'dtype'"),
        ({"engine": "Reference", "dtype": "int3"}, "option 'dtype' of engine Reference"),
        ({"engine": "Reference", "model": "a", "path": "b"}, "more than once: model, path"),
        (
            {"engine": "Reference", "tokenizer": "a", "tokenizer_path": "b"},
            "more than once: tokenizer, tokenizer_path",
        ),
        ({"engine": "Reference", "max_gen_toks": 0}, "max_gen_toks must be an int of at least 1"),
        ({"engine": "Reference", "on_failure": "raze"}, "must be raise or worst.*mean 'raise'"),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_arguments(arguments)


def test_device_is_an_option_of_engines_that_have_one() -> None:
    assert read_arguments({"engine": "Reference"}, "cuda:0").engine == Reference()
    with pytest.raises(ConfigurationError, match="Reference has no option 'device', so --device c"):
        read_arguments({"engine": "Reference"}, "cpu")


_LIMITS = st.one_of(st.none(), st.integers(1, 50))
_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "until": st.one_of(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=3)),
        "max_gen_toks": _LIMITS,
        "max_new_tokens": _LIMITS,
        "max_tokens": _LIMITS,
        "max_completion_tokens": _LIMITS,
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0, 0.0, 0.5, 1]),
    },
)


@given(_SETTINGS)
def test_generation_settings_mean_the_same_as_in_lm_eval(settings: dict[str, Any]) -> None:
    right: Any = normalize_gen_kwargs(settings, 256)
    found = map_generation_settings(settings)
    assert found["max_new_tokens"] == right["max_gen_toks"]
    assert found["stop"] == [stop for stop in right["until"] if stop]
    greedy = not right["do_sample"] or right.get("temperature") == 0
    assert found["do_sample"] is not greedy
    # Sampling at no named temperature is sampling at 1, as Transformers has it.
    assert found["temperature"] == (0 if greedy else right.get("temperature", 1.0))


def test_chat_prompt_pickles_and_is_json() -> None:
    prompt = ChatPrompt([{"role": "user", "content": "é"}])
    copy = pickle.loads(pickle.dumps(prompt))
    assert (copy, copy.messages) == ('[{"role": "user", "content": "é"}]', prompt.messages)


def _chats() -> list[list[dict[str, str]]]:
    texts = ["It is", " It is ", "a\n", "user"]
    return [
        [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": text}]
        for text in texts
    ]


@pytest.mark.parametrize("chat", _chats())
def test_begun_answer_is_rendered_as_by_transformers(
    chat: list[dict[str, str]],
) -> None:
    transformers = pytest.importorskip("transformers", reason="renders the same by itself")
    folder = builtin_path("builtin:tiny", "safetensors")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    template = ChatTemplate(theirs.chat_template, theirs.special_tokens_map)
    right = theirs.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert render_chat(template, chat, add_generation_prompt=False) == right


def test_template_without_a_system_role_gets_the_other_messages(caplog: Any) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}<{{ m.content }}>{% endfor %}"
    )
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert render_chat(ChatTemplate(source), chat, add_generation_prompt=True) == "<u>"
    assert "no system" in caplog.text
    refusing = ChatTemplate("{{ raise_exception('never') }}")
    with pytest.raises(InvalidRequestError, match="never"):
        render_chat(refusing, chat[1:], add_generation_prompt=True)
    with pytest.raises(InvalidRequestError, match="doesn't print the last message as it is"):
        render_chat(ChatTemplate("x"), chat[1:], add_generation_prompt=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_sample": True, "top_p": "much"}, "top_p must be above 0 and at most 1, got 'much'"),
        ({"max_gen_toks": -3}, "max_new_tokens must be"),
        ({"max_gen_toks": "x"}, "setting 'max_gen_toks' must be a number, got 'x'"),
        ({"temperature": "hot"}, "setting 'temperature' must be a number, got 'hot'"),
        ({"until": {"a": 1}}, "setting 'until' must be a text or a list of texts, got {'a': 1}"),
        ({"until": [3]}, "stop"),
    ],
)
def test_invalid_generation_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        map_generation_settings(settings)
