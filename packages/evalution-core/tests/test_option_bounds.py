"""Bounds and descriptions in the types of options, and options in a class of their own."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field, PositiveInt

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    Model,
    secret,
    speed_only,
    validate_options,
)


@dataclass(slots=True)
class Cache:
    blocks: Annotated[int, Field(ge=1, description="Blocks of the cache.")] = 4


@dataclass(slots=True)
class AcmeOptions:
    """Options of the Acme engine, in a class that imports no engine."""

    device: Annotated[str | None, Field(description="Device; None takes the first one.")] = None
    batch_size: Annotated[
        int | None, Field(ge=1, description="Prompts at once; None leaves it to the session.")
    ] = speed_only(default=None)
    window: Annotated[PositiveInt | Literal["auto"] | None, Field(description="Tokens.")] = None
    memory: Annotated[float, Field(gt=0, le=1)] = 0.9
    name: Annotated[str, Field(min_length=1)] = "a"
    gpus: list[Annotated[int, Field(ge=0)]] = field(default_factory=list[int])
    cache: Cache | None = None
    api_key: Annotated[str | None, Field(description="Key of the service.")] = secret()


@dataclass(slots=True)
class Acme(AcmeOptions, BaseEngine):
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.GENERATE})

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Acme(**options)
    with pytest.raises(ConfigurationError) as from_spec:
        Acme.from_options(options)
    assert str(from_spec.value) == str(caught.value)
    return str(caught.value)


REFUSALS: list[tuple[str, Any, str]] = [
    ("batch_size", 0, "option 'batch_size' of engine Acme must be at least 1, got 0"),
    ("batch_size", "2", "option 'batch_size' of engine Acme must be an integer, got '2'"),
    ("batch_size", True, "option 'batch_size' of engine Acme must be an integer, got True"),
    ("window", 0, "option 'window' of engine Acme must be at least 1 or 'auto', got 0"),
    ("window", "x", "option 'window' of engine Acme must be an integer or 'auto', got 'x'"),
    ("memory", 0, "option 'memory' of engine Acme must be above 0.0, got 0"),
    ("memory", 1.5, "option 'memory' of engine Acme must be at most 1.0, got 1.5"),
    ("gpus", [0, -1], "option 'gpus.1' of engine Acme must be at least 0, got -1"),
    ("name", "", "option 'name' of engine Acme: String should have at least 1 character, got ''"),
    ("api_key", 1, "option 'api_key' of engine Acme must be a string"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSALS)
def test_value_out_of_bounds_is_refused_with_the_bound(name: str, value: Any, message: str) -> None:
    assert refusal(**{name: value}) == message


def test_bound_of_a_nested_option_is_checked() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Acme.from_options({"cache": {"blocks": 0}})
    assert str(caught.value) == "option 'cache.blocks' of engine Acme must be at least 1, got 0"
    engine = Acme(cache=Cache(2))
    engine.cache = Cache(0)
    with pytest.raises(ConfigurationError, match=r"'cache\.blocks' of engine Acme must be at leas"):
        validate_options(engine)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": None, "window": None, "cache": None},
        {"batch_size": 1, "window": "auto"},
        {"window": 7, "memory": 1, "cache": Cache(1), "gpus": [0, 3]},
    ],
)
def test_values_within_bounds_are_accepted(options: dict[str, Any]) -> None:
    engine = Acme(**options)
    assert {name: getattr(engine, name) for name in options} == options


def test_schema_has_descriptions_and_bounds() -> None:
    schema = Acme.options_schema()
    shown = schema["properties"]
    assert shown["batch_size"]["description"] == "Prompts at once; None leaves it to the session."
    assert shown["batch_size"]["anyOf"] == [{"minimum": 1, "type": "integer"}, {"type": "null"}]
    assert {"const": "auto", "type": "string"} in shown["window"]["anyOf"]
    assert (shown["memory"]["exclusiveMinimum"], shown["memory"]["maximum"]) == (0, 1)
    assert shown["gpus"]["items"] == {"minimum": 0, "type": "integer"}
    assert schema["$defs"]["Cache"]["properties"]["blocks"] == {
        "default": 4,
        "description": "Blocks of the cache.",
        "minimum": 1,
        "title": "Blocks",
        "type": "integer",
    }
    assert shown["api_key"]["writeOnly"] is True
    assert shown["api_key"]["description"] == "Key of the service."


def test_options_class_gives_its_engine_names_order_and_defaults() -> None:
    engine = Acme("cuda", 2, api_key="sk-1")
    assert (engine.device, engine.batch_size, engine.memory) == ("cuda", 2, 0.9)
    assert list(engine.to_dict()) == list(AcmeOptions.__dataclass_fields__)
    with pytest.raises(ConfigurationError, match="engine Acme has no option 'devise'; did you mea"):
        Acme(devise="cpu")  # pyright: ignore[reportCallIssue]


def test_engine_with_an_options_class_is_slotted_and_pickles() -> None:
    engine = Acme("cuda", 2, api_key="sk-1", cache=Cache(3))
    assert not hasattr(engine, "__dict__")
    assert pickle.loads(pickle.dumps(engine)) == engine
    with pytest.raises(AttributeError):
        engine.devise = "cpu"  # pyright: ignore[reportAttributeAccessIssue]


def test_options_alone_are_a_plain_dataclass() -> None:
    assert AcmeOptions(batch_size=2).batch_size == 2
