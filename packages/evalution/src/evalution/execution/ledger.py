"""Which requests are out, and what is wrong with an answer: nothing is dropped unseen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from evalution.exchange import Answer
from evalution.execution.answers import fault_of, with_plain_score
from evalution.suites.suite import RequestKind, Sample
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    LoglikelihoodOutput,
    RequestFailure,
    RollingLoglikelihoodOutput,
)

Key = tuple[int, int]
"""The row's index, and which of its requests."""

_OUTPUTS: dict[RequestKind, type[Any]] = {
    RequestKind.GENERATION: GenerationOutput,
    RequestKind.LOGLIKELIHOOD: LoglikelihoodOutput,
    RequestKind.ROLLING: RollingLoglikelihoodOutput,
}


@dataclass(slots=True)
class OpenSample:
    """A sample whose requests are out; `failures` are what went wrong with them, by position."""

    sample: Sample
    waiting: set[int]
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    failures: dict[int, EvalutionError] = field(default_factory=dict[int, EvalutionError])

    @property
    def in_order(self) -> Sequence[Answer]:
        """The answers in the order of the requests."""
        return [self.answers[position] for position in range(len(self.answers))]

    @property
    def error(self) -> EvalutionError | None:
        """What its first failed request says, in whatever order the answers came."""
        return self.failures[min(self.failures)] if self.failures else None


class UnexpectedAnswerError(EngineRuntimeError):
    """An answer to no open request; `index` is the row it would withdraw, if there is one."""

    def __init__(self, message: str, index: int | None = None):
        super().__init__(message)
        self.index = index


class Ledger:
    """Samples between submission and their last answer.

    `open` may be called from another thread than the rest: a session reads its input on its own.
    """

    def __init__(self, kind: RequestKind):
        self._output = _OUTPUTS[kind]
        self._open: dict[int, OpenSample] = {}
        self._known: set[int] = set()

    def open(self, sample: Sample) -> list[Key]:
        """Note a sample as submitted; returns the keys of its requests.

        Raises:
            ConfigurationError: the suite gave this index before, or one that is no int from 0; or
                the sample asks for nothing.
        """
        is_known = sample.index in self._known
        if is_known or type(sample.index) is not int or sample.index < 0:
            raise ConfigurationError(
                f"a suite's samples need an index of their own from 0, got {sample.index!r}"
                f"{' again' if is_known else ''}"
            )
        if not sample.requests:
            raise ConfigurationError(f"the sample of row {sample.index} has no requests")
        positions = range(len(sample.requests))
        self._open[sample.index] = OpenSample(sample, set(positions))
        self._known.add(sample.index)
        return [(sample.index, position) for position in positions]

    def accept(self, key: Hashable, answer: object) -> tuple[OpenSample, int]:
        """Note an answer; returns its sample, done once it waits for nothing, and the position.

        Raises:
            UnexpectedAnswerError: the key is of no open request.
        """
        opened, position = self._find(key)
        if position not in opened.waiting:
            opened.answers.pop(position, None)
            opened.failures[position] = EngineRuntimeError(
                f"the session answered request {position} of row {opened.sample.index} twice"
            )
        elif (problem := self._problem(answer)) is not None:
            opened.failures[position] = problem
        else:
            opened.answers[position] = with_plain_score(cast(Answer, answer))
        opened.waiting.discard(position)
        if not opened.waiting:
            self._open.pop(opened.sample.index)
        return opened, position

    def withdraw(self, index: int, error: EvalutionError) -> OpenSample:
        """Take an open sample back, with the reason why it won't be answered."""
        opened = self._open.pop(index)
        opened.failures[0] = error
        return opened

    def unanswered(self) -> list[OpenSample]:
        """Samples that were never answered in full, marked with that error."""
        lost = sorted(self._open.values(), key=lambda opened: opened.sample.index)
        for opened in lost:
            missing = ", ".join(str(position) for position in sorted(opened.waiting))
            opened.failures[min(opened.waiting)] = EngineRuntimeError(
                f"the session ended without an answer to request {missing}"
            )
        self._open.clear()
        return lost

    def _find(self, key: Hashable) -> tuple[OpenSample, int]:
        index, position = _as_key(key)
        opened = self._open.get(index)
        if opened is not None and 0 <= position < len(opened.sample.requests):
            return opened, position
        if index in self._known:
            when = "after that row was done" if opened is None else "which has no such request"
            raise UnexpectedAnswerError(
                f"the session answered request {position} of row {index} {when}", index
            )
        raise UnexpectedAnswerError(f"the session answered {key!r}, which nobody had asked")

    def _problem(self, answer: object) -> EvalutionError | None:
        if isinstance(answer, RequestFailure):
            return _failure(answer.error)
        if not isinstance(answer, self._output):
            return EngineRuntimeError(
                f"the session answered with {answer!r}, not a {self._output.__name__}"
            )
        fault = fault_of(cast(Answer, answer))
        return None if fault is None else EngineRuntimeError(fault)


def _failure(error: object) -> EvalutionError:
    if isinstance(error, EvalutionError):
        return error
    return EngineRuntimeError(f"the session gave {error!r} as a request's failure")


def _as_key(key: Hashable) -> Key:
    match key:
        case (int(index), int(position)):
            return index, position
        case _:
            return -1, -1
