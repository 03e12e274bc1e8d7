"""JSON as it goes out."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json


def json_bytes(value: Any) -> bytes:
    """Compact JSON; a number that JSON can't spell becomes null."""
    return to_json(value, inf_nan_mode="null")
