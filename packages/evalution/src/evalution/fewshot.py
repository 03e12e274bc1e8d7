"""Which solved rows stand before a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from evalution.rows import Row
from evalution_core import ConfigurationError


@dataclass(slots=True)
class SeededShots:
    """Drawn anew for each row, as lm-evaluation-harness 0.4.13's default sampler draws them.

    One generator serves a whole suite, so a row's shots depend on how many rows came before it.
    `shared`: the pool is the evaluated file itself, and neither a row nor an equal one is ever its
    own example.
    """

    pool: Sequence[Row]
    count: int
    seed: int
    shared: bool
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        _require(len(self.pool), self.count + self.shared, self.shared)

    def before(self, row: Row) -> Sequence[Row]:
        """The shots of the next row; call it once for each row, in order."""
        if not self.shared:
            return self._random.sample(self.pool, self.count)
        drawn = self._random.sample(self.pool, self.count + 1)
        others = [shot for shot in drawn if not _is_same(shot, row)][: self.count]
        if len(others) < self.count:  # the row stands in the file more than once
            distinct = [shot for shot in self.pool if not _is_same(shot, row)]
            _require(len(distinct), self.count, self.shared)
            others = self._random.sample(distinct, self.count)
        return others


@dataclass(slots=True)
class FixedShots:
    """The first `count` rows of the pool, the same before every question."""

    pool: Sequence[Row]
    count: int

    def __post_init__(self) -> None:
        _require(len(self.pool), self.count, shared=False)

    def before(self, row: Row) -> Sequence[Row]:
        return self.pool[: self.count]


def _is_same(shot: Row, row: Row) -> bool:
    # Columns alone are not enough: a row with a NaN in it doesn't equal itself.
    return shot.index == row.index or shot.columns == row.columns


def _require(found: int, needed: int, shared: bool) -> None:
    if found < needed:
        besides = ", one of them the question itself" if shared else ""
        raise ConfigurationError(
            f"there are {found} few-shot rows, but {needed} are needed{besides}; lower "
            "num_fewshot, or name a fewshot_data with more rows"
        )
