"""What may stand under `tests`: strict options, from Python and from a spec alike."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from evalution.rows.local import BUILTIN
from evalution.user_input import find_count_problem, format_value
from evalution_core import ConfigurationError, redact
from evalution_core.options import check_option_names, option_fields, option_problems

_PARSE = "evalution.parse"
_SHOW = "evalution.show"
_IS_PATH = "evalution.path"
PATH = {_IS_PATH: True}
"""Metadata of a field that names a file; in a spec it is relative to the spec's folder."""


@dataclass(kw_only=True)
class SuiteDeclaration(ABC):  # noqa: B024 - abstract is what it declares: Suite, SuiteSet
    """Base of suites and of sets of them. A subclass is a dataclass whose fields are its options.

    Names and types of the options are checked when it is constructed; a subclass puts further
    checks into `check_options`. `name` is the one in results; `batch_size` caps how many requests
    run at once.
    """

    declared_as: ClassVar[str] = "suite"

    name: str | None = None
    batch_size: int | None = None

    def __new__(cls, *args: Any, **options: Any) -> Self:
        check_option_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check all options as they stand now, and forget what was derived from earlier ones.

        Raises:
            ConfigurationError: an option is of a wrong type, or out of range.
        """
        for name in [name for name in vars(self) if _is_cached(type(self), name)]:
            delattr(self, name)
        validate_suite(self)
        if self.name is not None and not self.name.isprintable():
            raise self.wrong("name", "must be one line of text that can be shown")
        if self.batch_size is not None and (
            problem := find_count_problem(self.batch_size, least=1)
        ):
            raise self.wrong("batch_size", problem)
        self.check_options()

    def check_options(self) -> None:  # noqa: B027 - most have nothing to add
        """Raise `ConfigurationError` for values that fit their types and still make no sense."""

    @property
    def title(self) -> str:
        """The name in results."""
        return self.name or type(self).__name__

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, base: Path | None = None) -> Self:
        """What a spec's mapping declares; relative paths in it start from `base`.

        Raises:
            ConfigurationError: an unknown option, with the nearest name, or a value of a wrong
                type.
        """
        return cls(**parse_options(cls, options, base))

    def to_dict(self) -> dict[str, Any]:
        """All options as JSON-safe values."""
        return shown_options(self)

    def wrong(self, option: str, problem: str) -> ConfigurationError:
        """The error for an option whose value is out of range, to be raised."""
        return ConfigurationError(
            f"option {option!r} of suite {type(self).__name__} {problem}, "
            f"got {format_value(getattr(self, option))}"
        )


def parsed_by(parse: Callable[[object], Any], shown_by: Callable[[object], Any]) -> dict[str, Any]:
    """Metadata of a field whose value has one form in a spec and another in Python."""
    return {_PARSE: parse, _SHOW: shown_by}


def validate_suite(suite: SuiteDeclaration) -> None:
    """Raise `ConfigurationError` for each option whose value doesn't fit its type."""
    if problems := option_problems(suite):
        lines = [text + _hint(getattr(suite, name)) for name, text in problems.items()]
        raise ConfigurationError("; ".join(lines))


def parse_options(
    suite: type[SuiteDeclaration], options: Mapping[str, Any], base: Path | None
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


def shown_options(suite: SuiteDeclaration) -> dict[str, Any]:
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


def path_options(suite: type[SuiteDeclaration]) -> list[str]:
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


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)
