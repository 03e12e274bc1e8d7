"""An engine's options: taken from specs, and refused by name and by type."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, Literal

import pytest

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    ConfigurationError,
    EngineSpec,
    Model,
    secret,
    speed_only,
    validate_options,
)


class Buildable(BaseEngine):
    """Spares the engines below their `build`."""

    __slots__ = ()

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


@dataclass(slots=True)
class CacheConfig:
    blocks: int = 4
    kind: Literal["paged", "flat"] = "paged"


@dataclass(slots=True)
class Acme(Buildable):
    device: str | None = None
    dtype: Literal["auto", "float32"] = "auto"
    max_model_len: int = 512
    utilization: float = 0.9
    eager: bool = False
    graphs: bool | tuple[bool, bool] = False
    gpus: list[int] = field(default_factory=list[int])
    cache: CacheConfig = field(default_factory=CacheConfig)
    draft: EngineSpec | None = None
    batch_size: int | None = speed_only(default=None)
    hooks: dict[str, str] = speed_only(default_factory=dict)
    api_key: str | None = secret()


@dataclass(slots=True)
class Checked(Buildable):
    """An author's own `__post_init__`, without `super()`."""

    low: int = 1
    high: int = 2

    def __post_init__(self) -> None:
        validate_options(self)
        if self.low > self.high:
            raise ConfigurationError(f"low={self.low} is above high={self.high}")


@dataclass(slots=True)
class Grandchild(Acme):
    device: str | None = "cpu"
    extra: int = 0


@dataclass(slots=True)
class Required(Buildable):
    url: str


class Plain(Buildable):
    """Forgot `@dataclass`."""

    device: str = "cpu"


@dataclass(slots=True)
class Bare(Buildable):
    """Has nothing to set."""


@dataclass(slots=True)
class Unresolvable(Buildable):
    """Annotated with a name that its module lacks at run time."""

    mesh: Mesh | None = None  # noqa: F821 # pyright: ignore[reportUndefinedVariable]


def refusal(call: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        call(**options)
    return str(caught.value)


# names


def test_an_unknown_option_names_the_nearest_and_lists_all() -> None:
    assert refusal(Checked, hgih=3) == (
        "engine Checked has no option 'hgih'; did you mean 'high'? (options: low, high)"
    )


def test_an_option_like_no_other_gets_the_list_alone() -> None:
    assert refusal(Checked, tensor_parallel_size=2) == (
        "engine Checked has no option 'tensor_parallel_size' (options: low, high)"
    )


def test_an_engine_without_options_says_so() -> None:
    assert refusal(Bare, device="cpu") == "engine Bare has no option 'device' (options: none)"


def test_a_spec_is_refused_with_the_same_words() -> None:
    with pytest.raises(ConfigurationError, match="has no option 'hgih'; did you mean 'high'"):
        Checked.from_options({"hgih": 3})


# types

WRONG: list[tuple[str, Any, str]] = [
    ("max_model_len", "512", "option 'max_model_len' of engine Acme must be "),
    ("max_model_len", True, "option 'max_model_len' of engine Acme must be "),
    ("max_model_len", 5.0, "option 'max_model_len' of engine Acme must be "),
    ("eager", 1, "option 'eager' of engine Acme must be "),
    ("device", 0, "option 'device' of engine Acme must be "),
    ("dtype", "float8", "option 'dtype' of engine Acme must be "),
    ("utilization", "high", "option 'utilization' of engine Acme must be "),
    ("gpus", [0, "1"], "option 'gpus.1' of engine Acme must be "),
    ("batch_size", 1.5, "option 'batch_size' of engine Acme must be "),
]


@pytest.mark.parametrize(("name", "value", "begin"), WRONG)
def test_an_ill_typed_option_is_named_with_what_came(name: str, value: Any, begin: str) -> None:
    shown = value[1] if isinstance(value, list) else value
    options: dict[str, Any] = {name: value}
    for call in (lambda: Acme(**options), lambda: Acme.from_options(options)):
        message = refusal(call)
        assert message.startswith(begin)
        assert message.endswith(f", got {shown!r}")


def test_a_literal_is_refused_with_its_choices() -> None:
    assert refusal(Acme, dtype="float8") == (
        "option 'dtype' of engine Acme must be 'auto' or 'float32', got 'float8'"
    )


def test_all_ill_typed_options_are_reported_at_once() -> None:
    message = refusal(Acme, device=3, max_model_len="x")
    assert "option 'device' of engine Acme" in message
    assert "; option 'max_model_len' of engine Acme" in message


def test_positional_options_are_checked_as_well() -> None:
    assert Acme("cuda:1").device == "cuda:1"
    with pytest.raises(ConfigurationError, match="option 'device' of engine Acme"):
        Acme(3)  # pyright: ignore[reportArgumentType]


def test_an_int_is_a_float_and_a_bool_is_no_int() -> None:
    assert Acme(utilization=1).utilization == 1
    with pytest.raises(ConfigurationError, match="option 'low' of engine Checked"):
        Checked(low=True)


def test_inherited_options_are_checked() -> None:
    assert Grandchild().device == "cpu"
    assert Grandchild(max_model_len=3, extra=2).to_dict()["max_model_len"] == 3
    with pytest.raises(ConfigurationError, match="option 'max_model_len' of engine Grandchild"):
        Grandchild(max_model_len="x")  # pyright: ignore[reportArgumentType]


def test_a_changed_option_is_caught_before_build() -> None:
    engine = Acme()
    engine.max_model_len = "512"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigurationError, match="option 'max_model_len' of engine Acme"):
        validate_options(engine)
    engine.max_model_len = 64
    validate_options(engine)


def test_a_changed_option_of_a_nested_dataclass_is_caught_before_build() -> None:
    engine = Acme(cache=CacheConfig(blocks=2))
    engine.cache.blocks = "two"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigurationError, match=r"option 'cache\.blocks' of engine Acme"):
        validate_options(engine)


def test_an_own_post_init_validates_and_adds_its_rule() -> None:
    assert Checked(low=2).low == 2
    assert refusal(Checked, low="2").startswith("option 'low' of engine Checked must be an integer")
    assert refusal(Checked, low=3) == "low=3 is above high=2"


# specs


def test_a_spec_becomes_what_the_types_say() -> None:
    engine = Acme.from_options(
        {
            "graphs": [True, False],
            "cache": {"blocks": 8, "kind": "flat"},
            "draft": {"kind": "Mock", "params": {"max_model_len": 8}},
            "utilization": 1,
            "hooks": {"before": "a"},
        }
    )
    assert engine.graphs == (True, False)
    assert engine.cache == CacheConfig(8, "flat")
    assert engine.draft == EngineSpec("Mock", {"max_model_len": 8})
    assert engine.gpus == []
    assert engine.hooks == {"before": "a"}
    validate_options(engine)


def test_an_engine_within_an_engine_can_not_be_changed_and_has_no_params_by_default() -> None:
    spec = EngineSpec("Mock")
    assert spec.params == {}
    with pytest.raises(FrozenInstanceError):
        spec.kind = "Other"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_spec_of_nothing_is_the_default_engine() -> None:
    assert Acme.from_options({}) == Acme()


def test_an_ill_typed_nested_option_is_named_by_its_path() -> None:
    message = refusal(lambda: Acme.from_options({"cache": {"blocks": "many"}}))
    assert message.startswith("option 'cache.blocks' of engine Acme must be an integer")
    assert message.endswith("got 'many'")


def test_an_unknown_nested_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"option 'cache\.block' of engine Acme"):
        Acme.from_options({"cache": {"block": 3}})


def test_a_missing_option_of_a_spec_is_named() -> None:
    message = refusal(lambda: Required.from_options({}))
    assert message == "engine Required needs the option 'url'"


def test_a_value_that_json_can_not_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"engine Acme: .*not JSON serializable"):
        Acme.from_options({"device": object()})


# authors' mistakes


def test_an_engine_that_is_no_dataclass_is_refused_with_advice() -> None:
    told = "engine Plain must be a dataclass; put @dataclass above it"
    assert refusal(Plain) == told
    assert refusal(Plain, device="cpu") == told
    with pytest.raises(ConfigurationError, match="must be a dataclass"):
        Plain.options_schema()


def test_a_type_that_can_not_be_resolved_is_named() -> None:
    assert refusal(Unresolvable) == (
        "engine Unresolvable: the type of an option can't be resolved (name 'Mesh' is not "
        "defined); option types must be importable at run time"
    )


@pytest.mark.parametrize(
    "engine", [Acme("cuda", api_key="sk-1", draft=EngineSpec("Mock")), Checked(2, 3), Grandchild()]
)
def test_engines_pickle_with_all_their_options(engine: BaseEngine) -> None:
    assert pickle.loads(pickle.dumps(engine)) == engine


def test_an_option_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="engine Checked has no option 1 "):
        Checked.from_options({1: 2})  # pyright: ignore[reportArgumentType]


@dataclass(slots=True)
class Listing(Buildable):
    stop: Sequence[str] = ()


@pytest.mark.parametrize("given", ["text", 3])
def test_value_that_is_no_list_is_refused_in_plain_words(given: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Listing(stop=given)  # pyright: ignore[reportArgumentType]
    told = f"option 'stop' of engine Listing must be a list, got {given!r}"
    assert str(caught.value) == told
