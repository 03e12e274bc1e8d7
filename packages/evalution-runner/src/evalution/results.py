"""The results of a run: the values that are written to `results.json` and read back from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    AliasPath,
    BeforeValidator,
    Field,
    FiniteFloat,
    TypeAdapter,
)

from evalution.samples import KeptSamples, SampleResult, to_json
from evalution.samples_file import SamplesReader, SuiteSamples

__all__ = [
    "SCHEMA_VERSION",
    "MetricResult",
    "RunResult",
    "SampleResult",
    "Status",
    "SuiteResult",
    "to_json",
]

SCHEMA_VERSION = 1

Status = Literal["running", "done", "failed", "interrupted"]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


def _check_range(ends: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    least, largest = ends
    if least is not None and largest is not None and least >= largest:
        raise ValueError("the least score of a row isn't below the largest")
    return ends


RowRange = Annotated[tuple[FiniteFloat | None, FiniteFloat | None], AfterValidator(_check_range)]
"""The least and the largest score that a row can have; an end that isn't known is None."""


def _empty() -> dict[str, Any]:
    return {}


def _drop_moments(timings: Any) -> Any:
    """Return the durations of a run's timings, without its two moments."""
    if not isinstance(timings, Mapping):
        return timings
    found = cast("Mapping[str, Any]", timings)
    return {name: value for name, value in found.items() if name not in ("started", "finished")}


def _restore_infinity(metric: Any) -> Any:
    """Return a metric as it was written; JSON has no infinity, so it stands in the note."""
    if not isinstance(metric, dict):
        return metric
    found = cast("dict[str, Any]", metric)
    note = str(found.get("note", ""))
    if found.get("value") is None and "inf" in note:
        return {**found, "value": -math.inf if "-inf" in note else math.inf}
    return found


def read_precision(engine: Mapping[str, Any]) -> str | None:
    """Return the arithmetic in an engine's record, as its session described it; None if not."""
    execution = cast("Mapping[str, Any]", engine.get("execution") or {})
    dtype = execution.get("dtype")
    return None if dtype is None else str(dtype)


def describe_precisions(
    left: str | None, right: str | None, *, sides: tuple[str, str] = ("left", "right")
) -> str | None:
    """Return a sentence about two runs that were computed in different precisions, else None."""
    if left == right:
        return None
    named = [dtype or "a precision that its session doesn't report" for dtype in (left, right)]
    return (
        f"{sides[0]} was computed in {named[0]}, {sides[1]} in {named[1]}: that alone moves scores"
    )


def is_other_model(engine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two engines' records say what answers, and it isn't the same.

    Two engines may read other files of one model: those that both name are compared.
    """
    left: dict[str, Any] = engine.get("identity") or {}
    right: dict[str, Any] = other.get("identity") or {}
    is_same = engine.get("name") == other.get("name")
    names = left.keys() | right.keys() if is_same else left.keys() & right.keys()
    return bool(left and right) and any(left.get(name) != right.get(name) for name in names)


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A score over `n` samples; `value`, `stderr` and `interval` are None where undefined.

    `interval` contains the value with 95 % confidence: for a share of right rows it is Wilson's,
    which has a width even where all are right; for others, 1.96 standard errors on either side.
    `n` leaves out failed samples for a metric without a natural zero (a perplexity). `groups`
    counts the groups of rows that `stderr` and `interval` are of; None where rows are independent.
    `row_range` is None where the value is no mean of its rows' scores (F1, a perplexity); a result
    that doesn't say, older than the field, has "unknown".
    """

    value: float | None
    stderr: float | None
    higher_is_better: bool
    n: Count
    interval: tuple[float, float] | None = None
    groups: Count | None = None
    row_range: RowRange | Literal["unknown"] | None = "unknown"

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        if self.groups is None:
            del shown["groups"]
        if self.row_range == "unknown":
            del shown["row_range"]
        else:
            shown["row_range"] = self.row_range and list(self.row_range)
        shown["interval"] = self.interval and list(self.interval)
        if self.value is not None and not math.isfinite(self.value):
            shown["note"] = f"the value is {self.value}"
        return shown


@dataclass(slots=True)
class SuiteResult:
    """The scores of one suite.

    `n` samples were run, `failed` of them without an answer to score. `truncated` counts those
    whose prompt was cut from the left, None where the engine doesn't report it. `cached` of the
    `requests` were answered by a journal or a cache. `first_failure` has the failed row with the
    smallest number and its error. `provenance` decides the scores and is no option, such as the
    data set of a suite that is known by name. `errors` belong to no sample, such as rows that
    changed while they were run.
    """

    name: str
    type: str
    options: dict[str, Any]
    metrics: dict[str, Annotated[MetricResult, BeforeValidator(_restore_infinity)]]
    n: Count
    failed: Count
    truncated: Count | None
    requests: Count
    seconds: Annotated[float, Field(validation_alias=AliasPath("timings", "seconds"))]
    cached: Annotated[Count, Field(validation_alias=AliasPath("timings", "cached"))] = 0
    provenance: dict[str, Any] = field(default_factory=_empty)
    first_failure: str | None = None
    errors: list[str] = field(default_factory=list[str])
    kept_samples: list[SampleResult] | None = None
    samples_file: Path | None = None

    @property
    def samples(self) -> list[SampleResult]:
        """All samples in the order of the rows, from memory or from the run folder's file.

        Raises:
            ConfigurationError: the file can't be read, is damaged or was written by something else.
        """
        return list(self.stored_samples)

    @property
    def stored_samples(self) -> SuiteSamples:
        """The same samples, those of a file read one at a time; errors as `samples`."""
        if self.samples_file is None:
            return KeptSamples(self.kept_samples or [])
        return SamplesReader(self.samples_file).of(self.name)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "options": self.options,
            "provenance": self.provenance,
            "metrics": {name: metric.to_dict() for name, metric in self.metrics.items()},
            "n": self.n,
            "failed": self.failed,
            "truncated": self.truncated,
            "requests": self.requests,
            "first_failure": self.first_failure,
            "errors": self.errors,
            "timings": self._timings(),
        }

    def _timings(self) -> dict[str, Any]:
        computed = self.requests - self.cached
        return {
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
            "requests_per_second": round(computed / self.seconds, 2) if self.seconds else None,
        }


@dataclass(slots=True)
class RunResult:
    """One model on one engine, and the suites that were run so far.

    `limit` bounds the rows of every suite, within the suite's own `max_rows`. `step` is the step of
    training at which the model was evaluated, where it was one in training. `planned` counts the
    rows of each suite of a run that isn't done, whether or not it was reached. `notices` are what a
    person should know beside the scores, such as answers that a damaged journal lost, or how many
    samples of a suite have an unfinished thought. All that differs between two runs of the same
    thing is under `timings`.
    """

    model: dict[str, Any]
    engine: dict[str, Any]
    scoring_policy: dict[str, Any]
    versions: dict[str, Any]
    limit: Count | None = None
    step: Count | None = None
    planned: dict[str, Count] = field(default_factory=dict[str, int])
    status: Status = "running"
    started: Annotated[str, Field(validation_alias=AliasPath("timings", "started"))] = ""
    finished: Annotated[str | None, Field(validation_alias=AliasPath("timings", "finished"))] = None
    error: dict[str, Any] | None = None
    notices: list[str] = field(default_factory=list[str])
    timings: Annotated[dict[str, float], BeforeValidator(_drop_moments)] = field(
        default_factory=dict[str, float]
    )
    suites: list[SuiteResult] = field(default_factory=list[SuiteResult])
    folder: Path | None = None

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RunResult:
        """Return the result that `to_dict` wrote; what a later version adds to it is ignored.

        Raises:
            ValidationError: a field is missing, or of another type.
        """
        return _reader().validate_python(document)

    @property
    def failed(self) -> int:
        """Samples without an answer, and errors of the session, over all suites."""
        return sum(suite.failed + len(suite.errors) for suite in self.suites)

    @property
    def precision(self) -> str | None:
        """Arithmetic that the session reported, such as float32; None if it reported none."""
        return read_precision(self.engine)

    def __getitem__(self, suite: str) -> SuiteResult:
        """Return the result of the suite of this name."""
        for result in self.suites:
            if result.name == suite:
                return result
        raise KeyError(f"no suite {suite!r} was run: {[result.name for result in self.suites]}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "status": self.status,
            "error": self.error,
            "notices": self.notices,
            "model": self.model,
            "engine": self.engine,
            "scoring_policy": self.scoring_policy,
            "limit": self.limit,
            "step": self.step,
            **({} if self.status == "done" else {"planned": self.planned}),
            "suites": [suite.to_dict() for suite in self.suites],
            "versions": self.versions,
            "timings": {"started": self.started, "finished": self.finished, **self.timings},
        }


@cache
def _reader() -> TypeAdapter[RunResult]:
    return TypeAdapter(RunResult)
