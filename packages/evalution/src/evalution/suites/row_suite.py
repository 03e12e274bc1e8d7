"""Suites over task rows: a sample for each row that is selected."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from evalution.error_boundary import wrap_errors
from evalution.exchange import Request
from evalution.rows.local import Row, RowSource
from evalution.suites.selection import NATIVE, Case, parse_order, selected
from evalution.suites.suite import Sample, Suite
from evalution.user_input import find_count_problem
from evalution_core import (
    ConfigurationError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Message,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)

S = TypeVar("S", bound=Sample)
A = TypeVar("A", GenerationOutput, LoglikelihoodOutput, RollingLoglikelihoodOutput)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows to be evaluated, and where their solved rows come from.

    `fewshot` None means the evaluated rows themselves; `spare` is `SeededShots.spare`. `name` is
    the subset in a suite of several.
    """

    rows: RowSource
    fewshot: RowSource | None = None
    spare: bool | None = None
    name: str = ""


@dataclass(kw_only=True)
class RowSuite(Suite[S, A]):
    """A suite with one sample for each row that is selected.

    `row_indices` are the rows to take, in that order; `max_rows` bounds them from the front.
    `order` is how what was selected is run: `native`, `shuffle`, `shuffle|<seed>`, `length|asc` or
    `length|desc`. None of the three changes what a row is asked: its solved rows are those that it
    has in a run of all rows.
    """

    max_rows: int | None = None
    row_indices: Sequence[int] | None = None
    order: str = NATIVE

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The rows, one part after the other; a row's number runs on from part to part."""
        ...

    @abstractmethod
    def sample(self, case: Case) -> S:
        """The sample of a row.

        Raises:
            ConfigurationError: the row lacks something.
        """
        ...

    def check_options(self) -> None:
        if self.max_rows is not None and (problem := find_count_problem(self.max_rows, least=1)):
            raise self.wrong("max_rows", problem)
        if self.row_indices is not None and (problem := _indices_problem(self.row_indices)):
            raise self.wrong("row_indices", problem)
        try:
            self.order = str(parse_order(self.order))
        except ValueError as error:
            raise self.wrong("order", str(error)) from None

    def samples(self, limit: int | None = None) -> Iterator[S]:
        bounds = [bound for bound in (limit, self.max_rows) if bound is not None]
        parts = self.parts()
        self._refuse_solved_rows(parts[0])
        place = parts[0].rows.place if len(parts) == 1 else f"{self.title} ({len(parts)} subsets)"
        chosen = selected(self._cases(parts), self.row_indices, min(bounds, default=None), place)
        for case in parse_order(self.order).of(chosen, self._length):
            yield self._made(case)

    def solved_rows(self, part: Part) -> Callable[[Row], Sequence[Row]]:
        """What gives the solved rows of each row of a part, called once for each, in order."""
        return _no_rows

    def skipped(self, part: Part) -> int:
        """How many rows at the front of a part are solved ones and not evaluated."""
        return 0

    def _cases(self, parts: Sequence[Part]) -> Iterator[Case]:
        offset = 0
        for part in parts:
            solved, skipped, count = self.solved_rows(part), self.skipped(part), 0
            for count, row in enumerate(part.rows, start=1):
                if count > skipped:
                    yield Case(_placed(row, offset, part.name), solved(row))
            if count <= skipped:
                besides = f" besides the {skipped} few-shot rows" if skipped else ""
                raise ConfigurationError(f"{part.rows.place} holds no rows{besides}")
            offset += count

    def _refuse_solved_rows(self, part: Part) -> None:
        least = min(self.row_indices or (), default=None)
        if least is not None and least < (skipped := self.skipped(part)):
            raise ConfigurationError(
                f"row_indices names row {least}, but the first {skipped} rows are the few-shot "
                "rows and aren't evaluated; leave it out, or name a fewshot_data"
            )

    def _made(self, case: Case) -> S:
        with wrap_errors(case.row.place, ConfigurationError):
            return self.sample(case)

    def _length(self, case: Case) -> int:
        return max(map(_characters, self._made(case).requests), default=0)


def _no_rows(row: Row) -> Sequence[Row]:
    return ()


def _placed(row: Row, offset: int, subset: str) -> Row:
    # A copy costs as much as the rest of a row's way: most suites need none.
    return replace(row, index=offset + row.index, subset=subset) if offset or subset else row


def _indices_problem(indices: Sequence[int]) -> str | None:
    if not indices:
        return "must name at least one row"
    for index in indices:
        if problem := find_count_problem(index, least=0):
            return problem
    if len(set(indices)) < len(indices):
        twice = next(index for index in indices if list(indices).count(index) > 1)
        return f"must name each row once, but row {twice} stands in it twice"
    return None


def _characters(request: Request) -> int:
    match request:
        case RollingLoglikelihoodRequest():
            return len(request.text or "")
        case LoglikelihoodRequest():
            return len(request.continuation) + _asked(request.context, request.messages)
        case GenerationRequest():
            return _asked(request.prompt, request.messages)


def _asked(text: str | None, messages: Sequence[Message] | None) -> int:
    if not messages:
        return len(text or "")
    return sum(len(str(message.get("content", ""))) for message in messages)
