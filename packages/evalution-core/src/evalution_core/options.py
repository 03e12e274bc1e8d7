"""Options: their validation, and the ways in which they are shown.

An engine, or anything else that has options, is a stdlib dataclass. Its annotations are their one
description: `Annotated[int | None, Field(ge=1, description="Prompts at once.")]`, with pydantic's
`Field`. From them come strict validation (names, types and bounds, no bool for an int), the nearest
name for a misspelt one, the JSON schema, and which options are secret or change no number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, get_args, get_type_hints

import pydantic

from evalution_core.errors import ConfigurationError
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import SECRET_FIELD, redact

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOULD_BE = "Input should be "
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}
_SPEED_ONLY_FIELD = "evalution.speed_only"


class Declaration(Protocol):
    """A dataclass whose fields are options."""

    declared_as: ClassVar[str]
    """Its word in messages: `engine`."""


def secret(*, default: Any = None) -> Any:
    """A dataclass field absent from `repr`, `to_dict`, logs, results and schema defaults."""
    return field(default=default, repr=False, metadata={SECRET_FIELD: True})


def speed_only(*, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """A dataclass field that changes speed or memory but no number; no part of a run's identity."""
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata={_SPEED_ONLY_FIELD: True})
    return field(default=default, metadata={_SPEED_ONLY_FIELD: True})


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine by name and options, for an engine that contains another one."""

    kind: Annotated[str, pydantic.Field(description="Name of the engine.")]
    params: Annotated[Mapping[str, Any], pydantic.Field(description="Options of the engine.")] = (
        field(default_factory=dict[str, Any])
    )


def option_fields(kind: type[Declaration]) -> tuple[Field[Any], ...]:
    """The options a caller may set, in positional order."""
    try:
        return tuple(f for f in fields(kind) if f.init)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise ConfigurationError(
            f"{kind.declared_as} {kind.__name__} must be a dataclass; put @dataclass above it"
        ) from error


def check_option_names(kind: type[Declaration], names: Iterable[str]) -> None:
    """Raise `ConfigurationError` for a name that isn't an option, with the nearest one."""
    known = [f.name for f in option_fields(kind)]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{kind.declared_as} {kind.__name__} has no option {name!r}"
                f"{did_you_mean(str(name), known)} (options: {', '.join(known) or 'none'})"
            )


def validate_options(declaration: Declaration) -> None:
    """Raise `ConfigurationError` for each option whose present value doesn't fit its type."""
    if problems := option_problems(declaration):
        raise ConfigurationError("; ".join(problems.values()))


def option_problems(declaration: Declaration) -> dict[str, str]:
    """Return a message for each option whose present value doesn't fit, by option."""
    kind = type(declaration)
    values = {f.name: getattr(declaration, f.name) for f in option_fields(kind)}
    try:
        _validator(kind).model_validate(values, strict=True)
    except pydantic.ValidationError as error:
        return _problems(kind, error, values)
    return {}


def parse_options(kind: type[Declaration], options: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments from a spec's mapping; a list becomes a tuple, a mapping a dataclass.

    Raises:
        ConfigurationError: an unknown name, a value of the wrong type, or one JSON can't hold.
    """
    check_option_names(kind, options)
    spelled = {name: _as_json(kind, name, value) for name, value in options.items()}
    text = ",".join(f"{json.dumps(name)}:{value}" for name, value in spelled.items())
    try:
        parsed = _validator(kind).model_validate_json(f"{{{text}}}", strict=True)
    except pydantic.ValidationError as error:
        raise ConfigurationError("; ".join(_problems(kind, error, options).values())) from None
    values = dict(zip((f.name for f in option_fields(kind)), dict(parsed).values(), strict=True))
    return {name: values[name] for name in options}


def _as_json(kind: type[Declaration], name: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"option {name!r} of {kind.declared_as} {kind.__name__}: {error}"
        ) from error


def options_schema(kind: type[Declaration]) -> dict[str, Any]:
    """JSON schema of the options; secret ones are `writeOnly` and show no default."""
    schema = _validator(kind).model_json_schema()
    shown: dict[str, dict[str, Any]] = {kind.__name__: schema, **schema.get("$defs", {})}
    for owner, names in _secrets(kind).items():
        for name in names:
            shown[owner]["properties"][name].pop("default", None)
            shown[owner]["properties"][name]["writeOnly"] = True
    return schema


def numeric_options(declaration: Declaration) -> dict[str, Any]:
    """The redacted options that may change a number: all that are neither speed-only nor secret."""
    return {
        f.name: redact(getattr(declaration, f.name))
        for f in option_fields(type(declaration))
        if not f.metadata.get(_SPEED_ONLY_FIELD) and not f.metadata.get(SECRET_FIELD)
    }


@cache
def _hints(kind: type[Declaration]) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{kind.declared_as} {kind.__name__}: the type of an option can't be resolved "
            f"({error}); option types must be importable at run time"
        ) from error


@cache
def _validator(kind: type[Declaration]) -> type[pydantic.BaseModel]:
    """A model whose fields are numbered and carry the options' names as aliases.

    A field of pydantic's may not be called `copy` or `model_config`; an option may.
    """
    hints = _hints(kind)
    numbered: dict[str, Any] = {}
    for number, option in enumerate(option_fields(kind)):
        if option.default is not MISSING:
            settings = pydantic.Field(alias=option.name, default=option.default)
        elif option.default_factory is not MISSING:
            settings = pydantic.Field(alias=option.name, default_factory=option.default_factory)
        else:
            settings = pydantic.Field(alias=option.name)
        numbered[f"option_{number}"] = (hints[option.name], settings)
    config = pydantic.ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, revalidate_instances="always"
    )
    return pydantic.create_model(kind.__name__, __config__=config, **numbered)


def _secrets(root: Any) -> dict[str, set[str]]:
    """Names of the secret fields of every dataclass that a type reaches, by owner."""
    found: dict[str, set[str]] = {}
    waiting: list[Any] = [root]
    while waiting:
        kind = waiting.pop()
        waiting.extend(get_args(kind))
        if not isinstance(kind, type) or not is_dataclass(kind) or kind.__name__ in found:
            continue
        secrets = {f.name for f in fields(kind) if f.metadata.get(SECRET_FIELD)}
        found[kind.__name__] = secrets
        waiting.extend(get_type_hints(kind).values())
    return found


def _problems(
    kind: type[Declaration], error: pydantic.ValidationError, values: Mapping[str, Any]
) -> dict[str, str]:
    """Return a line for each option that is wrong."""
    found: dict[str, list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        found.setdefault(str(problem["loc"][0]), []).append(problem)
    return {name: _describe_problem(kind, name, found[name], values) for name in found}


def _describe_problem(
    kind: type[Declaration],
    option: str,
    problems: list[ErrorDetails],
    values: Mapping[str, Any],
) -> str:
    owner = f"{kind.declared_as} {kind.__name__}"
    if option not in values:
        return f"{owner} needs the option {option!r}"
    inner = [p for p in problems if len(p["loc"]) > 1 and p["input"] != values[option]]
    path = [str(part) for part in inner[0]["loc"]] if inner else [option]
    # A part that is neither a name nor an index is pydantic's own word for a member of a union.
    name = ".".join(part for part in path if part.isidentifier() or part.isdecimal())
    value = inner[0]["input"] if inner else values[option]
    secrets = set[str]().union(*_secrets(kind).values())
    hidden = secrets.intersection(path) or any(_secrets(_hints(kind)[option]).values())
    got = "" if hidden else f", got {format_value(redact(value))}"
    return f"option {name!r} of {owner}{_explain(inner or problems)}{got}"


def _explain(problems: list[ErrorDetails]) -> str:
    """Return ` must be …` for pydantic's problems with one value.

    Each member of a union has its own problem: together they say what is possible.
    """
    wanted = [_describe_bound(problem) for problem in problems]
    if all(wanted):
        return f" must be {' or '.join(dict.fromkeys(map(str, wanted)))}"
    return f": {' or '.join(dict.fromkeys(problem['msg'] for problem in problems))}"


def _describe_bound(problem: ErrorDetails) -> str | None:
    """Return what a value should be, without a verb; None where pydantic words it otherwise."""
    if problem["type"] in _BOUNDS:
        word, key = _BOUNDS[problem["type"]]
        bound = problem.get("ctx", {})[key]
        if isinstance(bound, int) and word in ("above", "below"):
            return f"at least {bound + 1}" if word == "above" else f"at most {bound - 1}"
        return f"{word} {bound}"
    text = problem["msg"]
    if problem["type"] in ("sequence_str", "is_instance_of") and "Sequence" in text:
        return "a list"
    if not text.startswith(_SHOULD_BE):
        return None
    wanted = text.removeprefix(_SHOULD_BE)
    return wanted.replace("a valid integer", "an integer").replace("a valid ", "a ")


def read_key(variable: str) -> str:
    """Return the key in an environment variable, without space around it; empty if it isn't set.

    Raises:
        ConfigurationError: it has a character that no HTTP header can carry.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            f"the key in {variable} has a line break or another character that an HTTP header "
            "can't carry; set the variable to the key alone"
        )
    return key


def format_value(value: object) -> str:
    """Return `repr`, also for an int with more digits than Python prints."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
