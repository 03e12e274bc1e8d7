"""Suites of several subsets: their choice, their rows, and scores of all, of groups and of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from evalution.results import MetricResult
from evalution.rows.local import Row, RowSource
from evalution.scoring.metrics import (
    Measure,
    MeasureAccumulator,
    Metric,
    MetricAccumulator,
    Score,
)
from evalution.suites.dataset import Dataset, DatasetRows, local_folder
from evalution.suites.row_suite import RowSuite, Split
from evalution.suites.suite import Sample
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean, nearest_name, normalize
from evalution_core.requests import Output

ALL = "all"


@dataclass(frozen=True, slots=True)
class Subset:
    """One subset and its group; its name is `group.child`, or `child` where there is no group."""

    group: str
    child: str

    @property
    def name(self) -> str:
        return f"{self.group}.{self.child}" if self.group else self.child


@dataclass(frozen=True, slots=True)
class Subsets:
    """All subsets there are, by group; the group of those that have none is the empty text."""

    groups: Mapping[str, Sequence[str]]

    def select(self, names: str | Sequence[str]) -> list[Subset]:
        """The union of what is named, each subset once, in the order in which they are declared.

        A name is `all`, a group, or `group.child`; case, `-` and `_` don't count.

        Raises:
            ValueError: a name is none, or there is not one; says what is possible, and the nearest.
        """
        wanted = [names] if isinstance(names, str) else list(names)
        if not wanted:
            raise ValueError(f"must name at least one of {self._list_names()}")
        taken = {subset.name for name in wanted for subset in self._find_named(name)}
        return [subset for subset in self._all() if subset.name in taken]

    def whole_groups(self, chosen: Sequence[Subset]) -> list[str]:
        """The groups of which nothing is left out."""
        return [
            group
            for group, children in self.groups.items()
            if group and {Subset(group, child) for child in children} <= set(chosen)
        ]

    def _all(self) -> list[Subset]:
        return [Subset(group, child) for group in self.groups for child in self.groups[group]]

    def _find_named(self, name: str) -> list[Subset]:
        plain = normalize(name.strip())
        found = [
            subset
            for subset in self._all()
            if plain and plain in (ALL, normalize(subset.group), normalize(subset.name))
        ]
        if not found:
            raise ValueError(self._complaint(name))
        return found

    def _complaint(self, name: str) -> str:
        group, dot, _ = name.partition(".")
        known = {normalize(known): known for known in self.groups}
        if dot and (spelt := known.get(normalize(group.strip()))):
            possible = [f"{spelt}.{child}" for child in self.groups[spelt]]
            listed = ", ".join(possible)
        else:
            possible = [ALL, *filter(None, self.groups), *(subset.name for subset in self._all())]
            listed = self._list_names()
        near = self._nearest(name, possible)
        hint = f" (did you mean {near!r} for {name!r}?)" if near else ""
        return f"must be among {listed}{hint}"

    def _nearest(self, name: str, possible: Sequence[str]) -> str | None:
        # A subset's own name, without its group, is the likeliest slip.
        children = {subset.child: subset.name for subset in self._all()}
        if near := nearest_name(name, children, cutoff=0.85):
            return children[near]
        return nearest_name(name, possible)

    def _list_names(self) -> str:
        if "" in self.groups:
            return f"{ALL}, {', '.join(subset.name for subset in self._all())}"
        example = self._all()[0].name
        return f"{ALL}, {', '.join(self.groups)} or a part of one, such as {example}"


S = TypeVar("S", bound=Sample)
A = TypeVar("A", bound=Output)


@dataclass(kw_only=True)
class SubsetSuite(DatasetRows, RowSuite[S, A]):
    """A suite of the subsets in `parts`; a class inherits from it first, then from a kind of suite.

    Each metric of that kind is over all chosen rows; beside it stand `<metric>,<group>` of each
    group that was chosen as a whole and `<metric>,<subset>` of each subset. A group's score is that
    of all its rows together, as lm-evaluation-harness 0.4.13 weights it. A row's number runs on
    from subset to subset. `data` is a folder with one folder for each subset.
    """

    parts: ClassVar[Subsets]
    part_noun: ClassVar[str]
    """A subset's name in messages, such as "subject"."""

    subsets: Annotated[
        str | Sequence[str],
        Field(description="Subsets: all, a group, a subset, or a list of those."),
    ] = ALL

    def check_options(self) -> None:
        super().check_options()
        try:
            _ = self._chosen
        except ValueError as error:
            raise self.wrong("subsets", str(error)) from None
        self.check_data()

    def check_data(self) -> None:
        """Raise `ConfigurationError` if `data` can't hold the subsets."""
        if self.data is not None and local_folder(self.data) is None:
            raise self.wrong("data", f"must be a folder with one folder for each {self.part_noun}")

    def splits(self) -> Sequence[Split]:
        return [self.make_part(subset) for subset in self._chosen]

    def make_part(self, subset: Subset) -> Split:
        """The rows of a subset: of its own config on the Hub, or of its own folder."""
        declared = self.declare_part(subset)
        if self.data is None:
            return self.make_split(declared, None, subset.name)
        folder = local_folder(self.data)
        if folder is None or not (folder / subset.child).is_dir():
            raise ConfigurationError(
                f"{self.data} holds no folder {subset.child}, which is a {self.part_noun} of the "
                f"subsets {self.subsets!r}; choose others with subsets"
            )
        return self.make_split(declared, folder / subset.child, subset.name)

    def declare_part(self, subset: Subset) -> Dataset:
        """The data set of a subset: the config of its name."""
        return replace(self.dataset, name=subset.child)

    def make_metrics(self) -> Mapping[str, Metric]:
        return self._metrics

    def score(self, sample: S, answers: Sequence[A]) -> Score:
        score = super().score(sample, answers)  # pyright: ignore[reportAbstractUsage] - the kind's
        own = {
            f"{name}{part}": measure
            for name, measure in score.measures.items()
            for part in self._list_parts(sample)
        }
        score.measures = {name: own.get(name) for name in self._metrics}
        score.remarks = [*score.remarks, sample.subset]  # which a notice counts
        return score

    def failure(self, sample: S) -> Mapping[str, Measure]:
        found = super().failure(sample)
        return {
            f"{name}{part}": found[name]
            for name in self._plain_metrics
            for part in self._list_parts(sample)
            if name in found and f"{name}{part}" in self._metrics
        }

    def make_accumulator(self) -> MetricAccumulator:
        return _PartsAccumulator(
            self._metrics,
            {
                f"{metric},{group}": [
                    f"{metric},{Subset(group, child).name}" for child in self.parts.groups[group]
                ]
                for group in self.parts.whole_groups(self._chosen)
                for metric in self._plain_metrics
            },
        )

    def list_notices(self, remarks: Mapping[str, int], samples: int) -> Iterator[str]:
        chosen = [subset.name for subset in self._chosen]
        others = {remark: count for remark, count in remarks.items() if remark not in chosen}
        yield from super().list_notices(others, samples)
        reached = sum(name in remarks for name in chosen)
        # Failed rows have no remark: which subsets they are of isn't known.
        if 0 < reached < len(chosen) and sum(remarks.get(name, 0) for name in chosen) == samples:
            yield (
                f"rows of {reached} of {len(chosen)} subsets alone were scored: "
                f"{next(iter(self._metrics))} is no score of {self.task}; leave out a limit or "
                "row_indices, which count the rows of all subsets together (lm-eval's limit those "
                "of each), or name fewer subsets"
            )

    @cached_property
    def _chosen(self) -> Sequence[Subset]:
        return self.parts.select(self.subsets)

    @cached_property
    def _plain_metrics(self) -> Mapping[str, Metric]:
        return super().make_metrics()  # pyright: ignore[reportAbstractUsage] - the kind's

    @cached_property
    def _metrics(self) -> Mapping[str, Metric]:
        names = [*self.parts.whole_groups(self._chosen), *(part.name for part in self._chosen)]
        return {
            f"{metric}{part}": kind
            for part in ["", *(f",{name}" for name in names)]
            for metric, kind in self._plain_metrics.items()
        }

    def _list_parts(self, sample: S) -> list[str]:
        """Endings of the metrics that a sample belongs to."""
        group, dot, _ = sample.subset.partition(".")
        return ["", f",{group}", f",{sample.subset}"] if dot else ["", f",{sample.subset}"]


class _PartsAccumulator(MeasureAccumulator):
    """Gives a group no score while one of its subsets has no row; `parts` are metrics by group."""

    def __init__(self, metrics: Mapping[str, Metric], parts: Mapping[str, Sequence[str]]):
        super().__init__(metrics)
        self._parts = parts

    def results(self) -> dict[str, MetricResult]:
        found = super().results()
        for group, children in self._parts.items():
            empty = (found[child] for child in children if not found[child].n)
            found[group] = next(empty, found[group])
        return found


class ColumnParts:
    """The rows of a source by the text of a column, read once when they are first needed.

    `texts` are those that a row may hold there.
    """

    def __init__(self, source: RowSource, column: str, texts: Sequence[str]):
        self.source = source
        self.column = column
        self.texts = texts

    def select(self, text: str) -> RowSource:
        """The rows that hold `text` in the column, numbered from 0."""
        return _ColumnPart(self, text)

    @cached_property
    def rows(self) -> Mapping[str, Sequence[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.source:
            text = row.text(self.column)
            if text not in self.texts:
                raise ConfigurationError(
                    f"{row.place}: the {self.column} {text!r} is none of: {', '.join(self.texts)}"
                    f"{did_you_mean(text, self.texts)}"
                )
            part = found.setdefault(text, [])
            part.append(replace(row, index=len(part)))
        return found


@dataclass(frozen=True, slots=True)
class _ColumnPart:
    parts: ColumnParts
    text: str

    @property
    def place(self) -> str:
        return f"{self.parts.source.place}, {self.parts.column} {self.text!r}"

    def __iter__(self) -> Iterator[Row]:
        return iter(self.parts.rows.get(self.text, ()))
