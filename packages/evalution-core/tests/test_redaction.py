"""No credential is ever shown, and what is shown is JSON."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    EngineSpec,
    Model,
    redaction,
    secret,
)
from evalution_core.redaction import find_secrets, redact, redact_text


@dataclass(slots=True)
class Remote(BaseEngine):
    base_url: str = "http://localhost"
    headers: dict[str, Any] = field(default_factory=dict[str, Any])
    inner: EngineSpec | None = None
    api_key: str | None = secret()

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
# Begins and ends so that neither random text nor our own words can hold it.
secrets = st.text(ALPHABET, min_size=4, max_size=24).map(lambda middle: f"Zq{middle}qZ")
words = st.text(st.characters(exclude_characters="/@?&:Z", exclude_categories=["Cs"]), max_size=12)
SECRET_NAMES = [
    "api_key",
    "API-KEY",
    "apikey",
    "X-Api-Key",
    "Authorization",
    "cookie",
    "credentials",
    "password",
    "passwd",
    "client_secret",
    "hf_token",
    "HF_TOKEN",
    "use_auth_token",
]
carriers: list[Callable[[str], str]] = [
    lambda value: f"https://user:{value}@host.test/path",
    lambda value: f"https://{value}@host.test",
    lambda value: f"see http://u:{value}@h/a and ftp://v:{value}@h/b",
    lambda value: f"https://host.test/?api_key={value}&limit=3",
    lambda value: f"https://host.test/?limit=3&token={value}",
    lambda value: f"https://host.test/?access_token={value}",
    lambda value: f"Authorization: Bearer {value}",
    lambda value: f"refused: bearer {value}, sorry",
    lambda value: f"basic {value}",
]
holders: list[Callable[[Any], Any]] = [
    lambda value: [value],
    lambda value: (1, value),
    lambda value: {"kept": value},
    lambda value: {"deep": {"er": [value, None]}},
    lambda value: EngineSpec("Remote", {"base_url": value}),
]


@given(words, secrets, words, st.sampled_from(carriers))
def test_scrubbed_text_holds_no_credential(
    before: str, value: str, after: str, carry: Callable[[str], str]
) -> None:
    shown = redact_text(f"{before} {carry(value)} {after}")
    assert value not in shown
    assert "***" in shown


def test_credential_of_a_query_is_looked_for_from_the_last_question_mark() -> None:
    text = "?" * 5 + "my_token=hunter2"
    assert redact_text(text) == "?" * 5 + "my_token=***"
    found = redaction._URL_QUERY.search(text)  # pyright: ignore[reportPrivateUsage]
    assert found
    assert found.start() == 4, "from each of them, a long row takes minutes"


@given(words)
def test_text_without_credentials_is_left_as_it_is(text: str) -> None:
    assert redact_text(text) == text


@given(
    secrets, st.sampled_from(carriers), st.lists(st.sampled_from(holders), min_size=1, max_size=4)
)
def test_a_credential_in_text_is_redacted_at_any_depth(
    value: str, carry: Callable[[str], str], nesting: list[Callable[[Any], Any]]
) -> None:
    held: Any = carry(value)
    for hold in nesting:
        held = hold(held)
    shown = json.dumps(redact(held), allow_nan=False)
    assert value not in shown
    assert "***" in shown


@given(
    secrets,
    st.sampled_from(SECRET_NAMES),
    st.lists(st.sampled_from(holders), min_size=0, max_size=4),
)
def test_a_value_under_a_secret_name_is_redacted_at_any_depth(
    value: str, name: str, nesting: list[Callable[[Any], Any]]
) -> None:
    for secret_value in (value, [value], {"nested": value}):
        held: Any = {name: secret_value}
        for hold in nesting:
            held = hold(held)
        assert value not in json.dumps(redact(held), allow_nan=False)


@given(secrets, st.sampled_from(carriers), st.sampled_from(SECRET_NAMES))
def test_an_engine_and_a_model_show_no_secret(
    value: str, carry: Callable[[str], str], name: str
) -> None:
    engine = Remote(
        base_url=carry(value),
        headers={name: value, "nested": {name: value}},
        inner=EngineSpec("Remote", {name: value, "base_url": carry(value)}),
        api_key=value,
    )
    assert value not in json.dumps(engine.to_dict())
    assert value not in repr(engine)
    model = Model(
        carry(value), label=carry(value), model_kwargs={name: value}, tokenizer_kwargs={name: value}
    )
    assert value not in json.dumps(model.to_dict())
    assert value not in repr(model)
    assert value not in model.name


@pytest.mark.parametrize(
    "name",
    [
        "pad_token",
        "eos_token",
        "bos_token",
        "unk_token",
        "EOS_TOKEN",
        "mask_token",
        "think_end_token",
    ],
)
def test_a_token_of_the_vocabulary_is_no_secret(name: str) -> None:
    assert redact({name: "</s>"}) == {name: "</s>"}


@pytest.mark.parametrize("name", ["max_tokens", "token_ids", "tokenizer", "stop_token_ids", "key"])
def test_an_innocent_name_is_left_alone(name: str) -> None:
    assert redact({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("name", ["api_key", "hf_token"])
@pytest.mark.parametrize("empty", [None, "", [], {}])
def test_that_there_is_no_secret_is_shown(name: str, empty: Any) -> None:
    assert redact({name: empty}) == {name: empty}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


@given(json_values)
def test_json_without_text_is_its_own_redaction(value: Any) -> None:
    assert redact(value) == value


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ((1, (2,)), [1, [2]]),
        ({1: {None: "x"}}, {"1": {"None": "x"}}),
        (Colour.RED, "red"),
        (PurePosixPath("/models/tiny"), "/models/tiny"),
        (json.JSONDecoder(), "<json.decoder.JSONDecoder>"),
        (b"raw", "<builtins.bytes>"),
        (EngineSpec, "<builtins.type>"),
    ],
)
def test_what_json_can_not_hold_becomes_what_it_can(value: Any, shown: Any) -> None:
    assert redact(value) == shown
    json.dumps(redact(value), allow_nan=False)


def test_a_mixed_set_has_one_order() -> None:
    assert redact({"a", 1, None}) == redact({None, "a", 1})


@pytest.mark.parametrize("shown", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_is_json_safe(shown: str) -> None:
    assert json.dumps(redact({"x": float(shown)}), allow_nan=False) == f'{{"x": "{shown}"}}'


@pytest.mark.parametrize("name", ["add_bos_token", "add_eos_token"])
def test_a_switch_is_no_secret(name: str) -> None:
    assert redact({name: True}) == {name: True}


@pytest.mark.parametrize("name", ["secret_key", "aws_secret_access_key", "private_key"])
def test_keys_of_cloud_services_are_secrets(name: str) -> None:
    assert redact({name: "value"}) == {name: "***"}


def test_a_password_with_an_at_sign_is_redacted_whole() -> None:
    assert "ss" not in redact_text("http://user:p@ss@host/x")


@pytest.mark.parametrize("name", ["password", "auth_token", "client_secret", "hf_token"])
def test_a_secret_name_in_a_query_is_one_too(name: str) -> None:
    assert redact_text(f"https://host.test/?{name}=hunter2") == f"https://host.test/?{name}=***"


@dataclass(frozen=True)
class Careless:
    api_key: str | None = None
    pad_token: str | None = None


def test_a_field_with_a_secret_name_needs_no_mark() -> None:
    shown = redact(Careless(api_key="hunter2", pad_token="<pad>"))
    assert shown == {"api_key": "***", "pad_token": "<pad>"}


def test_credentials_in_a_key_are_scrubbed() -> None:
    assert redact({"http://me:hunter2@host": 1}) == {"http://***@host": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Careless(api_key="key-of-8-or-more"), "401 for key-of-8-or-more!"),
        ({"hf_token": "hf_planted_token"}, "hf_planted_token is not valid"),
        ({"headers": {"Authorization": "Bearer abcdefgh12"}}, "sent abcdefgh12"),
        ({"nested": [{"secret": ["planted-in-a-list"]}]}, "planted-in-a-list"),
        ("http://me:planted-password@host", "wrong password planted-password"),
        ("https://host/?sig=planted-signature", "bad signature planted-signature"),
    ],
)
def test_secret_of_an_engine_or_model_is_masked_in_any_text(value: object, text: str) -> None:
    assert redact_text(text) == text
    secrets = find_secrets(value)
    assert "***" in redact_text(text, secrets)
    assert "***" in str(redact({"message": [text]}, secrets))
    assert redact_text(text) == text, "nothing is remembered"


def test_secret_with_a_line_break_is_masked_in_a_repr_too() -> None:
    key = "planted-key\nand-a-line"
    for text in (f"refused: {key}", f"refused: {key!r}", f"refused: {key.encode()!r}"):
        assert "planted" not in redact_text(text, [key])


def test_what_is_short_or_no_secret_stays_in_texts() -> None:
    careless = Careless(api_key="EMPTY", pad_token="<padding-token>")
    assert find_secrets(careless) == find_secrets({"path": "a-long-enough-path"}) == frozenset()


def test_representation_is_that_of_a_dataclass_but_for_credentials() -> None:
    engine = Remote("http://me:hunter2@host", {"a": 1, "api_key": "k"}, api_key="sk-1")
    assert repr(engine) == (
        "Remote(base_url='http://***@host', headers={'a': 1, 'api_key': '***'}, inner=None)"
    )
    assert repr(Remote()) == "Remote(base_url='http://localhost', headers={}, inner=None)"
    assert repr(Model("a", model_kwargs={"n": (1, 2)})).startswith("Model(path='a', label=None, ")
    assert "model_kwargs={'n': (1, 2)}" in repr(Model("a", model_kwargs={"n": (1, 2)}))


def test_engine_with_its_own_representation_keeps_it() -> None:
    @dataclass(slots=True)
    class Own(Remote):
        def __repr__(self) -> str:
            return "own"

    assert repr(Own()) == "own"


def test_engine_that_is_no_dataclass_has_a_representation() -> None:
    class Plain(BaseEngine):
        def build(self, model: Model) -> BaseInferenceSession:
            raise NotImplementedError

    assert "Plain object at" in repr(object.__new__(Plain))


def test_key_in_a_named_environment_variable_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Hosted:
        api_key_env: str | None = "ACME_KEY"

    assert find_secrets(Hosted()) == frozenset()
    monkeypatch.setenv("ACME_KEY", "planted-in-the-environment")
    assert find_secrets(Hosted()) == {"planted-in-the-environment"}
    assert find_secrets({"api_key_env": "ACME_KEY"}) == {"planted-in-the-environment"}
    assert find_secrets({"path_env": "ACME_KEY"}) == frozenset()
    monkeypatch.setenv("ACME_KEY", "planted-in-the-environment\n")
    assert find_secrets(Hosted()) == {"planted-in-the-environment"}
    assert find_secrets({"api_key": "Bearer planted-in-a-file\n"}) == {
        "planted-in-a-file",
        "Bearer planted-in-a-file",
    }
