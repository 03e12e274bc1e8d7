"""Which model: what is refused at once, and what of it is shown."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest

from evalution_core import ConfigurationError, Model


def test_fields_keep_the_guides_order() -> None:
    assert [field.name for field in dataclasses.fields(Model)] == [
        "path",
        "label",
        "tokenizer",
        "tokenizer_path",
        "revision",
        "trust_remote_code",
        "model_kwargs",
        "tokenizer_kwargs",
        "chat_template_kwargs",
    ]
    assert Model("tiny", "my label").label == "my label"


def test_a_model_can_not_be_changed_and_pickles() -> None:
    model = Model("builtin:tiny", revision="main", model_kwargs={"dtype": "float32"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.path = "other"  # pyright: ignore[reportAttributeAccessIssue]
    assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize("name", ["path", "label", "tokenizer_path", "revision"])
@pytest.mark.parametrize("value", ["", 3, b"tiny"])
def test_a_name_that_is_no_text_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Model(**{name: value})
    assert str(caught.value) == f"model.{name} must be a non-empty string, got {value!r}"


@pytest.mark.parametrize("value", [1, "true", None])
def test_trust_is_a_bool(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Model("tiny", trust_remote_code=value)
    assert str(caught.value) == f"model.trust_remote_code must be true or false, got {value!r}"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Model("org/tiny"), "org/tiny"),
        (Model("org/tiny", label="Tiny 0.5M"), "Tiny 0.5M"),
        (Model(), "(the runtime's default model)"),
        (Model("https://me:hunter2@models.test/tiny"), "https://***@models.test/tiny"),
    ],
)
def test_the_shown_name(model: Model, name: str) -> None:
    assert model.name == name


def test_to_dict_is_json_with_tokenizer_objects_by_class_and_no_credentials() -> None:
    model = Model(
        "tiny",
        tokenizer=json.JSONDecoder(),
        model_kwargs={"hf_token": "hf_abc", "dtype": "float32"},
        tokenizer_kwargs={"pad_token": "<pad>"},
        chat_template_kwargs={"enable_thinking": False, "tags": ("a", None)},
    )
    shown = json.loads(json.dumps(model.to_dict(), allow_nan=False))
    assert shown == {
        "path": "tiny",
        "label": None,
        "tokenizer": "<json.decoder.JSONDecoder>",
        "tokenizer_path": None,
        "revision": None,
        "trust_remote_code": False,
        "model_kwargs": {"hf_token": "***", "dtype": "float32"},
        "tokenizer_kwargs": {"pad_token": "<pad>"},
        "chat_template_kwargs": {"enable_thinking": False, "tags": ["a", None]},
    }


@pytest.mark.parametrize("name", ["model_kwargs", "tokenizer_kwargs", "chat_template_kwargs"])
def test_keyword_arguments_are_a_mapping(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"model.{name} must be a mapping"):
        Model("tiny", **{name: 3})  # pyright: ignore[reportArgumentType]
