"""Two runs side by side: scores, what their difference is worth, and the rows that changed."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evalution.comparison.differences import Difference, run_differences
from evalution.comparison.pairing import (
    Pairing,
    keeps_prompts,
    option_differences,
    pair_samples,
)
from evalution.comparison.significance import PairedTest, mcnemar, paired_t, sign_test
from evalution.results import MetricResult, RunResult, SampleResult
from evalution.runs.reader import RunSamples, read_run
from evalution.samples import SampleColumns

SCHEMA_VERSION = 1

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric of one suite on both sides.

    `difference` is right minus left, and `winner` the side that is better by it, whichever
    direction that is. Both are of the scores; where these are of different rows (`same_rows` is
    false), of the rows that both answered, and None for a score that is no mean of its rows.
    `test` says whether chance could have made it; None where no row was answered by both.
    """

    name: str
    higher_is_better: bool
    left: MetricResult | None
    right: MetricResult | None
    same_rows: bool = True
    test: PairedTest | None = None

    @property
    def difference(self) -> float | None:
        if not self.same_rows:
            return None if self.test is None else self.test.difference
        left, right = self._values
        if left is None or right is None or (math.isinf(left) and math.isinf(right)):
            return None
        return right - left

    @property
    def winner(self) -> Side | Literal["tie"] | None:
        difference = self.difference
        if difference is None:
            return None
        if difference == 0.0:
            return "tie"
        return "right" if (difference > 0) == self.higher_is_better else "left"

    def to_dict(self) -> dict[str, Any]:
        return {
            "higher_is_better": self.higher_is_better,
            "left": None if self.left is None else self.left.to_dict(),
            "right": None if self.right is None else self.right.to_dict(),
            "same_rows": self.same_rows,
            "difference": self.difference,
            "winner": self.winner,
            "test": None if self.test is None else self.test.to_dict(),
        }

    @property
    def _values(self) -> tuple[float | None, float | None]:
        left = None if self.left is None else self.left.value
        return left, None if self.right is None else self.right.value


@dataclass(frozen=True, slots=True)
class Flip:
    """A row that one side has right and the other wrong; `winner` has it right."""

    index: int
    target: str | None
    left: str | None
    right: str | None
    winner: Side

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class SuiteComparison:
    """A suite that both runs have.

    `options` are those that differ, as `[left, right]`, and what else decides its rows. `flips` are
    of `flipped_by`, its first right-or-wrong metric.
    """

    name: str
    options: dict[str, list[Any]]
    rows: Pairing
    metrics: list[MetricComparison]
    flipped_by: str | None = None
    flips: list[Flip] = field(default_factory=list[Flip])

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "rows": self.rows.to_dict(),
            "metrics": {metric.name: metric.to_dict() for metric in self.metrics},
            "flipped_by": self.flipped_by,
            "flips": [flip.to_dict() for flip in self.flips],
        }


@dataclass(slots=True)
class Comparison:
    """Two runs: `left` is the one to start from, `right` what changed.

    `differences` are those of model, engine, versions and rules; `left_only` and `right_only` name
    suites that the other run lacks.
    """

    left: RunResult
    right: RunResult
    differences: list[Difference]
    suites: list[SuiteComparison]
    left_only: list[str]
    right_only: list[str]

    def __getitem__(self, suite: str) -> SuiteComparison:
        """The comparison of the suite of this name."""
        for found in self.suites:
            if found.name == suite:
                return found
        raise KeyError(f"no suite {suite!r} is in both runs: {[s.name for s in self.suites]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an infinite score has a note, as `results.json` shows it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "left": _run_record(self.left),
            "right": _run_record(self.right),
            "differences": [difference.to_dict() for difference in self.differences],
            "suites": [suite.to_dict() for suite in self.suites],
            "left_only": self.left_only,
            "right_only": self.right_only,
        }


def compare(
    left: RunResult | str | os.PathLike[str], right: RunResult | str | os.PathLike[str]
) -> Comparison:
    """Compare two runs, given as results or as their folders; suites are matched by name.

    Raises:
        ConfigurationError: a folder holds no run, or its samples can't be read.
    """
    before = left if isinstance(left, RunResult) else read_run(left)
    after = right if isinstance(right, RunResult) else read_run(right)
    return compare_samples(RunSamples(before), RunSamples(after))


def compare_samples(left: RunSamples, right: RunSamples) -> Comparison:
    """`compare` for one who reads the samples for something else as well."""
    here, there = ([suite.name for suite in side.run.suites] for side in (left, right))
    return Comparison(
        left.run,
        right.run,
        run_differences(left.run, right.run),
        [_suite(name, (left, right)) for name in here if name in there],
        [name for name in here if name not in there],
        [name for name in there if name not in here],
    )


_Sides = tuple[RunSamples, RunSamples]


def _suite(name: str, sides: _Sides) -> SuiteComparison:
    left, right = (side.run[name] for side in sides)
    options = option_differences(left.options, right.options)
    columns = sides[0].columns(left), sides[1].columns(right)
    rows = pair_samples(*columns, same_prompts=keeps_prompts(options))
    options |= option_differences(left.provenance, right.provenance)
    same_rows = rows.are_all if all(columns) else left.n == right.n
    found = SuiteComparison(name, options, rows, [])
    for metric in dict.fromkeys([*left.metrics, *right.metrics]):
        before, after = left.metrics.get(metric), right.metrics.get(metric)
        test = None
        if before is not None and after is not None:
            is_mean = all(map(_is_mean, (before, after), (metric, metric), columns))
            values = _values(rows, columns, metric)
            test = _test(values, is_mean=is_mean, higher_is_better=before.higher_is_better)
            if found.flipped_by is None and test is not None and _is_binary(values):
                found.flipped_by = metric
                found.flips = [*_flips(found, columns, sides, right=before.higher_is_better)]
        known = before or after
        assert known is not None
        found.metrics.append(
            MetricComparison(metric, known.higher_is_better, before, after, same_rows, test)
        )
    return found


_Columns = tuple[SampleColumns, SampleColumns]
_Values = tuple[Sequence[float], Sequence[float]]


def _numbers(rows: Pairing, columns: _Columns, metric: str) -> Iterator[tuple[int, float, float]]:
    """The row and the metric's two values, of rows that have a finite one on both sides."""
    left, right = (side.metrics.get(metric) for side in columns)
    if left is None or right is None:
        return
    for before, after in zip(rows.left, rows.right, strict=True):
        if math.isfinite(left[before]) and math.isfinite(right[after]):
            yield columns[0].rows[before], left[before], right[after]


def _values(rows: Pairing, columns: _Columns, metric: str) -> _Values:
    left, right = array("d"), array("d")
    for _, before, after in _numbers(rows, columns, metric):
        left.append(before)
        right.append(after)
    return left, right


def _test(values: _Values, *, is_mean: bool, higher_is_better: bool) -> PairedTest | None:
    if not values[0]:
        return None
    if not is_mean:
        return sign_test(*values, higher_is_better=higher_is_better)
    chosen = mcnemar if _is_binary(values) else paired_t
    return chosen(*values, higher_is_better=higher_is_better)


def _is_binary(values: _Values) -> bool:
    return all(value in (0.0, 1.0) for side in values for value in side)


def _is_mean(metric: MetricResult, name: str, columns: SampleColumns) -> bool:
    """Whether the score is the plain mean of its rows; F1 and perplexities are not."""
    found = array("d", filter(math.isfinite, columns.metrics.get(name, ())))
    if metric.value is None or not found:
        return False
    mean = math.fsum(found) / len(found)
    return math.isclose(mean, metric.value, rel_tol=1e-9, abs_tol=1e-12)


def _flips(
    suite: SuiteComparison, columns: _Columns, sides: _Sides, *, right: bool
) -> Iterator[Flip]:
    """Rows whose two values of `flipped_by` differ; only of these are the texts read.

    `right` is the value of a row that is right: 1, or 0 of an error rate.
    """
    metric = suite.flipped_by
    assert metric is not None
    flipped: list[int] = []
    winners: list[Side] = []
    for row, before, after in _numbers(suite.rows, columns, metric):
        if before != after:
            flipped.append(row)
            winners.append("left" if before == right else "right")
    texts = [side.of(side.run[suite.name]).at(flipped) for side in sides]
    for one, other, winner in zip(*texts, winners, strict=True):
        yield Flip(one.index, one.target, _answer(one, metric), _answer(other, metric), winner)


def _answer(sample: SampleResult, metric: str) -> str | None:
    """What was compared with the target, or the whole prediction where that isn't a text."""
    extracted: Mapping[str, Any] = sample.extracted
    found = extracted.get(metric)
    return found if isinstance(found, str) else sample.prediction


def _run_record(run: RunResult) -> dict[str, Any]:
    return {
        "folder": None if run.folder is None else str(run.folder),
        "status": run.status,
        "model": run.model,
        "engine": run.engine,
    }
