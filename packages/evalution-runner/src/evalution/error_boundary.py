"""The runner's border to engines and suites of others.

Their exceptions become its own, and the values of their answers are checked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from numbers import Real
from typing import cast

from evalution.redaction import mask_text
from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    LoglikelihoodOutput,
    RollingLoglikelihoodOutput,
)
from evalution_core.requests import Output

_ROUNDING = 1e-6
"""A log-probability may be rounded this far above zero."""


class wrap_errors:
    """Raise what isn't an `EvalutionError` as `kind`, with the original as cause.

    An engine that calls `sys.exit` fails like any other: it may not end the run as a success.
    """

    # No generator: a border is crossed several times for each sample.
    __slots__ = ("_doing", "_kind")

    def __init__(self, doing: str, kind: type[EvalutionError] = EngineRuntimeError):
        self._doing = doing
        self._kind = kind

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, EvalutionError) or not isinstance(error, Exception | SystemExit):
            return
        text = f"{self._doing}: {type(error).__name__}: {error}"
        raise self._kind(mask_text(text)) from error


def clean_up(error: BaseException, *steps: Callable[[], object]) -> None:
    """Take every step after `error`; what else fails becomes a note: the first error counts."""
    for step in steps:
        try:
            with wrap_errors("cleaning up"):
                step()
        except EvalutionError as second:
            said = [str(error), *getattr(error, "__notes__", ())]
            if str(second) not in "\n".join(said):
                error.add_note(f"then {second}")


def to_plain_score(answer: Output) -> Output:
    """Return `answer` with Python's own float as its log-probability, exactly the same number.

    What is computed from a library's narrower float is rounded otherwise than what is computed from
    the float that is read back from a journal, and a near tie could fall the other way.
    """
    if isinstance(answer, LoglikelihoodOutput | RollingLoglikelihoodOutput) and (
        type(answer.logprob) is not float
    ):
        return replace(answer, logprob=float(answer.logprob))
    return answer


def find_answer_problem(answer: Output) -> str | None:
    """Return what is wrong with the values that are scored or counted; None if nothing is.

    The contract doesn't check outputs when they are made. A log-probability of minus infinity is
    valid: the probability is zero.
    """
    for name, find_problem in _find_checks(type(answer)):
        if problem := find_problem(getattr(answer, name)):
            return problem
    return None


def _find_text_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return f"the engine gave {text!r} as a text"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"the engine gave a text with a lone surrogate, which is no valid text: {text!a}"
    return None


def _find_logprob_problem(value: object) -> str | None:
    # The exact type first: asking an abstract class takes longer than all else here.
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        return f"the engine gave {value!r} as a log-probability"
    number = float(cast(float, value))
    if math.isnan(number):
        return "the engine gave NaN as a log-probability"
    if number > _ROUNDING:
        return f"the engine gave {number} as a log-probability, which is above 0"
    return None


def _find_count_problem(name: str, count: object) -> str | None:
    if type(count) is int and count >= 0:
        return None
    try:
        is_count = operator.index(count) >= 0  # pyright: ignore[reportArgumentType]
    except TypeError:
        is_count = False
    return None if is_count else f"the engine gave {count!r} as {name}"


def _find_optional_count_problem(name: str, count: object) -> str | None:
    return None if count is None else _find_count_problem(name, count)


_CHECKS: dict[str, Callable[[object], str | None]] = {
    "text": _find_text_problem,
    "logprob": _find_logprob_problem,
    "token_count": partial(_find_count_problem, "token_count"),
    **{
        name: partial(_find_optional_count_problem, name)
        for name in ("prompt_tokens", "completion_tokens", "truncated_tokens")
    },
}


@cache
def _find_checks(output: type[Output]) -> list[tuple[str, Callable[[object], str | None]]]:
    names = {field.name for field in fields(output)}
    return [(name, check) for name, check in _CHECKS.items() if name in names]
