"""Texts of the command line as values, and the subject that they name."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from evalution_core import ConfigurationError, scrub
from evalution_enginekit import runtime as command_options
from evalution_guidellm.bench.subject import EngineSubject, ServedSubject

_MOST = 65_536
"""Requests at once; far more than one machine can ask, and what GuideLLM's queues still hold."""


def counts(option: str, text: str | None) -> list[int]:
    """`1,8` as numbers.

    Raises:
        ConfigurationError: it holds something else than numbers from 1 to 65536.
    """
    found = [part.strip() for part in text.split(",")] if text is not None else []
    if any(not part.isdecimal() or int(part) < 1 for part in found):
        raise ConfigurationError(f"{option} {text!r} is no list of counts; as {option} 1,8")
    if any(int(part) > _MOST for part in found):
        raise ConfigurationError(f"{option} {text!r}: at most {_MOST}")
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
    fields = command_options.model_fields("--model-field", model_fields)
    return EngineSubject(
        engine,
        command_options.option_pairs("--option", options),
        {**fields, **({"path": model} if model else {})},
        check_first,
    )


def served_subject(target: str, model: str | None, key_variable: str | None) -> ServedSubject:
    """The server that the command line names.

    Raises:
        ConfigurationError: the variable of the key isn't set, or the URL has credentials besides.
    """
    if key_variable is None:
        return ServedSubject(target, model)
    if _has_credentials(target):
        raise ConfigurationError(
            f"--target {scrub(target)} holds a name and password, which would be sent in place of "
            f"the key in {key_variable}: leave them out of the URL, or leave out --api-key-env"
        )
    key = os.environ.get(key_variable)
    if not key:
        raise ConfigurationError(
            f"--api-key-env {key_variable}: that environment variable is not set"
        )
    return ServedSubject(target, model, key)


def _has_credentials(url: str) -> bool:
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:  # no URL at all, which is told when the server is asked
        return False
