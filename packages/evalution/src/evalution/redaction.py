"""Masks known secrets at the runner's borders: in messages, logs, results and the journal.

Core recognises credentials by their form (in URLs, in authorization headers) and secret options by
their declaration. A runtime may also put a key into the text of an error, where only its value can
find it: the values that a run was given are registered here for as long as the process runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from evalution_core import redact, scrub
from evalution_core.redaction import REDACTED, SECRET_FIELD, is_secret_name

_SHORTEST = 8
"""Characters; a shorter text occurs within other words, and is no secret."""

_secrets: set[str] = set()


def register_secrets(value: object, *, is_secret: bool = False) -> None:
    """Register every secret in an engine, a model, a backend's options or any plain value.

    Secret are the values of options declared `secret()`, and of fields and keys that are named like
    a credential.
    """
    if isinstance(value, str):
        if is_secret:  # and the KEY of "Bearer KEY"
            found = (value, value.rpartition(" ")[2])
            _secrets.update(text for text in found if len(text) >= _SHORTEST)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            marked = bool(field.metadata.get(SECRET_FIELD)) or is_secret_name(field.name)
            register_secrets(getattr(value, field.name), is_secret=is_secret or marked)
    elif isinstance(value, Mapping):
        for key, member in cast("Mapping[object, object]", value).items():
            register_secrets(member, is_secret=is_secret or is_secret_name(str(key)))
    elif isinstance(value, list | tuple):
        for member in cast("list[object]", value):
            register_secrets(member, is_secret=is_secret)


def mask_text(text: str) -> str:
    """Return `text` without registered secrets, and without credentials of a known form."""
    for secret in tuple(_secrets):  # another thread may register one meanwhile
        text = text.replace(secret, REDACTED)
    return scrub(text)


def mask_value(value: object) -> Any:
    """Return a JSON-safe copy of `value`, every text in it masked."""
    return _mask(redact(value))


def _mask(value: object) -> object:
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {mask_text(key): _mask(member) for key, member in items}
    if isinstance(value, list):
        return [_mask(member) for member in cast("list[object]", value)]
    return value
