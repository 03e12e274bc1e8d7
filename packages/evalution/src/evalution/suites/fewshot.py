"""Which solved rows stand before a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from evalution.rows.local import Row
from evalution_core import ConfigurationError


@dataclass(slots=True)
class SeededShots:
    """Drawn anew for each row, as lm-evaluation-harness 0.4.13's default sampler draws them.

    One generator serves a whole suite, so a row's shots depend on how many rows came before it.

    Args:
        shared: the pool is the evaluated rows themselves. No row is ever its own example; with a
            spare neither is an equal one.
        spare: draw one row more than is shown, and leave out those that equal the question; None
            does so where rows are shared. lm-evaluation-harness does so in some tasks whose pool
            is another split, and leaves it off in some whose pool is the same.
    """

    pool: Sequence[Row]
    count: int
    seed: int
    shared: bool
    spare: bool | None = None
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        if self.spare is None:
            self.spare = self.shared
        _require(len(self.pool), self.count + (self.spare or self.shared), self.shared)

    def before(self, row: Row) -> Sequence[Row]:
        """The shots of the next row; call it once for each row, in order."""
        if self.spare:
            return self._besides(row)
        drawn = self._random.sample(self.pool, self.count)
        if self.shared and any(shot.index == row.index for shot in drawn):
            return self._replaced(drawn, row)
        return drawn

    def _besides(self, row: Row) -> Sequence[Row]:
        drawn = self._random.sample(self.pool, self.count + 1)
        others = [shot for shot in drawn if not self._is_same(shot, row)][: self.count]
        if len(others) < self.count:  # the row stands in the file more than once
            distinct = [shot for shot in self.pool if not self._is_same(shot, row)]
            _require(len(distinct), self.count, self.shared)
            others = self._random.sample(distinct, self.count)
        return others

    def _replaced(self, drawn: Sequence[Row], row: Row) -> Sequence[Row]:
        # A generator of its own: the shots of all later rows stay lm-evaluation-harness's.
        taken = {shot.index for shot in drawn}
        other = Random(f"{self.seed}-{row.index}")
        while (shot := other.choice(self.pool)).index in taken:
            pass
        return [shot if found.index == row.index else found for found in drawn]

    def _is_same(self, shot: Row, row: Row) -> bool:
        # Columns alone are not enough: a row with a NaN in it doesn't equal itself.
        return (self.shared and shot.index == row.index) or shot.columns == row.columns


@dataclass(slots=True)
class FixedShots:
    """The first `count` rows of the pool, the same before every question."""

    pool: Sequence[Row]
    count: int

    def __post_init__(self) -> None:
        _require(len(self.pool), self.count, shared=False)

    def before(self, row: Row) -> Sequence[Row]:
        return self.pool[: self.count]


def _require(found: int, needed: int, shared: bool) -> None:
    if found < needed:
        besides = ", one of them the question itself" if shared else ""
        raise ConfigurationError(
            f"there are {found} few-shot rows, but {needed} are needed{besides}; lower "
            "num_fewshot, or name a fewshot_data with more rows"
        )
