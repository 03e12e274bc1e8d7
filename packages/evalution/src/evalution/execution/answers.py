"""What an engine's answer must hold to be scored; the contract doesn't check outputs when built."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from numbers import Real
from typing import cast

from evalution.exchange import Answer
from evalution_core import GenerationOutput

_OPTIONAL_COUNTS = ("prompt_tokens", "completion_tokens", "truncated_tokens")
_ROUNDING = 1e-6
"""How far above zero a log-probability may be rounded."""


def with_plain_score(answer: Answer) -> Answer:
    """`answer` with Python's own float as its log-probability, exactly the same number.

    What is computed from a library's narrower float is rounded otherwise than what is computed from
    the float that is read back of a journal: near ties would be decided anew.
    """
    if isinstance(answer, GenerationOutput) or type(answer.logprob) is float:
        return answer
    return replace(answer, logprob=float(answer.logprob))


def fault_of(answer: Answer) -> str | None:
    """What is wrong with the values that are scored or counted, as a sentence; None if nothing is.

    A log-probability of minus infinity is one: the probability is zero.
    """
    if isinstance(answer, GenerationOutput):
        fault = _text_fault(answer.text)
    else:
        fault = _logprob_fault(answer.logprob) or _count_fault("token_count", answer.token_count)
    for name in _OPTIONAL_COUNTS:
        if fault is None and (count := getattr(answer, name, None)) is not None:
            fault = _count_fault(name, count)
    return fault


def _text_fault(text: object) -> str | None:
    if not isinstance(text, str):
        return f"the engine gave {text!r} as a text"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"the engine gave a text with a lone surrogate, which is no valid text: {text!a}"
    return None


def _logprob_fault(value: object) -> str | None:
    # The exact type first: asking an abstract class takes longer than all else here.
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        return f"the engine gave {value!r} as a log-probability"
    number = float(cast(float, value))
    if math.isnan(number):
        return "the engine gave NaN as a log-probability"
    if number > _ROUNDING:
        return f"the engine gave {number} as a log-probability, which is above 0"
    return None


def _count_fault(name: str, count: object) -> str | None:
    if type(count) is int and count >= 0:
        return None
    try:
        is_count = operator.index(count) >= 0  # pyright: ignore[reportArgumentType]
    except TypeError:
        is_count = False
    return None if is_count else f"the engine gave {count!r} as {name}"
