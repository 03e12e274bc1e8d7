"""Where finished answers are kept while a suite runs, as the execution sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from evalution.exchange import Answer
from evalution.suites.suite import Sample
from evalution_core import EvalutionError, RequestFailure


class AnswerStore(Protocol):
    """Answers of one suite, by sample and position of the request.

    `recall` may be called from the thread on which a session reads its input.
    """

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to recall for any sample."""
        ...

    def recall(self, sample: Sample) -> Mapping[int, Answer | RequestFailure]:
        """The answers that are known already, by position."""
        ...

    def keep(self, sample: Sample, position: int, answer: Answer) -> None:
        """Keep an answer.

        Raises:
            EngineRuntimeError: it holds a value that can't be written down.
        """
        ...

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        """Keep why a request has no answer; returns the error as `recall` will give it."""
        ...

    @property
    def faults(self) -> Sequence[str]:
        """What `keep_fault` was told of this suite, now or in an earlier part of the run."""
        ...

    def keep_fault(self, text: str) -> None:
        """Keep a fault of the session that belongs to no sample."""
        ...

    def withdraw(self, index: int, error: EvalutionError) -> EvalutionError:
        """Keep why a row's answers can't be trusted; returns the error as `recall` will give it.

        `recall` gives it for each of the row's requests, whatever was kept of them.
        """
        ...

    def flush(self) -> None:
        """Have all that was kept on disk when this returns."""
        ...


class NoAnswers:
    """Keeps nothing, for a run without a folder."""

    is_empty = True
    faults: Sequence[str] = ()

    def recall(self, sample: Sample) -> Mapping[int, Answer | RequestFailure]:
        return {}

    def keep(self, sample: Sample, position: int, answer: Answer) -> None: ...

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        return error

    def keep_fault(self, text: str) -> None: ...

    def withdraw(self, index: int, error: EvalutionError) -> EvalutionError:
        return error

    def flush(self) -> None: ...
