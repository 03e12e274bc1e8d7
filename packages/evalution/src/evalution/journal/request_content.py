"""A request as canonical text: every field that reaches the engine, spelled in one way only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from evalution.exchange import Request
from evalution_core import (
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
)


class _UntoldContentError(ValueError):
    """A value that says nothing about its content, such as an image object."""


def request_content(request: Request) -> str | None:
    """All fields but `metadata`, as JSON; None where a value isn't told by its content.

    A list and a tuple are the same, and so are 1 and 1.0 for a field that is a float. A field that
    is None is left out: a field that comes later with None as its default changes no content.
    """
    kind = type(request)
    if kind not in _FIELDS:  # a subclass may hold anything
        return None
    label, spellings = _FIELDS[kind]
    told: dict[str, Any] = {"request": label}
    try:
        for name, spelled in spellings:
            if (value := getattr(request, name)) is not None:
                told[name] = value if spelled is None else spelled(value)
        return _ENCODER.encode(told)
    except _UntoldContentError:
        return None


def is_plain(request: Request) -> bool:
    """Whether all that a template can show of the request is roles and texts."""
    if isinstance(request, RollingLoglikelihoodRequest):
        return True
    if isinstance(request, GenerationRequest) and request.tools is not None:
        return False
    return all(_is_plain_message(message) for message in request.messages or ())


def _is_plain_message(message: Mapping[str, Any]) -> bool:
    if set(message) != {"role", "content"}:
        return False
    content: object = message["content"]
    if isinstance(content, str):
        return True
    return isinstance(content, list | tuple) and all(
        _is_plain_part(part) for part in cast(Sequence[object], content)
    )


def _is_plain_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    held = cast(Mapping[object, object], part)
    return set(held) == {"type", "text"} and held["type"] == "text"


def _flag(value: object) -> bool:
    return bool(value)


def _number(value: Any) -> object:
    try:
        return float(value) + 0.0  # -0.0 is 0.0
    except (TypeError, ValueError):  # the session will refuse it
        return value


def _value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        if not all(isinstance(key, str) for key in items):
            raise _UntoldContentError
        return {key: _value(member) for key, member in items.items()}
    if isinstance(value, list | tuple):
        return [_value(member) for member in cast(Sequence[object], value)]
    raise _UntoldContentError


def _foreign(value: object) -> object:
    """What JSON doesn't know: numbers and arrays of a library, and other sequences of ids."""
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(cast(Sequence[object], value))
    raise _UntoldContentError


# With ASCII alone, a character beyond 16 bits and its two surrogates would be spelled the same.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_foreign
)

_Spelling = Callable[[Any], object]
_SPELLINGS: dict[str, _Spelling] = {
    "messages": _value,
    "tools": _value,
    "add_generation_prompt": _flag,
    "do_sample": _flag,
    "ignore_eos": _flag,
    "temperature": _number,
    "top_p": _number,
}


def _spelled(kind: type[Request]) -> list[tuple[str, _Spelling | None]]:
    names = sorted(set(kind.__dataclass_fields__) - {"metadata", "_"})
    return [(name, _SPELLINGS.get(name)) for name in names]


_FIELDS: dict[type[Request], tuple[str, list[tuple[str, _Spelling | None]]]] = {
    GenerationRequest: ("generation", _spelled(GenerationRequest)),
    LoglikelihoodRequest: ("loglikelihood", _spelled(LoglikelihoodRequest)),
    RollingLoglikelihoodRequest: ("rolling", _spelled(RollingLoglikelihoodRequest)),
}
