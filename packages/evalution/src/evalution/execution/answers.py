"""What an engine's answer must hold to be scored; the contract doesn't check outputs when built."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import cast

from evalution.suites.suite import Answer
from evalution_core import GenerationOutput

_OPTIONAL_COUNTS = ("prompt_tokens", "completion_tokens", "truncated_tokens")
_ROUNDING = 1e-6
"""How far above zero a log-probability may be rounded."""


def fault_of(answer: Answer) -> str | None:
    """What is wrong with the values that are scored or counted, as a sentence; None if nothing is.

    A log-probability of minus infinity is one: the probability is zero.
    """
    if isinstance(answer, GenerationOutput):
        fault = _text_fault(answer.text)
    else:
        fault = _logprob_fault(answer.logprob) or _count_fault("token_count", answer.token_count)
    for name in _OPTIONAL_COUNTS:
        count: object = getattr(answer, name, None)
        if fault is None and count is not None:
            fault = _count_fault(name, count)
    return fault


def _text_fault(text: object) -> str | None:
    if not isinstance(text, str):
        return f"the engine gave {text!r} as a text"
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"the engine gave a text with a lone surrogate, which is no valid text: {text!a}"
    return None


def _logprob_fault(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"the engine gave {value!r} as a log-probability"
    number = float(cast(float, value))
    if math.isnan(number):
        return "the engine gave NaN as a log-probability"
    if number > _ROUNDING:
        return f"the engine gave {number} as a log-probability, which is above 0"
    return None


def _count_fault(name: str, count: object) -> str | None:
    try:
        is_count = operator.index(count) >= 0  # pyright: ignore[reportArgumentType]
    except TypeError:
        is_count = False
    return None if is_count else f"the engine gave {count!r} as {name}"
