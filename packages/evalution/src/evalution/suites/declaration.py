"""A suite's options: strict names and types, from Python and from a spec alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evalution.rows.local import BUILTIN
from evalution_core import ConfigurationError, redact
from evalution_core.options import check_option_names, option_fields, option_problems

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


def validate_suite(suite: AnySuite) -> None:
    """Raise `ConfigurationError` for each option whose value doesn't fit its type."""
    if problems := option_problems(suite):
        lines = [text + _hint(getattr(suite, name)) for name, text in problems.items()]
        raise ConfigurationError("; ".join(lines))


def parse_options(
    suite: type[AnySuite], options: Mapping[str, Any], base: Path | None
) -> dict[str, Any]:
    """Constructor arguments from a spec's mapping; paths become relative to `base`.

    Raises:
        ConfigurationError: an unknown or missing name, or a value its option can't be made of.
    """
    check_option_names(suite, options)
    for option in option_fields(suite):
        has_default = option.default is not MISSING or option.default_factory is not MISSING
        if not has_default and option.name not in options:
            raise ConfigurationError(f"suite {suite.__name__} needs the option {option.name!r}")
    parsed = dict(options)
    for option in option_fields(suite):
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
    for option in option_fields(type(suite)):
        value: Any = getattr(suite, option.name)
        if show := option.metadata.get(_SHOW):
            value = show(value)
        if option.metadata.get(_IS_PATH) and isinstance(value, list | tuple):
            value = f"<{len(cast(Sequence[Any], value))} rows in memory>"
        shown[option.name] = redact(value)
    return shown


def path_options(suite: type[AnySuite]) -> list[str]:
    """The options that may name a file."""
    return [option.name for option in option_fields(suite) if option.metadata.get(_IS_PATH)]


def _placed(value: Any, base: Path | None) -> Any:
    if not isinstance(value, str) or base is None or value.startswith((BUILTIN, "~")):
        return value
    return str(base / value)


def _hint(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; in YAML, put a text that begins with { in quotes"
    members = cast(Sequence[Any], value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(member, bool) for member in members):
        return "; in YAML, put yes, no, on and off in quotes where text is meant"
    return ""
