"""What a suite is: a declaration that turns rows into requests, and answers into scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from evalution.counts import count_problem, shown_value
from evalution.foreign_code import foreign_errors
from evalution.scoring.metrics import Measure, Metric
from evalution.suites.declaration import (
    parse_options,
    shown_options,
    validate_suite,
)
from evalution_core import (
    Capability,
    ConfigurationError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Message,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.options import check_option_names

Request = GenerationRequest | LoglikelihoodRequest | RollingLoglikelihoodRequest
Answer = GenerationOutput | LoglikelihoodOutput | RollingLoglikelihoodOutput


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


@dataclass(slots=True)
class Score:
    """What the answers of a sample are worth: a measure for each of the suite's metrics.

    None is for a metric that the sample says nothing of, such as another subset's. `extracted` is
    what was compared with the target, by metric or by filter.
    """

    measures: Mapping[str, Measure | None]
    prediction: str | None = None
    extracted: Mapping[str, Any] = field(default_factory=dict[str, Any])


S = TypeVar("S", bound=Sample)
A = TypeVar("A", GenerationOutput, LoglikelihoodOutput, RollingLoglikelihoodOutput)


@dataclass(kw_only=True)
class Suite(ABC, Generic[S, A]):
    """Base of every suite. A subclass is a dataclass whose fields are its options.

    Names and types of the options are checked when it is constructed; a subclass puts further
    checks into `check_options`. A suite holds no state: it can run any number of times.
    """

    declared_as: ClassVar[str] = "suite"
    request_kind: ClassVar[RequestKind]

    name: str | None = None
    batch_size: int | None = None

    def __new__(cls, *args: Any, **options: Any) -> Self:
        check_option_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check all options as they stand now, and forget what was derived from earlier ones.

        Raises:
            ConfigurationError: an option is of a wrong type, or out of range.
        """
        for name in [name for name in vars(self) if _is_cached(type(self), name)]:
            delattr(self, name)
        validate_suite(self)
        if self.name is not None and not self.name.isprintable():
            raise self.wrong("name", "must be one line of text that can be shown")
        if self.batch_size is not None and (problem := count_problem(self.batch_size, least=1)):
            raise self.wrong("batch_size", problem)
        self.check_options()

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics by name, the main one first."""
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

    def check_options(self) -> None:
        """Raise `ConfigurationError` for values that fit their types and still make no sense."""

    @property
    def title(self) -> str:
        """The name in results."""
        return self.name or type(self).__name__

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
            with foreign_errors("samples", ConfigurationError):
                samples = iter(self.samples(limit))
            while True:
                with foreign_errors(f"sample {count}", ConfigurationError):
                    if next(samples, None) is None:
                        break
                count += 1
            if not count:
                raise ConfigurationError("there are no rows to evaluate")
        except ConfigurationError as error:
            error.args = (f"suite {self.title!r}: {error}",)
            raise
        return count

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, base: Path | None = None) -> Self:
        """A suite from a spec's mapping; relative paths in it start from `base`.

        Raises:
            ConfigurationError: an unknown option, with the nearest name, or a value of a wrong
                type.
        """
        return cls(**parse_options(cls, options, base))

    def to_dict(self) -> dict[str, Any]:
        """All options as JSON-safe values."""
        return shown_options(self)

    def wrong(self, option: str, problem: str) -> ConfigurationError:
        """The error for an option whose value is out of range, to be raised."""
        return ConfigurationError(
            f"option {option!r} of suite {type(self).__name__} {problem}, "
            f"got {shown_value(getattr(self, option))}"
        )


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)


AnySuite = Suite[Any, Any]
