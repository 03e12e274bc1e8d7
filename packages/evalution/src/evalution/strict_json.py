"""JSON as every file of a run holds it, whatever a suite or an engine put into a value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON: NaN and infinity become null, and what isn't of JSON's types becomes text."""
    encoder = _ONE_LINE if indent is None else _encoder(indent)
    try:
        return encoder.encode(value)
    except (TypeError, ValueError):
        return encoder.encode(_finite(value))


def _encoder(indent: int | None) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    """A scalar of NumPy as Python's, anything else that JSON doesn't know as text."""
    if callable(item := getattr(value, "item", None)):
        try:
            return _finite(item())
        except (TypeError, ValueError):  # an array of several
            return str(value)
    return str(value)


_ONE_LINE = _encoder(None)
"""Made once: a run writes a line for each sample."""


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value)
        return {_key(key): _finite(item) for key, item in items.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in cast(Sequence[Any], value)]
    return value


def _key(key: Any) -> Any:
    return key if key is None or isinstance(key, str | int) else str(key)
