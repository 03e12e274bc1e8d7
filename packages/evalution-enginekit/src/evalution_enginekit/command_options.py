"""Options of a command that names an engine and a model, as KEY=VALUE on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from evalution_core import ConfigurationError, Model, did_you_mean

_PLACED = ("path", "tokenizer")
"""Fields of a model that have a place of their own, or no form as text."""


def option_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Values by name; they are JSON where they can be read as such, else text.

    Args:
        option: as it is written on the command line, for messages.
        pairs: each KEY=VALUE.

    Raises:
        ConfigurationError: one isn't.
    """
    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, separator, text = pair.partition("=")
        if not name or not separator:
            raise ConfigurationError(f"{option} {pair!r} is not KEY=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def model_fields(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Fields of a `Model` besides its path; errors as `option_pairs`, and for an unknown field."""
    given = option_pairs(option, pairs)
    known = [field.name for field in fields(Model) if field.name not in _PLACED]
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"{option} {name!r} is not a field of a model{did_you_mean(name, known)} "
                f"(fields: {', '.join(known)})"
            )
    return given
