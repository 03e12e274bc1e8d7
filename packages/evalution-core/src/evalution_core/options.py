"""An engine's options: what they are, whether a value fits, and how they are shown.

An engine is a stdlib dataclass. Its annotations are the one description of its options; from them
come strict validation (names and types, no bool for an int), the nearest name for a misspelt one,
the JSON schema, and which options are secret or don't change numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pydantic

from evalution_core.errors import ConfigurationError
from evalution_core.redaction import SECRET_FIELD, redact
from evalution_core.spelling import nearest_name

if TYPE_CHECKING:
    from evalution_core.engine import BaseEngine

_NEUTRAL_FIELD = "evalution.neutral"


def secret(*, default: Any = None) -> Any:
    """A dataclass field absent from `repr`, `to_dict`, logs, results and schema defaults."""
    return field(default=default, repr=False, metadata={SECRET_FIELD: True})


def neutral(*, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """A dataclass field that changes speed or memory but no number: no part of a run's identity."""
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata={_NEUTRAL_FIELD: True})
    return field(default=default, metadata={_NEUTRAL_FIELD: True})


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine by name and options, for an engine that contains another one."""

    kind: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])


def option_fields(engine: type[BaseEngine]) -> tuple[Field[Any], ...]:
    """The options a caller may set, in positional order."""
    try:
        return tuple(f for f in fields(engine) if f.init)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise ConfigurationError(
            f"engine {engine.__name__} must be a dataclass; put @dataclass(slots=True) above it"
        ) from error


def check_option_names(engine: type[BaseEngine], names: Iterable[str]) -> None:
    """Raise `ConfigurationError` for a name that isn't an option, with the nearest ones."""
    known = [f.name for f in option_fields(engine)]
    for name in names:
        if name not in known:
            near = nearest_name(str(name), known)
            hint = f"; did you mean {near!r}?" if near else ""
            listed = ", ".join(known) or "none"
            raise ConfigurationError(
                f"engine {engine.__name__} has no option {name!r}{hint} (options: {listed})"
            )


def validate_options(engine: BaseEngine) -> None:
    """Raise `ConfigurationError` for each option whose present value doesn't fit its type."""
    kind = type(engine)
    values = {f.name: getattr(engine, f.name) for f in option_fields(kind)}
    try:
        _validator(kind).model_validate(values, strict=True)
    except pydantic.ValidationError as error:
        raise _configuration_error(kind, error) from None


def parse_options(engine: type[BaseEngine], options: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments from a spec's mapping; a list becomes a tuple, a mapping a dataclass.

    Raises:
        ConfigurationError: an unknown name, a value of the wrong type, or one JSON can't hold.
    """
    check_option_names(engine, options)
    try:
        text = json.dumps(dict(options))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"engine {engine.__name__}: {error}") from error
    try:
        parsed = _validator(engine).model_validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise _configuration_error(engine, error) from None
    values = dict(zip((f.name for f in option_fields(engine)), dict(parsed).values(), strict=True))
    return {name: values[name] for name in options}


def options_schema(engine: type[BaseEngine]) -> dict[str, Any]:
    """JSON schema of the options; secret ones are `writeOnly` and show no default."""
    schema = _validator(engine).model_json_schema()
    shown: dict[str, dict[str, Any]] = {engine.__name__: schema, **schema.get("$defs", {})}
    for owner, names in _secrets(engine).items():
        for name in names:
            shown[owner]["properties"][name].pop("default", None)
            shown[owner]["properties"][name]["writeOnly"] = True
    return schema


def numeric_options(engine: BaseEngine) -> dict[str, Any]:
    """The redacted options that may change a number: all that are neither neutral nor secret."""
    return {
        f.name: redact(getattr(engine, f.name))
        for f in option_fields(type(engine))
        if not f.metadata.get(_NEUTRAL_FIELD) and not f.metadata.get(SECRET_FIELD)
    }


@cache
def _hints(engine: type[BaseEngine]) -> dict[str, Any]:
    try:
        return get_type_hints(engine, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"engine {engine.__name__}: the type of an option can't be resolved ({error}); "
            "option types must be importable at run time"
        ) from error


@cache
def _validator(engine: type[BaseEngine]) -> type[pydantic.BaseModel]:
    """A model whose fields are numbered and carry the options' names as aliases.

    A field of pydantic's may not be called `copy` or `model_config`; an option may.
    """
    hints = _hints(engine)
    numbered: dict[str, Any] = {}
    for number, option in enumerate(option_fields(engine)):
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
    return pydantic.create_model(engine.__name__, __config__=config, **numbered)


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


def _configuration_error(
    engine: type[BaseEngine], error: pydantic.ValidationError
) -> ConfigurationError:
    secrets = set[str]().union(*_secrets(engine).values())
    lines: list[str] = []
    for problem in error.errors(include_url=False):
        path = [str(part) for part in problem["loc"]]
        within = _secrets(_hints(engine)[path[0]]) if path else {}
        hidden = secrets.intersection(path) or any(within.values())
        got = "" if hidden else f", got {redact(problem['input'])!r}"
        name = ".".join(path)
        lines.append(f"option {name!r} of engine {engine.__name__}: {problem['msg']}{got}")
    return ConfigurationError("; ".join(lines))
