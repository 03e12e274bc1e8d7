"""Python source of values: calls and literals, broken into lines as a formatter would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

LINE = 88
_STEP = "    "


@dataclass(frozen=True, slots=True)
class Call:
    """`function(argument, name=argument)`; an argument is a value, a `Call` or a `Name`.

    A `first` argument of None is left out.
    """

    function: str
    arguments: Mapping[str, Any]
    first: Any = None


@dataclass(frozen=True, slots=True)
class Name:
    """An expression that stands as it is: `os.environ["KEY"]`."""

    source: str


def source_of(value: object, *, indent: int = 0, prefix: int = 0) -> str:
    """The expression for a value.

    A value that fits into a line after `prefix` characters stands in one, any other over several
    with one member in each, indented by `indent` steps of four spaces.

    Raises:
        ValueError: the value is none that source can be written for, such as an object.
    """
    flat = _flat(value)
    if len(_STEP) * indent + prefix + len(flat) <= LINE:
        return flat
    return _broken(value, indent) or flat


def _flat(value: object) -> str:
    opening, members, closing = _parts(value)
    if opening is None:
        return _literal(value)
    texts = [f"{label}{_flat(member)}" for label, member in members]
    comma = "," if opening == "(" and len(texts) == 1 else ""
    return f"{opening}{', '.join(texts)}{comma}{closing}"


def _broken(value: object, indent: int) -> str | None:
    opening, members, closing = _parts(value)
    if opening is None or not members:
        return None
    inner = _STEP * (indent + 1)
    lines = [
        # one more for the comma
        f"{inner}{label}{source_of(member, indent=indent + 1, prefix=len(label) + 1)},\n"
        for label, member in members
    ]
    return f"{opening}\n{''.join(lines)}{_STEP * indent}{closing}"


def _parts(value: object) -> tuple[str | None, Sequence[tuple[str, Any]], str]:
    """What opens and closes a value, and its members with their labels."""
    match value:
        case Call(function, arguments, first):
            given = [] if first is None else [("", first)]
            named = [(f"{name}=", argument) for name, argument in arguments.items()]
            return f"{function}(", [*given, *named], ")"
        case list():
            return "[", [("", member) for member in cast("list[Any]", value)], "]"
        case tuple():
            return "(", [("", member) for member in cast("tuple[Any, ...]", value)], ")"
        case Mapping():
            members = cast("Mapping[Any, Any]", value)
            return "{", [(f"{_literal(k)}: ", member) for k, member in members.items()], "}"
        case _:
            return None, [], ""


def _literal(value: object) -> str:
    match value:
        case Name(source):
            return source
        case str():
            return _text(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        case None | bool() | int() | float():
            return repr(value)
        case _:
            raise ValueError(f"no source can be written for {type(value).__qualname__}")


def _text(value: str) -> str:
    """The text in double quotes, as formatters write it, unless that needs more escapes."""
    if '"' in value and "'" not in value:
        return repr(value)
    body = repr(f"'{value}")[2:-1] if '"' not in value else repr(value)[1:-1]
    if '"' in value:
        body = body.replace("\\'", "'").replace('"', '\\"')
    return f'"{body}"'
