"""Texts of the command line as values, and the subject that they name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from evalution_core import ConfigurationError, Model, did_you_mean
from evalution_guidellm.bench.subject import EngineSubject, ServedSubject


def counts(option: str, text: str | None) -> list[int]:
    """`1,8` as numbers.

    Raises:
        ConfigurationError: it holds something else than numbers from 1 on.
    """
    found = [part.strip() for part in text.split(",")] if text is not None else []
    if any(not part.isdecimal() or int(part) < 1 for part in found):
        raise ConfigurationError(f"{option} {text!r} is no list of counts; as {option} 1,8")
    return [int(part) for part in found]


def rates(option: str, text: str | None) -> list[float]:
    """`0.5,2` as numbers.

    Raises:
        ConfigurationError: it holds something else than numbers above 0.
    """
    try:
        found = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        found = [math.nan]
    if any(not 0 < rate < math.inf for rate in found):
        raise ConfigurationError(f"{option} {text!r} is no list of rates; as {option} 0.5,2")
    return found


def engine_subject(
    engine: str | None,
    model: str | None,
    options: Sequence[str] | None,
    model_fields: Sequence[str] | None,
    *,
    check_first: bool,
) -> EngineSubject:
    """The engine that the command line names.

    Raises:
        ConfigurationError: there is none, or an option isn't KEY=VALUE.
    """
    if engine is None:
        raise ConfigurationError(
            "nothing to measure: --engine NAME and a MODEL, or --target URL of a server"
        )
    given = _pairs("--model-field", model_fields)
    _check_fields(given)
    return EngineSubject(
        engine,
        _pairs("--option", options),
        {**given, **({"path": model} if model else {})},
        check_first,
    )


def served_subject(target: str, model: str | None, key_variable: str | None) -> ServedSubject:
    """The server that the command line names.

    Raises:
        ConfigurationError: the variable of the key isn't set.
    """
    if key_variable is None:
        return ServedSubject(target, model)
    key = os.environ.get(key_variable)
    if not key:
        raise ConfigurationError(
            f"--api-key-env {key_variable}: that environment variable is not set"
        )
    return ServedSubject(target, model, key)


def _pairs(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Values are JSON where they can be read as such, else text."""
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


def _check_fields(given: dict[str, Any]) -> None:
    known = [field.name for field in fields(Model) if field.name not in ("path", "tokenizer")]
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"--model-field {name!r} is not a field of a model{did_you_mean(name, known)} "
                f"(fields: {', '.join(known)})"
            )
