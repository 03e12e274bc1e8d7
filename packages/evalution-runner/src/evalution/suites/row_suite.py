"""Suites over rows: the selection of rows, their order, and a sample for each."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import islice
from math import isfinite
from random import Random
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field

from evalution.error_boundary import wrap_errors
from evalution.rows.hub import open_rows
from evalution.rows.local import Data, Row, RowSource
from evalution.suites.suite import PATH, Sample, Suite
from evalution.user_input import LARGEST
from evalution_core import (
    ConfigurationError,
)
from evalution_core.plugins import nearest_name
from evalution_core.requests import Output, Request

NATIVE = "native"
_BY_LENGTH = ("length|asc", "length|desc")
_SPELLINGS = (NATIVE, "shuffle", "shuffle|<seed>", *_BY_LENGTH)
_SHUFFLE = re.compile(r"shuffle(?:\|(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class FewshotRow:
    """A row to be asked, with the solved rows that stand before it."""

    row: Row
    shots: Sequence[Row] = ()


def parse_order(text: str) -> str:
    """Return an order in its one spelling; case and blanks don't count, `shuffle` is `shuffle|0`.

    Raises:
        ValueError: it is none; says which there are, and the nearest.
    """
    plain = "".join(text.split()).casefold()
    if found := _SHUFFLE.fullmatch(plain):
        return f"shuffle|{int(found[1] or 0)}"
    if plain in (NATIVE, *_BY_LENGTH):
        return plain
    near = nearest_name(plain, _SPELLINGS)
    hint = f" (did you mean {near!r}?)" if near else ""
    raise ValueError(f"must be one of {', '.join(_SPELLINGS)}{hint}")


def order_rows(
    order: str, cases: Iterator[FewshotRow], length: Callable[[FewshotRow], int]
) -> Iterator[FewshotRow]:
    """Return `cases` in this order; all of them are held unless it is the native one."""
    if order == NATIVE:
        return cases
    held = list(cases)
    if order in _BY_LENGTH:
        held.sort(key=length, reverse=order == _BY_LENGTH[1])
    else:
        Random(int(order.partition("|")[2])).shuffle(held)
    return iter(held)


def select_rows(
    cases: Iterable[FewshotRow], indices: Sequence[int] | None, bound: int | None, place: str
) -> Iterator[FewshotRow]:
    """The cases of these row numbers, in their order, or all; the first `bound` of either.

    Raises:
        ConfigurationError: while iterating, for a number that no row has.
    """
    if indices is None:
        yield from islice(cases, bound)
        return
    wanted = list(islice(indices, bound))
    missing = set(wanted)
    found: dict[int, FewshotRow] = {}
    count = 0
    for fewshot in cases:
        count = fewshot.row.index + 1
        if fewshot.row.index in missing:
            missing.remove(fewshot.row.index)
            found[fewshot.row.index] = fewshot
            if not missing:
                break
    if missing:
        raise ConfigurationError(
            f"row_indices names row {min(missing)}, but {place} holds "
            f"{f'rows 0 to {count - 1}' if count else 'no rows'}"
        )
    yield from (found[index] for index in wanted)


S = TypeVar("S", bound=Sample)
A = TypeVar("A", bound=Output)


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to be evaluated, and where their solved rows come from.

    `fewshot` None means the evaluated rows themselves; `draw_extra_shot` is that
    of `SeededShots`. `name` is the subset in a suite of several.
    """

    rows: RowSource
    fewshot: RowSource | None = None
    draw_extra_shot: bool | None = None
    name: str = ""


@dataclass(kw_only=True)
class RowSuite(Suite[S, A]):
    """A suite with one sample for each row that is selected.

    `row_indices` are the rows to take, in that order; `max_rows` bounds them from the front.
    `order` is how what was selected is run: `native`, `shuffle`, `shuffle|<seed>`, `length|asc` or
    `length|desc`, by the characters of a sample's longest request. None of the three changes what a
    row is asked: its solved rows are those that it has in a run of all rows. `group` widens
    intervals for rows that belong together, and changes no score.
    """

    max_rows: Annotated[
        int | None,
        Field(ge=1, le=LARGEST, description="Rows to take from the front; None takes all."),
    ] = None
    row_indices: Annotated[
        Sequence[Annotated[int, Field(ge=0, le=LARGEST)]] | None,
        Field(description="Numbers of the rows to take, from 0, in this order; None takes all."),
    ] = None
    order: Annotated[
        str,
        Field(
            description="Order in which the rows are run: native, shuffle, shuffle|<seed>, "
            "length|asc or length|desc; the scores don't depend on it."
        ),
    ] = NATIVE
    group: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Column whose value is the same in rows that belong together, such as "
            "questions on one text: standard errors and tests are then of groups. None takes rows "
            "as independent.",
        ),
    ] = None

    @abstractmethod
    def splits(self) -> Sequence[Split]:
        """The rows, one split after the other; a row's number runs on from split to split."""
        ...

    @abstractmethod
    def sample(self, fewshot: FewshotRow) -> S:
        """The sample of a row.

        Raises:
            ConfigurationError: the row lacks something.
        """
        ...

    def check_options(self) -> None:
        if self.row_indices is not None and (problem := _indices_problem(self.row_indices)):
            raise self.wrong("row_indices", problem)
        try:
            self.order = parse_order(self.order)
        except ValueError as error:
            raise self.wrong("order", str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """As `SuiteDeclaration.to_dict`; without a group as before there were any, for resuming."""
        shown = super().to_dict()
        if self.group is None:
            del shown["group"]
        return shown

    def samples(self, limit: int | None = None) -> Iterator[S]:
        bounds = [bound for bound in (limit, self.max_rows) if bound is not None]
        splits = self.splits()
        self._refuse_solved_rows(splits[0])
        place = (
            splits[0].rows.place if len(splits) == 1 else f"{self.title} ({len(splits)} subsets)"
        )
        chosen = select_rows(
            self._cases(splits), self.row_indices, min(bounds, default=None), place
        )
        for fewshot in order_rows(parse_order(self.order), chosen, self._length):
            yield self._make_sample(fewshot)

    def choose_shots(self, split: Split) -> Callable[[Row], Sequence[Row]]:
        """Return a function that gives a row's solved rows, called once for each, in order."""
        return lambda row: ()

    def skipped(self, split: Split) -> int:
        """Return the number of solved rows at the front of a split, which are not evaluated."""
        return 0

    def _cases(self, splits: Sequence[Split]) -> Iterator[FewshotRow]:
        offset = 0
        for split in splits:
            solved, skipped, count = self.choose_shots(split), self.skipped(split), 0
            for count, row in enumerate(split.rows, start=1):
                if count > skipped:
                    yield FewshotRow(_place(row, offset, split.name), solved(row))
            if count <= skipped:
                shots = f" after the {skipped} few-shot rows" if skipped else ""
                raise ConfigurationError(f"{split.rows.place} holds no rows{shots}")
            offset += count

    def _refuse_solved_rows(self, split: Split) -> None:
        least = min(self.row_indices or (), default=None)
        if least is not None and least < (skipped := self.skipped(split)):
            raise ConfigurationError(
                f"row_indices names row {least}, but the first {skipped} rows are the few-shot "
                "rows and aren't evaluated; leave it out, or name a fewshot_data"
            )

    def list_notices(self, remarks: Mapping[str, int], samples: int) -> Iterator[str]:
        yield from super().list_notices(remarks, samples)
        for option in sorted(_TEXT_OPTIONS.intersection(each.name for each in fields(self))):
            value: object = getattr(self, option)
            texts = cast(Sequence[object], value) if isinstance(value, list | tuple) else [value]
            found = (_ESCAPE.search(text) for text in texts if isinstance(text, str))
            if escape := next(filter(None, found), None):
                made = "an n, not a line break" if escape[1] == "n" else "a t, not a tab"
                form = f'"…\\{escape[1]}…"' if isinstance(value, str) else f'["…\\{escape[1]}…"]'
                yield (
                    f"{option} has a backslash and {made}; one takes double quotes: "
                    f"{option}: {form} in YAML, --set '{self.title}.{option}={form}' in a command"
                )

    def _make_sample(self, fewshot: FewshotRow) -> S:
        with wrap_errors(fewshot.row.place, ConfigurationError):
            sample = self.sample(fewshot)
            sample.subset = fewshot.row.subset
            if self.group is not None:
                sample.group = _read_group(fewshot.row, self.group)
            return sample

    def _length(self, fewshot: FewshotRow) -> int:
        return max(map(_characters, self._make_sample(fewshot).requests), default=0)


_LONGEST_GROUP = 100
"""Characters of a group's name; of a longer text, such as a whole passage, its hash stands in."""


def _read_group(row: Row, column: str) -> str:
    found = row[column]
    is_number = type(found) is int or (isinstance(found, float) and isfinite(found))
    name = str(found) if is_number or isinstance(found, str) else ""
    if not name.strip():
        raise ConfigurationError(
            f"{row.place}: the option group names column {column!r}, which holds {found!r:.80}; a "
            "group is a text or a number; fill it in for every row, name another column, or leave "
            "the option out"
        )
    if len(name) <= _LONGEST_GROUP:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{name[: _LONGEST_GROUP // 2]}… {digest}"


def _place(row: Row, offset: int, subset: str) -> Row:
    # A copy costs as much as the rest of a row's way: most suites need none.
    return replace(row, index=offset + row.index, subset=subset) if offset or subset else row


def _indices_problem(indices: Sequence[int]) -> str | None:
    if not indices:
        return "must name at least one row"
    if len(set(indices)) < len(indices):
        twice = next(index for index in indices if list(indices).count(index) > 1)
        return f"must name each row once, but row {twice} stands in it twice"
    return None


_TEXT_OPTIONS = frozenset(
    {
        *("prompt", "text", "choices", "target", "stop"),
        *("target_delimiter", "fewshot_delimiter"),
    }
)
_ESCAPE = re.compile(r"\A[^\n]*?(?<!\\)\\([nt])(?![a-z])[^\n]*\Z")
"""A text of one line in which a line break or a tab is spelt out, and no \\nabla of TeX."""
_TEXTS = ("prompt", "context", "continuation", "text")
"""Fields of requests that hold what is asked."""


def _characters(request: Request) -> int:
    held = {one.name: getattr(request, one.name) for one in fields(request)}
    texts = [str(message.get("content", "")) for message in held.get("messages") or ()]
    return sum(map(len, [*texts, *(held[name] or "" for name in _TEXTS if name in held)]))


@dataclass(kw_only=True)
class LocalRows:
    """The rows of `data`: a file, `builtin:<name>/<rows>`, `hub:<name>:<split>`, or in memory."""

    data: Annotated[
        Data,
        Field(
            description="Rows: a .jsonl, .json, .csv, .tsv, .xlsx or .parquet file, "
            "builtin:<name>/<rows>, hub:<name>:<split>, or the rows themselves."
        ),
    ] = field(metadata=PATH)
    name: Annotated[
        str | None, Field(description="Name of the suite in results; None takes the file's.")
    ] = None

    @property
    def title(self) -> str:
        return self.name or open_rows(self.data).name

    def splits(self) -> Sequence[Split]:
        return [Split(open_rows(self.data))]
