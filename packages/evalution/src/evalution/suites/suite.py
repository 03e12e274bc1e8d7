"""What a suite is: a declaration that turns rows into requests, and answers into scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from evalution.error_boundary import wrap_errors
from evalution.exchange import Request
from evalution.scoring.metrics import Measure, Metric, Score
from evalution.scoring.tally import MeasureTally, Tally
from evalution.suites.declaration import SuiteDeclaration
from evalution_core import (
    Capability,
    ConfigurationError,
    GenerationOutput,
    LoglikelihoodOutput,
    Message,
    RollingLoglikelihoodOutput,
)


class RequestKind(StrEnum):
    """Which call of a session serves a suite's requests."""

    GENERATION = "generation"
    LOGLIKELIHOOD = "loglikelihood"
    ROLLING = "rolling"

    @property
    def capability(self) -> Capability:
        """What an engine has to be able to do for it."""
        return _CAPABILITIES[self]


_CAPABILITIES = {
    RequestKind.GENERATION: Capability.GENERATE,
    RequestKind.LOGLIKELIHOOD: Capability.LOGLIKELIHOOD,
    RequestKind.ROLLING: Capability.ROLLING,
}


@dataclass(slots=True)
class Sample:
    """One row, ready to run: its requests, and what its line in `samples.jsonl` will show.

    `index` is the row's number in its file, or where a suite has several subsets, in all of them
    one after the other; no two samples of a suite share one.
    """

    index: int
    prompt: str | Sequence[Message]
    target: str
    requests: Sequence[Request]


S = TypeVar("S", bound=Sample)
A = TypeVar("A", GenerationOutput, LoglikelihoodOutput, RollingLoglikelihoodOutput)


@dataclass(kw_only=True)
class Suite(SuiteDeclaration, Generic[S, A]):
    """Base of every suite: rows become requests, and their answers scores.

    A suite holds no state: it can run any number of times.
    """

    request_kind: ClassVar[RequestKind]

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics by name, the main one first; none where a tally of its own knows better."""
        ...

    @abstractmethod
    def samples(self, limit: int | None = None) -> Iterator[S]:
        """The samples in the order in which they are run, made one by one; at most `limit`.

        Raises:
            ConfigurationError: while iterating, for a row that can't be read or lacks something.
        """
        ...

    @abstractmethod
    def score(self, sample: S, answers: Sequence[A]) -> Score:
        """The score of a sample from the answers to its requests, in their order."""
        ...

    def failure(self, sample: S) -> Mapping[str, Measure]:
        """What a sample without an answer counts as, by metric; one left out isn't counted."""
        return {
            name: Measure(metric.failed)
            for name, metric in self.metrics.items()
            if metric.failed is not None
        }

    def tally(self) -> Tally:
        """What collects the scores of one run, made anew: one that sums up `metrics`.

        A suite whose scores are no function of two numbers a sample gives one of its own.
        """
        return MeasureTally(self.metrics)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What decides the scores and is no option, such as the data set; for results."""
        return {}

    @property
    def needs(self) -> frozenset[Capability]:
        """What an engine must be able to do."""
        return frozenset({self.request_kind.capability})

    def check_samples(self, limit: int | None = None) -> int:
        """How many samples there are, after making each of them once.

        Raises:
            ConfigurationError: a row that can't be read or lacks a column, or no rows at all.
        """
        count = 0
        try:
            with wrap_errors("samples", ConfigurationError):
                samples = iter(self.samples(limit))
            while True:
                with wrap_errors(f"sample {count}", ConfigurationError):
                    if next(samples, None) is None:
                        break
                count += 1
            if not count:
                raise ConfigurationError("there are no rows to evaluate")
        except ConfigurationError as error:
            error.args = (f"suite {self.title!r}: {error}",)
            raise
        return count


AnySuite = Suite[Any, Any]
