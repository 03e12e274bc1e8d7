"""Masking of credentials in results, logs, errors and representations: pure functions."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
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
_URL_QUERY = re.compile(rf"(?i)([?&](?:[^=&?\s]*[-_.])?(?:{_NAMES}|key|sig)=)[^&\s]+")
# A word of prose may follow "basic": a credential has more than small letters in it.
_BEARER = re.compile(
    r"\b(?:((?i:bearer))\s+[A-Za-z0-9._~+/=-]{6,}"
    r"|((?i:basic))\s+(?=\S*[A-Z0-9=])[A-Za-z0-9._~+/=-]{6,})"
)
_LEAST_HIDDEN = 8
"""Characters; a shorter secret stands in other words, and is no secret."""

_VOCABULARY = re.compile(r"(?i)^(bos|eos|pad|unk|sep|cls|mask|eot|image|audio|think_end)_token$")


def is_secret_name(name: str) -> bool:
    """Report whether a mapping's key (`hf_token`, `X-Api-Key`) names a credential."""
    return bool(_SECRET_NAME.search(name)) and not _VOCABULARY.match(name)


def find_secrets(value: object, *, is_secret: bool = False) -> frozenset[str]:
    """Return every credential in `value`: an engine, a model, a mapping of options, a URL.

    Those of `secret()` fields, under secret names, in URLs, and in environment variables that an
    option such as `api_key_env` names; at least 8 characters long. A
    runtime may put a key into the message of an error, where it looks like any
    other word: whoever writes messages gives these values to `redact_text`.
    """
    found: set[str] = set()
    if isinstance(value, str):
        if is_secret:
            found |= {value.strip(), *value.split()[-1:]}  # also KEY of "Bearer KEY"
        for pair in _URL_CREDENTIALS.findall(value):
            found |= {pair, pair.partition(":")[2]}
        found |= {match[0].partition("=")[2] for match in _URL_QUERY.finditer(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            member = getattr(value, field.name)
            named = field.metadata.get(SECRET_FIELD, False) or is_secret_name(field.name)
            found |= find_secrets(member, is_secret=named) | _read_variable(field.name, member)
    elif isinstance(value, Mapping):
        for key, member in cast("Mapping[Any, Any]", value).items():
            found |= find_secrets(member, is_secret=is_secret or is_secret_name(str(key)))
            found |= _read_variable(str(key), member)
    elif isinstance(value, list | tuple):
        for member in cast("list[Any]", value):
            found |= find_secrets(member, is_secret=is_secret)
    return frozenset(text for text in found if len(text) >= _LEAST_HIDDEN)


def _read_variable(name: str, value: object) -> set[str]:
    """Return the secret in the environment variable that an option like `api_key_env` names."""
    if isinstance(value, str) and name.endswith("_env") and is_secret_name(name[: -len("_env")]):
        return {os.environ.get(value, "").strip()}
    return set()


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without `secrets`, the credentials of URLs and of authorization headers.

    A secret with a line break is found in a `repr` of it too.
    """
    for value in secrets:
        text = text.replace(value, REDACTED).replace(repr(value)[1:-1], REDACTED)
    text = _URL_CREDENTIALS.sub(REDACTED, text)
    text = _URL_QUERY.sub(rf"\1{REDACTED}", text)
    return _BEARER.sub(lambda found: f"{found[1] or found[2]} {REDACTED}", text)


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return a JSON-safe copy of `value` without credentials and `secrets`.

    A foreign object becomes the name of its class.
    """
    known = tuple(secrets)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return redact(value.value, known)
    if isinstance(value, str | PurePath):
        return redact_text(str(value), known)
    if is_dataclass(value) and not isinstance(value, type):
        return redact_fields(value, known)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return {
            redact_text(str(key), known): REDACTED
            if _is_secret(str(key), item)
            else redact(item, known)
            for key, item in items.items()
        }
    if isinstance(value, set | frozenset):
        unordered = cast("frozenset[Any]", value)
        return sorted((redact(member, known) for member in unordered), key=repr)
    if isinstance(value, list | tuple):
        return [redact(member, known) for member in cast("list[Any]", value)]
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _is_secret(name: str, value: Any) -> bool:
    return is_secret_name(name) and bool(value) and not isinstance(value, bool)


def redact_fields(instance: Any, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass instance as JSON-safe values, secret ones replaced."""
    shown: dict[str, Any] = {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        marked = field.metadata.get(SECRET_FIELD, False) and value not in (None, "", {}, [], ())
        hidden = marked or _is_secret(field.name, value)
        shown[field.name] = REDACTED if hidden else redact(value, secrets)
    return shown


def redact_repr(instance: Any) -> str:
    """Return the `repr` of a dataclass instance, with credentials masked as in `redact_fields`."""
    masked = redact_fields(instance)
    shown: list[str] = []
    for field in fields(instance):
        if field.repr:
            plain, safe = repr(getattr(instance, field.name)), repr(masked[field.name])
            shown.append(f"{field.name}={safe if REDACTED in safe else plain}")
    return f"{type(instance).__qualname__}({', '.join(shown)})"
