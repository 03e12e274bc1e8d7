"""A suite's options: strict names and types, from Python and from a spec alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import pydantic

from evalution.names import did_you_mean
from evalution.rows import BUILTIN
from evalution_core import ConfigurationError, redact

if TYPE_CHECKING:
    from evalution.suites.suite import AnySuite

_PARSE = "evalution.parse"
_SHOW = "evalution.show"
_IS_PATH = "evalution.path"
PATH = {_IS_PATH: True}
"""Metadata of a field that names a file; in a spec it is relative to the spec's folder."""


def parsed_by(parse: Callable[[object], Any], shown_by: Callable[[object], Any]) -> dict[str, Any]:
    """Metadata of a field whose value has one form in a spec and another in Python."""
    return {_PARSE: parse, _SHOW: shown_by}


def suite_fields(suite: type[AnySuite]) -> tuple[Field[Any], ...]:
    """The options a caller may set.

    Raises:
        ConfigurationError: the class is no dataclass.
    """
    try:
        return tuple(option for option in fields(suite) if option.init)
    except TypeError:
        raise ConfigurationError(
            f"suite {suite.__name__} must be a dataclass; put @dataclass(kw_only=True) above it"
        ) from None


def check_names(suite: type[AnySuite], names: Iterable[str]) -> None:
    """Raise `ConfigurationError` for a name that isn't an option, with the nearest one."""
    known = [option.name for option in suite_fields(suite)]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"suite {suite.__name__} has no option {name!r}{did_you_mean(name, known)} "
                f"(options: {', '.join(known)})"
            )


def validate_suite(suite: AnySuite) -> None:
    """Raise `ConfigurationError` for each option whose value doesn't fit its type."""
    kind = type(suite)
    values = {option.name: getattr(suite, option.name) for option in suite_fields(kind)}
    try:
        _options_model(kind).model_validate(values, strict=True)
    except pydantic.ValidationError as error:
        raise ConfigurationError("; ".join(_problems(suite, error))) from None


def parse_options(
    suite: type[AnySuite], options: Mapping[str, Any], base: Path | None
) -> dict[str, Any]:
    """Constructor arguments from a spec's mapping; paths become relative to `base`.

    Raises:
        ConfigurationError: an unknown or missing name, or a value its option can't be made of.
    """
    check_names(suite, options)
    for option in suite_fields(suite):
        has_default = option.default is not MISSING or option.default_factory is not MISSING
        if not has_default and option.name not in options:
            raise ConfigurationError(f"suite {suite.__name__} needs the option {option.name!r}")
    parsed = dict(options)
    for option in suite_fields(suite):
        if option.name not in options:
            continue
        if parse := option.metadata.get(_PARSE):
            parsed[option.name] = parse(options[option.name])
        if option.metadata.get(_IS_PATH):
            parsed[option.name] = _placed(options[option.name], base)
    return parsed


def shown_options(suite: AnySuite) -> dict[str, Any]:
    """All options as JSON-safe values, for results; rows given in memory are only counted."""
    shown: dict[str, Any] = {}
    for option in suite_fields(type(suite)):
        value: Any = getattr(suite, option.name)
        if show := option.metadata.get(_SHOW):
            value = show(value)
        if option.metadata.get(_IS_PATH) and isinstance(value, list | tuple):
            value = f"<{len(cast(Sequence[Any], value))} rows in memory>"
        shown[option.name] = redact(value)
    return shown


def _placed(value: Any, base: Path | None) -> Any:
    if not isinstance(value, str) or base is None or value.startswith((BUILTIN, "~")):
        return value
    return str(base / value)


@cache
def _options_model(suite: type[AnySuite]) -> type[pydantic.BaseModel]:
    hints = get_type_hints(suite)
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    model_fields: dict[str, Any] = {
        option.name: (hints[option.name], ...) for option in suite_fields(suite)
    }
    return pydantic.create_model(suite.__name__, __config__=config, **model_fields)


def _problems(suite: AnySuite, error: pydantic.ValidationError) -> list[str]:
    found: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False):
        found.setdefault(str(problem["loc"][0]), []).append(problem["msg"])
    lines: list[str] = []
    for name, messages in found.items():
        value = redact(getattr(suite, name))
        # A union reports each member's complaint: together they say what is possible.
        text = " or ".join(dict.fromkeys(messages))
        lines.append(
            f"option {name!r} of suite {type(suite).__name__}: {text}, got {value!r}{_hint(value)}"
        )
    return lines


def _hint(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; in YAML, put a text that begins with { in quotes"
    members = cast(Sequence[Any], value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(member, bool) for member in members):
        return "; in YAML, put yes, no, on and off in quotes where text is meant"
    return ""
