"""Tokens of many sequences packed into passes of a few widths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalution_enginekit import ScoringPlan, Target
from evalution_tinygrad.forward import Forward
from evalution_tinygrad.kv_cache import Path
from evalution_tinygrad.prefixes import Prefixes


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens to put behind a path, and which of them are wanted for what.

    A target's position counts from the beginning of the sequence. The path gets the tokens' slots
    as they are packed.
    """

    path: Path
    token_ids: list[int]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row of a pass, and what it was wanted for."""

    row: int
    target: Target
    path: Path


@dataclass(frozen=True, slots=True)
class Pass:
    """Hidden states [width, dim], good until the next pass, and the rows that were wanted."""

    hidden: Any
    wanted: list[Wanted]


class Packing:
    """Runs tokens in passes; each token is run once and sees exactly its own sequence.

    Args:
        forward: the model.
        widths: tokens of a pass, each a shape of its own to compile; ascending.
    """

    def __init__(self, forward: Forward, widths: tuple[int, ...]):
        self._forward = forward
        self._widths = widths
        self.tokens_run = 0

    def passes(self, runs: Iterable[Run], total: int) -> Iterator[Pass]:
        """Run the `total` tokens of `runs`, in their order.

        The next run is asked for once all before it have their slots, so that it may fork a path of
        theirs.
        """
        waiting = iter(runs)
        rest: Run | None = None
        while total > 0:
            batch = _Batch(self._forward, self.width(total))
            while batch.free and (run := rest or next(waiting, None)) is not None:
                rest = batch.take(run)
            total -= batch.filled
            self.tokens_run += batch.filled
            yield batch.run()

    def width(self, total: int) -> int:
        """The widest pass that is filled by half or more, else the narrowest."""
        fitting = [width for width in self._widths if 2 * total > width]
        return fitting[-1] if fitting else self._widths[0]


class _Batch:
    """A pass under construction."""

    def __init__(self, forward: Forward, width: int):
        self._forward = forward
        self._begin = forward.cache.room(width)
        self._token_ids = np.zeros(width, np.int64)
        self._positions = np.zeros(width, np.int64)
        self._visible = np.zeros((width, forward.cache.capacity), np.bool_)
        self._wanted: list[Wanted] = []
        self.filled = 0

    @property
    def free(self) -> int:
        return len(self._token_ids) - self.filled

    def take(self, run: Run) -> Run | None:
        """Add what fits of a run; what is left of it."""
        part = run.token_ids[: self.free]
        before, begin, end = run.path.length, self.filled, self.filled + len(part)
        rows = slice(begin, end)
        self._token_ids[rows] = part
        self._positions[rows] = np.arange(before, before + len(part))
        self._visible[rows, run.path.slots] = True
        own = np.tri(len(part), dtype=np.bool_)
        self._visible[rows, self._begin + begin : self._begin + end] = own
        run.path.extend(self._begin + begin, len(part))
        inside = [target for target in run.targets if target.position < run.path.length]
        self._wanted += [Wanted(begin + t.position - before, t, run.path) for t in inside]
        self.filled = end
        if len(part) == len(run.token_ids):
            return None
        return Run(run.path, run.token_ids[len(part) :], run.targets[len(inside) :])

    def run(self) -> Pass:
        # A row that saw nothing would be a softmax over nothing, and no number.
        unused = np.arange(self.filled, len(self._token_ids))
        self._visible[unused, self._begin + unused] = True
        hidden = self._forward.run(self._token_ids, self._positions, self._visible, self._begin)
        return Pass(hidden, self._wanted)


class PlannedRuns:
    """The runs of a plan, behind what is kept of its roots' beginnings.

    `roots` are the tokens and paths of the plan's roots; `total` is how many tokens are to be run.
    """

    def __init__(self, plan: ScoringPlan, prefixes: Prefixes):
        self._plan = plan
        self.roots: dict[int, tuple[list[int], Path]] = {}
        self.total = plan.unique_tokens
        for index, segment in enumerate(plan.segments):
            if segment.parent is None:
                # Rows can be had of tokens that are run, not of those in the cache.
                first = min((t.position for t in segment.targets), default=len(segment.token_ids))
                path = prefixes.path(segment.token_ids, first)
                self.roots[index] = segment.token_ids, path
                self.total -= path.length

    def __iter__(self) -> Iterator[Run]:
        ancestors: list[tuple[int, Path]] = []
        for index, segment in enumerate(self._plan.segments):
            while ancestors and ancestors[-1][0] != segment.parent:
                ancestors.pop()
            path = ancestors[-1][1].fork() if ancestors else self.roots[index][1]
            ancestors.append((index, path))
            targets = tuple(sorted(segment.targets, key=lambda target: target.position))
            yield Run(path, segment.token_ids[path.length - segment.depth :], targets)
