"""Two runs side by side: scores, what their difference is worth, and the rows that changed."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from evalution.comparison.significance import PairedTest, is_binary, is_rounding, run_test
from evalution.results import MetricResult, RowRange, RunResult, SampleResult
from evalution.runs.reader import RunSamples, read_run
from evalution.sample_columns import SampleColumns

_LEFT_OUT = frozenset({"engine.capabilities", "engine.self_check"})
"""Fields that describe a run and decide nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of `results.json`, as `engine.options.dtype`; a side that lacks it has None."""

    field: str
    left: Any
    right: Any


def find_leaf_differences(left: Any, right: Any, at: str = "") -> Iterator[Difference]:
    """A difference for each value that isn't the same, however deep it stands; `at` is its path.

    An empty mapping is the same as none at all.
    """
    if left == right or at in _LEFT_OUT:
        return
    if not (isinstance(left, Mapping) and isinstance(right, Mapping)):
        yield Difference(at, left, right)
        return
    before, after = cast(Mapping[str, Any], left), cast(Mapping[str, Any], right)
    for name in [*before, *(name for name in after if name not in before)]:
        if [side[name] for side in (before, after) if name in side] == [{}]:
            continue  # a field that is empty here, and that the other's Evalution didn't have yet
        place = f"{at}.{name}" if at else name
        yield from find_leaf_differences(before.get(name), after.get(name), place)


_OF_THE_ROWS = frozenset({"batch_size", "cache_dir", "group", "max_rows", "order", "row_indices"})
"""Options that choose, arrange or group rows and leave their prompts as they are."""
_SOURCES = frozenset({"data", "revision", "split", "subset", "subsets", "tasks"})
"""Options that say which rows there are: another prompt may then be that of another row."""


def ask_alike(differences: Collection[str]) -> bool:
    """Return whether suites whose options differ so have the same prompt for the same row."""
    return _OF_THE_ROWS.issuperset(differences) or not _SOURCES.isdisjoint(differences)


@dataclass(slots=True)
class Pairing:
    """The rows that both sides answered, and how many there are of every other kind.

    `left` and `right` are the places of these rows in the columns of each side. `other_rows`: the
    index is the same and the row is not. `other_prompts`: the same row, asked in other words; these
    are among the paired. `left_failed` and `right_failed` count rows without an answer to compare;
    a row that failed on both sides counts in both.
    """

    left: array[int] = field(default_factory=lambda: array("q"))
    right: array[int] = field(default_factory=lambda: array("q"))
    left_only: int = 0
    right_only: int = 0
    left_failed: int = 0
    right_failed: int = 0
    other_rows: int = 0
    other_prompts: int = 0

    @property
    def paired(self) -> int:
        """Number of rows that both sides answered."""
        return len(self.left)

    @property
    def are_all(self) -> bool:
        """True if both sides have the same rows, answered or not."""
        return not (self.left_only or self.right_only or self.other_rows)

    def to_dict(self) -> dict[str, int]:
        counts = {n: getattr(self, n) for n in self.__slots__ if n not in ("left", "right")}
        return {"paired": self.paired, **counts}


def pair_samples(left: SampleColumns, right: SampleColumns, *, same_prompts: bool) -> Pairing:
    """Match samples by their rows' index; both sides are in the order of the rows.

    Samples with another target are of other rows. So are those with another prompt, unless the
    suites' options differ so that they ask the same rows in other words: `same_prompts` is false.
    """
    found, matched, after = Pairing(), 0, 0
    for before, row in enumerate(left.rows):
        while after < len(right) and right.rows[after] < row:
            after += 1
        if after == len(right) or right.rows[after] != row:
            found.left_only += 1
            continue
        matched += 1
        if left.failed[before] or right.failed[after]:
            found.left_failed += left.failed[before]
            found.right_failed += right.failed[after]
            continue
        prompts = left.prompts[before], right.prompts[after]
        is_other_prompt = prompts[0] != prompts[1] and 0 not in prompts
        if left.targets[before] != right.targets[after] or (is_other_prompt and same_prompts):
            found.other_rows += 1
            continue
        found.other_prompts += is_other_prompt
        found.left.append(before)
        found.right.append(after)
    found.right_only = len(right) - matched
    return found


def find_option_differences(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Options whose values differ, as `[left, right]`; one that a side lacks is None there."""
    names = [*left, *(name for name in right if name not in left)]
    return {
        name: [left.get(name), right.get(name)]
        for name in names
        if name != "name" and left.get(name) != right.get(name)
    }


SCHEMA_VERSION = 1

Side = Literal["left", "right"]
Grouping = Side | Literal["both", "neither"]
"""The sides whose groups of rows count; neither where they contradict each other."""


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric of one suite on both sides.

    `difference` is right minus left, and `winner` the side that is better by it, whichever
    direction that is. Both are of the scores; where these are of different rows (`same_rows` is
    false), of the rows that both answered, and None for a score that is no mean of its rows.
    `test` says whether chance could have made it; None where no row was answered by both.
    `one_sided` counts rows that both answered, with a score on one side only.
    """

    name: str
    higher_is_better: bool
    left: MetricResult | None
    right: MetricResult | None
    same_rows: bool = True
    test: PairedTest | None = None
    one_sided: int = 0

    @property
    def difference(self) -> float | None:
        if not self.same_rows:
            return None if self.test is None else self.test.difference
        left, right = self._values
        if left is None or right is None or (math.isinf(left) and math.isinf(right)):
            return None
        return 0.0 if is_rounding(left, right) else right - left

    @property
    def winner(self) -> Side | Literal["tie"] | None:
        difference = self.difference
        if difference is None:
            return None
        if difference == 0.0:
            return "tie"
        return "right" if (difference > 0) == self.higher_is_better else "left"

    @property
    def shown_interval(self) -> tuple[float, float] | None:
        """The test's interval, unless `difference` is outside: it is of fewer rows then."""
        ends = None if self.test is None else self.test.interval
        if ends is None or self.difference is None:
            return None
        return ends if ends[0] <= self.difference <= ends[1] else None

    @property
    def is_contradicted(self) -> bool:
        """True if the rows of the test favour the other side than the scores do.

        Failed rows are in the scores alone, and few large changes may outweigh many small ones.
        """
        if self.test is None or self.winner not in ("left", "right"):
            return False
        if (mean := self.test.difference) is None:
            favour = self.test.right_lead
        else:
            favour = mean if self.higher_is_better else -mean
        return favour < 0 if self.winner == "right" else favour > 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "higher_is_better": self.higher_is_better,
            "left": None if self.left is None else self.left.to_dict(),
            "right": None if self.right is None else self.right.to_dict(),
            "same_rows": self.same_rows,
            "difference": self.difference,
            "winner": self.winner,
            "test": None if self.test is None else self.test.to_dict(),
            "one_sided": self.one_sided,
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


@dataclass(slots=True)
class SuiteComparison:
    """A suite that both runs have.

    `options` are those that differ, as `[left, right]`, and what else decides its rows. `flips` are
    of `flipped_by`, its first right-or-wrong metric. `grouped_by` is None where neither side has
    groups of rows.
    """

    name: str
    options: dict[str, list[Any]]
    rows: Pairing
    metrics: list[MetricComparison]
    flipped_by: str | None = None
    flips: list[Flip] = field(default_factory=list[Flip])
    grouped_by: Grouping | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "rows": self.rows.to_dict(),
            **({} if self.grouped_by is None else {"grouped_by": self.grouped_by}),
            "metrics": {metric.name: metric.to_dict() for metric in self.metrics},
            "flipped_by": self.flipped_by,
            "flips": [asdict(flip) for flip in self.flips],
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
            "differences": [asdict(difference) for difference in self.differences],
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
    sides = [side if isinstance(side, RunResult) else read_run(side) for side in (left, right)]
    return compare_samples(*map(RunSamples, sides))


def compare_samples(left: RunSamples, right: RunSamples, *, with_texts: bool = True) -> Comparison:
    """`compare` for one who reads the samples for something else as well.

    Flips without texts are found without reading a line.
    """
    here, there = ([suite.name for suite in side.run.suites] for side in (left, right))
    return Comparison(
        left.run,
        right.run,
        [*find_leaf_differences(_list_conditions(left.run), _list_conditions(right.run))],
        [
            _compare_suite(name, (left, right), with_texts=with_texts)
            for name in here
            if name in there
        ],
        [name for name in here if name not in there],
        [name for name in there if name not in here],
    )


def _list_conditions(run: RunResult) -> dict[str, Any]:
    return {
        "model": run.model,
        "engine": run.engine,
        "scoring_policy": run.scoring_policy,
        "versions": run.versions,
        "limit": run.limit,
        "step": run.step,
    }


def find_missing_samples(comparison: Comparison, name: str, sides: tuple[str, str]) -> str | None:
    """Return a sentence on the samples of a suite that a side, called so, has no more."""
    for side, run in zip(sides, (comparison.left, comparison.right), strict=True):
        if run[name].samples_file is None and run[name].kept_samples is None:
            return f"the {side}'s samples.jsonl is missing, so its rows can't be compared"
    return None


def find_flipped_rows(comparisons: Iterable[Comparison]) -> dict[str, set[int]]:
    """Return by suite the rows that flipped in any of the comparisons."""
    found: dict[str, set[int]] = {}
    for comparison in comparisons:
        for suite in comparison.suites:
            found.setdefault(suite.name, set()).update(flip.index for flip in suite.flips)
    return found


_Sides = tuple[RunSamples, RunSamples]


def _compare_suite(name: str, sides: _Sides, *, with_texts: bool) -> SuiteComparison:
    left, right = (side.run[name] for side in sides)
    options = find_option_differences(left.options, right.options)
    columns = sides[0].columns(left), sides[1].columns(right)
    rows = pair_samples(*columns, same_prompts=ask_alike(options))
    options |= find_option_differences(left.provenance, right.provenance)
    same_rows = rows.are_all if all(columns) else left.n == right.n
    fail_alike = rows.left_failed == rows.right_failed == len(columns[0]) - rows.paired
    fail_alike &= left.failed == right.failed
    groups, grouped_by = _find_groups(rows, columns)
    found = SuiteComparison(name, options, rows, [], grouped_by=grouped_by)
    for metric in dict.fromkeys([*left.metrics, *right.metrics]):
        before, after = left.metrics.get(metric), right.metrics.get(metric)
        test, one_sided = None, 0
        if before is not None and after is not None:
            ends = _join_ranges(*map(_find_range, (before, after), (metric, metric), columns))
            is_mean = ends is not None
            places, values, one_sided = pair_values(rows, columns, metric, is_mean=is_mean)
            own = groups and [groups[place] for place in places]
            test = run_test(*values, own, ends, higher_is_better=before.higher_is_better)
            if found.flipped_by is None and test is not None and all(map(is_binary, values)):
                found.flipped_by = metric
                is_up = before.higher_is_better
                indices = [columns[0].rows[rows.left[place]] for place in places]
                winners = _find_winners(indices, values, right=is_up)
                found.flips = (
                    [*_read_flips(found, sides, winners)]
                    if with_texts
                    else [Flip(row, None, None, None, side) for row, side in winners.items()]
                )
        known = before or after
        assert known is not None
        scores_all = (before or known).n == left.n and (after or known).n == right.n
        facts = before, after, same_rows and (fail_alike or scores_all), test, one_sided
        found.metrics.append(MetricComparison(metric, known.higher_is_better, *facts))
    return found


_Columns = tuple[SampleColumns, SampleColumns]
_Values = tuple[Sequence[float], Sequence[float]]


def _find_groups(rows: Pairing, columns: _Columns) -> tuple[Sequence[int] | None, Grouping | None]:
    """Return the group of each paired row, and the sides that have groups.

    A group may have another name on each side, if it is of the same rows.
    """
    left, right = (
        [side.groups[place] for place in places] if any(side.groups) else None
        for side, places in zip(columns, (rows.left, rows.right), strict=True)
    )
    if left is None or right is None:
        found = right if left is None else left
        return found, None if found is None else "left" if right is None else "right"
    is_same = len({*zip(left, right, strict=True)}) == len({*left}) == len({*right})
    return (left, "both") if is_same else (None, "neither")


def pair_values(
    rows: Pairing, columns: _Columns, metric: str, *, is_mean: bool
) -> tuple[Sequence[int], _Values, int]:
    """Return places of pairs that have a value on both sides, the values, and the pairs with one.

    An infinite one has no mean, but it is worse than others, which counts where none is asked for.
    """
    has_value = math.isfinite if is_mean else _is_number
    found, before, after, one_sided = array("q"), array("d"), array("d"), 0
    left, right = (side.metrics.get(metric) for side in columns)
    if left is not None and right is not None:
        for place, (here, there) in enumerate(zip(rows.left, rows.right, strict=True)):
            known = has_value(left[here]) + has_value(right[there])
            one_sided += known == 1
            if known == 2:
                found.append(place)
                before.append(left[here])
                after.append(right[there])
    return found, (before, after), one_sided


def _is_number(value: float) -> bool:
    return not math.isnan(value)


def _find_range(metric: MetricResult, name: str, columns: SampleColumns) -> RowRange | None:
    """Return the result's range; one that doesn't say is a mean if its rows' mean is the score."""
    if metric.row_range != "unknown":
        return metric.row_range
    found = array("d", filter(math.isfinite, columns.metrics.get(name, ())))
    mean = math.fsum(value / len(found) for value in found) if found else math.nan
    if metric.value is None or not math.isclose(mean, metric.value, rel_tol=1e-9, abs_tol=1e-12):
        return None
    return (0.0, 1.0) if is_binary(found) else (None, None)


def _join_ranges(left: RowRange | None, right: RowRange | None) -> RowRange | None:
    """Return the range of both sides' rows, open where one is; None if one is no mean of them."""
    if left is None or right is None or left == right:
        return None if right is None else left
    (least, largest), (other_least, other_largest) = left, right
    return (
        None if least is None or other_least is None else min(least, other_least),
        None if largest is None or other_largest is None else max(largest, other_largest),
    )


def _find_winners(rows: Sequence[int], values: _Values, *, right: bool) -> dict[int, Side]:
    """Return the rows whose two values differ, with the side that has them right.

    `right` is the value of a row that is right: 1, or 0 of an error rate.
    """
    return {
        row: "left" if before == right else "right"
        for row, before, after in zip(rows, *values, strict=True)
        if before != after
    }


def _read_flips(
    suite: SuiteComparison, sides: _Sides, winners: Mapping[int, Side]
) -> Iterator[Flip]:
    """Yield the flipped rows with their texts."""
    metric = suite.flipped_by
    assert metric is not None
    texts = [side.of(side.run[suite.name]).at(winners) for side in sides]
    for one, other, winner in zip(*texts, winners.values(), strict=True):
        yield Flip(
            one.index, one.target, find_answer(one, metric), find_answer(other, metric), winner
        )


def find_answer(sample: SampleResult, metric: str | None) -> str | None:
    """Return the text that was compared with the target, or the whole prediction."""
    found = sample.extracted.get(metric or "")
    return found if isinstance(found, str) else sample.prediction


def _run_record(run: RunResult) -> dict[str, Any]:
    return {
        "folder": None if run.folder is None else str(run.folder),
        "status": run.status,
        "model": run.model,
        "engine": run.engine,
    }
