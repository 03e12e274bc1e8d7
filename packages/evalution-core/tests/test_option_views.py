"""How options are shown: as a schema, as what changes the numbers, with their secrets hidden."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema
import pytest

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    ConfigurationError,
    Model,
    secret,
    speed_only,
)
from evalution_core.options import numeric_options


class Buildable(BaseEngine):
    """Spares the engines below their `build`."""

    __slots__ = ()

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


@dataclass(slots=True)
class CacheConfig:
    blocks: int = 4


@dataclass(slots=True)
class Acme(Buildable):
    dtype: Literal["auto", "float32"] = "auto"
    max_model_len: int = 512
    graphs: bool | tuple[bool, bool] = False
    cache: CacheConfig = field(default_factory=CacheConfig)
    batch_size: int | None = speed_only(default=None)
    hooks: dict[str, str] = speed_only(default_factory=dict)
    api_key: str | None = secret()


@dataclass(slots=True)
class Required(Buildable):
    url: str


def refusal(call: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        call(**options)
    return str(caught.value)


def test_the_schema_is_valid_and_accepts_what_from_options_accepts() -> None:
    schema = json.loads(json.dumps(Acme.options_schema(), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(schema)
    accepts = jsonschema.Draft202012Validator(schema)
    accepts.validate({"dtype": "float32", "cache": {"blocks": 3}, "graphs": [True, False]})
    for wrong in ({"devise": "cpu"}, {"dtype": "float8"}, {"max_model_len": "x"}):
        assert not accepts.is_valid(wrong)
    assert set(schema["properties"]) == set(Acme().to_dict())
    assert schema["additionalProperties"] is False


def test_the_schema_shows_defaults_but_none_of_a_secret() -> None:
    properties = Acme.options_schema()["properties"]
    assert properties["max_model_len"]["default"] == 512
    assert "default" not in properties["api_key"]
    assert properties["api_key"]["writeOnly"] is True
    assert not any("writeOnly" in shown for name, shown in properties.items() if name != "api_key")


def test_a_required_option_is_required_in_the_schema() -> None:
    assert Required.options_schema()["required"] == ["url"]


@dataclass(slots=True)
class Shadowing(Buildable):
    """Option names that pydantic's own base class uses for itself."""

    copy: int = 1
    json: bool = False


@dataclass(slots=True)
class Reserved(Buildable):
    model_config: int = 1
    model_dump: int = 1


@pytest.mark.parametrize("engine", [Shadowing, Reserved])
def test_any_name_may_be_an_option(engine: type[BaseEngine]) -> None:
    names = list(engine.options_schema()["properties"])
    assert engine.from_options({names[0]: 3}).to_dict()[names[0]] == 3
    with pytest.raises(ConfigurationError, match=f"option '{names[0]}' of engine"):
        engine.from_options({names[0]: "x"})


def test_a_secret_is_in_no_view_of_the_engine() -> None:
    engine = Acme(api_key="sk-12345678")
    assert "sk-12345678" not in repr(engine)
    assert "sk-12345678" not in json.dumps(engine.to_dict())
    assert engine.to_dict()["api_key"] == "***"
    assert "api_key" not in numeric_options(engine)
    assert Acme().to_dict()["api_key"] is None


@pytest.mark.parametrize("call", [Acme, lambda **options: Acme.from_options(options)])
def test_an_ill_typed_secret_is_refused_without_showing_it(call: Any) -> None:
    message = refusal(call, api_key=12345678)
    assert message == "option 'api_key' of engine Acme must be a string"


def test_neutral_options_leave_the_numeric_ones_as_they_are() -> None:
    plain = numeric_options(Acme())
    assert plain == numeric_options(Acme(batch_size=3, hooks={"a": "b"}, api_key="sk-12345678"))
    assert plain != numeric_options(Acme(dtype="float32"))
    assert set(plain) == set(Acme().to_dict()) - {"batch_size", "hooks", "api_key"}
    json.dumps(plain, allow_nan=False)


def test_neutral_options_keep_their_defaults_apart() -> None:
    one, other = Acme(), Acme()
    one.hooks["before"] = "a"
    assert other.hooks == {}


@dataclass(slots=True)
class Login:
    password: str | None = secret()
    user: str = ""


@dataclass(slots=True)
class Hosted(Buildable):
    login: Login = field(default_factory=Login)


def test_an_ill_typed_secret_of_a_nested_dataclass_is_refused_without_showing_it() -> None:
    assert "12345678" not in refusal(lambda: Hosted.from_options({"login": {"password": 12345678}}))


def test_a_value_in_place_of_a_dataclass_with_a_secret_is_not_shown() -> None:
    assert "hunter2" not in refusal(lambda: Hosted.from_options({"login": ["hunter2"]}))


def test_a_secret_of_a_nested_dataclass_is_write_only_in_the_schema() -> None:
    (shown,) = Hosted.options_schema()["$defs"].values()
    assert shown["properties"]["password"].get("writeOnly") is True
    assert "default" not in shown["properties"]["password"]
