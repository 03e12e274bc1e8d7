"""Which requests are out, and what is wrong with an answer: nothing is dropped unseen."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalution.suites.suite import Answer, RequestKind, Sample
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
    """A sample whose requests are out; `error` is the first thing that went wrong with it."""

    sample: Sample
    waiting: set[int]
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    error: EvalutionError | None = None

    @property
    def in_order(self) -> Sequence[Answer]:
        """The answers in the order of the requests."""
        return [self.answers[position] for position in range(len(self.answers))]


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
        self._known = bytearray()

    def open(self, sample: Sample) -> list[Key]:
        """Note a sample as submitted; returns the keys of its requests.

        Raises:
            ConfigurationError: the suite gave this index before, or one below zero.
        """
        if sample.index >= len(self._known):
            self._known.extend(bytes(sample.index + 1 - len(self._known)))
        if sample.index < 0 or self._known[sample.index]:
            raise ConfigurationError(
                f"a suite's samples need an index of their own from 0, got {sample.index} "
                f"{'again' if sample.index >= 0 else ''}".rstrip()
            )
        positions = range(len(sample.requests))
        self._open[sample.index] = OpenSample(sample, set(positions))
        self._known[sample.index] = 1
        return [(sample.index, position) for position in positions]

    def accept(self, key: Hashable, answer: object) -> OpenSample | None:
        """Note an answer; returns its sample once that was the last one missing.

        Raises:
            UnexpectedAnswerError: the key is of no open request.
        """
        opened, position = self._find(key)
        if position not in opened.waiting:
            opened.error = EngineRuntimeError(
                f"the session answered request {position} of row {opened.sample.index} twice"
            )
        elif (problem := self._problem(answer)) is not None:
            opened.error = opened.error or problem
        else:
            opened.answers[position] = answer  # pyright: ignore[reportArgumentType]
        opened.waiting.discard(position)
        if opened.waiting:
            return None
        return self._open.pop(opened.sample.index)

    def unanswered(self) -> list[OpenSample]:
        """Samples that were never answered in full, marked with that error."""
        lost = sorted(self._open.values(), key=lambda opened: opened.sample.index)
        for opened in lost:
            missing = ", ".join(str(position) for position in sorted(opened.waiting))
            opened.error = opened.error or EngineRuntimeError(
                f"the session ended without an answer to request {missing}"
            )
        self._open.clear()
        return lost

    def _find(self, key: Hashable) -> tuple[OpenSample, int]:
        index, position = _as_key(key)
        opened = self._open.get(index)
        if opened is not None and 0 <= position < len(opened.sample.requests):
            return opened, position
        if 0 <= index < len(self._known) and self._known[index]:
            raise UnexpectedAnswerError(
                f"the session answered request {position} of row {index} after that row was done",
                index,
            )
        raise UnexpectedAnswerError(f"the session answered {key!r}, which nobody had asked")

    def _problem(self, answer: object) -> EvalutionError | None:
        if isinstance(answer, RequestFailure):
            return answer.error
        if not isinstance(answer, self._output):
            return EngineRuntimeError(
                f"the session answered with {answer!r}, not a {self._output.__name__}"
            )
        logprob = getattr(answer, "logprob", 0.0)
        if math.isnan(logprob):
            return EngineRuntimeError("the engine gave NaN as a log-probability")
        return None


def _as_key(key: Hashable) -> Key:
    match key:
        case (int(index), int(position)):
            return index, position
        case _:
            return -1, -1
