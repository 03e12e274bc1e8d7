"""What becomes of a run when samples fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from evalution.user_input import count_problem, shown_value
from evalution_core import ConfigurationError, EvalutionError, did_you_mean

OnError = Literal["record", "raise"]


class TooManyFailuresError(EvalutionError, RuntimeError):
    """More samples failed than the run was told to bear; what was finished is kept."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """`record` goes on after a failed sample, `raise` ends the run at the first.

    `max_failures` ends it once more samples than that have failed, counted over all suites.

    Raises:
        ConfigurationError: another word, or no count from 0.
    """

    on_error: OnError = "record"
    max_failures: int | None = None

    def __post_init__(self) -> None:
        words = get_args(OnError)
        if self.on_error not in words:
            raise ConfigurationError(
                f"on_error must be {' or '.join(words)}, got {shown_value(self.on_error)}"
                f"{did_you_mean(str(self.on_error), words)}"
            )
        bound = self.max_failures
        if bound is None:
            return
        is_count = type(bound) is int
        problem = count_problem(bound, least=0) if is_count else "must be a whole number"
        if problem is not None:
            raise ConfigurationError(f"max_failures {problem}, got {shown_value(bound)}")

    def check(self, failed: int, latest: str) -> None:
        """Raise `TooManyFailuresError` if `failed` samples are too many; `latest` is the last."""
        if self.on_error == "raise":
            raise TooManyFailuresError(f"{latest} (on_error: raise)")
        if self.max_failures is not None and failed > self.max_failures:
            raise TooManyFailuresError(
                f"{failed} samples failed, and max_failures is {self.max_failures}; the last: "
                f"{latest}"
            )
