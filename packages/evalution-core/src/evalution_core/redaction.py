"""Keeps credentials out of results, logs, errors and representations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

REDACTED = "***"
SECRET_FIELD = "evalution.secret"
"""Key in a dataclass field's metadata; `options.secret()` sets it."""

_NAMES = (
    r"(?:(?:api|secret|private|access)[-_]?key|authorization|cookie|credentials?"
    r"|passw(?:or)?d|secret|token)"
)
_SECRET_NAME = re.compile(rf"(?i)(^|[-_.]){_NAMES}$")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s?#]+(?=@)")
_URL_QUERY = re.compile(rf"(?i)([?&](?:[^=&\s]*[-_.])?(?:{_NAMES}|key|sig)=)[^&\s]+")
# A word of prose may follow "basic": a credential has more than small letters in it.
_BEARER = re.compile(
    r"\b(?:((?i:bearer))\s+[A-Za-z0-9._~+/=-]{6,}"
    r"|((?i:basic))\s+(?=\S*[A-Z0-9=])[A-Za-z0-9._~+/=-]{6,})"
)
_LEAST_HIDDEN = 8
"""Characters; a shorter secret stands in other words, and is no secret."""

_hidden: set[str] = set()
_VOCABULARY = re.compile(r"(?i)^(bos|eos|pad|unk|sep|cls|mask|eot|image|audio|think_end)_token$")


def is_secret_name(name: str) -> bool:
    """Whether a mapping's key (`hf_token`, `X-Api-Key`) names a credential."""
    return bool(_SECRET_NAME.search(name)) and not _VOCABULARY.match(name)


def hide(value: Any, *, is_secret: bool = False) -> None:
    """Have `scrub` take every credential in `value` out of any text, for as long as Python runs.

    An engine's options and a model's fields are hidden when they are made: a runtime may put a key
    into the message of an error, where nothing tells it from another word.
    """
    if isinstance(value, str):
        found = [value, value.rpartition(" ")[2]] if is_secret else []  # also KEY of "Bearer KEY"
        for pair in _URL_CREDENTIALS.findall(value):
            found += [pair, pair.partition(":")[2]]
        found += [match[0].partition("=")[2] for match in _URL_QUERY.finditer(value)]
        _hidden.update(text for text in found if len(text) >= _LEAST_HIDDEN)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            named = field.metadata.get(SECRET_FIELD, False) or is_secret_name(field.name)
            hide(getattr(value, field.name), is_secret=named)
    elif isinstance(value, Mapping):
        for key, member in cast("Mapping[Any, Any]", value).items():
            hide(member, is_secret=is_secret or is_secret_name(str(key)))
    elif isinstance(value, list | tuple):
        for member in cast("list[Any]", value):
            hide(member, is_secret=is_secret)


def scrub(text: str) -> str:
    """`text` without hidden values, the credentials of URLs and of authorization headers."""
    for value in tuple(_hidden):  # another thread may make an engine meanwhile
        text = text.replace(value, REDACTED)
    text = _URL_CREDENTIALS.sub(REDACTED, text)
    text = _URL_QUERY.sub(rf"\1{REDACTED}", text)
    return _BEARER.sub(lambda found: f"{found[1] or found[2]} {REDACTED}", text)


def redact(value: Any) -> Any:
    """A JSON-safe copy of `value` without credentials; a foreign object becomes its class name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Enum):
        return redact(value.value)
    if isinstance(value, PurePath):
        return scrub(str(value))
    if is_dataclass(value) and not isinstance(value, type):
        return redact_fields(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return {
            scrub(str(key)): REDACTED if _is_secret(str(key), item) else redact(item)
            for key, item in items.items()
        }
    if isinstance(value, set | frozenset):
        unordered = cast("frozenset[Any]", value)
        return sorted((redact(member) for member in unordered), key=repr)
    if isinstance(value, list | tuple):
        return [redact(member) for member in cast("list[Any]", value)]
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _is_secret(name: str, value: Any) -> bool:
    return is_secret_name(name) and bool(value) and not isinstance(value, bool)


def redact_fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass instance as JSON-safe values, secret ones replaced."""
    shown: dict[str, Any] = {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        marked = field.metadata.get(SECRET_FIELD, False) and value not in (None, "", {}, [], ())
        hidden = marked or _is_secret(field.name, value)
        shown[field.name] = REDACTED if hidden else redact(value)
    return shown
