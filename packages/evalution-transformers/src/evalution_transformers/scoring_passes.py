"""From the logits of passes to scores and rows of spans: the common part of all scorers.

A pass computes the logits of some targets of a plan, those of several spans in any order. Scores
are added up from them; rows are put into the order of the spans, block by block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol, TypeAlias, TypeVar

import torch

from evalution_enginekit import Target, TokenScore, TokenSpan
from evalution_enginekit.distributions import Rows
from evalution_enginekit.planning import SpanScores, make_targets

T = TypeVar("T")

ReadScores: TypeAlias = Callable[[], Sequence[tuple[float, bool]]]
"""Waits for the log-probability of each target's token, and whether no logit is larger."""


class PassLogits(Protocol):
    """The logits of a pass's targets, perhaps not yet computed; several may read one row."""

    block_rows: int
    """Rows to `read` at once."""

    def begin_scores(self, token_ids: Sequence[int]) -> ReadScores:
        """Begin to score target i's token, for each i; the result waits for the end of it."""
        ...

    def read(self, targets: Sequence[int]) -> Rows:
        """Return the log-probabilities of the whole vocabulary at these targets."""
        ...

    def keep(self, targets: Sequence[int]) -> PassLogits:
        """Return those of these targets alone, which no later pass changes."""
        ...


class Scorer(ABC):
    """Scores spans, and computes their rows; once memory has run out, by smaller passes.

    Calls may take turns, step by step: one whose state another has used begins its rest again, and
    then keeps its turn until a span is complete.

    Args:
        pass_tokens: tokens of one forward pass, padding included.
    """

    _out_of_memory: type[Exception] = torch.OutOfMemoryError
    """The exceptions after which half of the tokens are tried."""
    _passes_ahead = 0
    """Passes that are begun before the scores of one are read, for a device that works alone."""

    def __init__(self, pass_tokens: int):
        self._pass_tokens = self._most_tokens = pass_tokens
        self._turn: object = None

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield the complete scores after each forward pass, in the order of the spans."""
        done = attempts = 0

        def score_rest() -> Iterator[list[TokenScore]]:
            nonlocal done, attempts
            attempts += 1
            scores = SpanScores(spans[done:])
            for targets, read in self._score_passes(spans[done:]):
                scores.add(targets, read())
                complete = scores.take_complete()
                done += len(complete)
                # Two calls that take turns would never end if both began again each time.
                if complete or attempts == 1:
                    yield complete

        return self._resume(score_rest)

    def compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        """Yield the rows of all scored positions, in the order of the spans, in blocks."""
        for group in _group_by_positions(spans, self._pass_tokens):
            yield from self._compute_together(group)

    def forget(self) -> None:
        """Free what can be computed again."""
        self._turn = None

    @abstractmethod
    def _passes(self, spans: Sequence[TokenSpan]) -> Iterator[tuple[Sequence[Target], PassLogits]]:
        """Run forward passes, and yield the targets that each has, until all spans have theirs."""

    def _score_passes(
        self, spans: Sequence[TokenSpan]
    ) -> Iterator[tuple[Sequence[Target], ReadScores]]:
        """Yield the targets of each pass with their scores, once the next ones have begun."""
        begun: list[tuple[Sequence[Target], ReadScores]] = []
        for targets, logits in self._passes(spans):
            begun.append((targets, logits.begin_scores([target.token_id for target in targets])))
            if len(begun) > self._passes_ahead:
                yield begun.pop(0)
        yield from begun

    def _halve(self) -> None:
        self._pass_tokens //= 2

    def _compute_together(self, group: Sequence[TokenSpan]) -> Iterator[Rows]:
        done = 0

        def compute_rest() -> Iterator[Rows]:
            nonlocal done
            rest = _drop_rows(group, done)
            queue = _RowQueue(rest)
            for targets, logits in self._passes(rest):
                queue.add(targets, logits)
                for block in queue.take():
                    done += len(block)
                    yield block
                queue.keep()

        return self._resume(compute_rest)

    def _resume(self, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield the steps of `begin()`, which is called again whenever they can't go on."""
        while True:
            turn = self._turn = object()
            try:
                for step in begin():
                    yield step
                    if self._turn is not turn:
                        break
                else:
                    return
            except self._out_of_memory:
                self.forget()
                if self._pass_tokens == 1:
                    self._pass_tokens = self._most_tokens  # others may fit
                    raise
                self._halve()
            except GeneratorExit:
                raise  # at the end of a step, where all layers hold the same tokens
            except BaseException:
                # Some layers may hold tokens that others don't.
                self.forget()
                raise


class _RowQueue:
    """Holds targets of passes until the rows before theirs have come."""

    def __init__(self, spans: Sequence[TokenSpan]):
        self._begins = list(accumulate(map(_count_positions, spans), initial=0))
        self._waiting: dict[int, tuple[PassLogits, int]] = {}
        self._next = 0

    def add(self, targets: Sequence[Target], logits: PassLogits) -> None:
        """Add the targets of a pass."""
        for at, target in enumerate(targets):
            self._waiting[self._begins[target.span] + target.slot] = logits, at

    def take(self) -> Iterator[Rows]:
        """Yield the rows that come next, as far as they are there."""
        while self._next in self._waiting:
            logits, block = self._waiting[self._next][0], list[int]()
            while len(block) < logits.block_rows and self._is_next_of(logits):
                block.append(self._waiting.pop(self._next)[1])
                self._next += 1
            yield logits.read(block)

    def _is_next_of(self, logits: PassLogits) -> bool:
        return self._next in self._waiting and self._waiting[self._next][0] is logits

    def keep(self) -> None:
        """Hold of each pass what still waits, and no more."""
        passes: dict[int, tuple[PassLogits, list[int]]] = {}
        for place, (logits, _) in self._waiting.items():
            passes.setdefault(id(logits), (logits, []))[1].append(place)
        for logits, places in passes.values():
            kept = logits.keep([self._waiting[place][1] for place in places])
            self._waiting |= {place: (kept, at) for at, place in enumerate(places)}


def _count_positions(span: TokenSpan) -> int:
    return len(span.token_ids) - span.start


def _group_by_positions(spans: Sequence[TokenSpan], most: int) -> Iterator[list[TokenSpan]]:
    """Yield spans that come one after the other, with together at most so many positions."""
    group: list[TokenSpan] = []
    for span in spans:
        if group and sum(map(_count_positions, [*group, span])) > most:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _drop_rows(spans: Sequence[TokenSpan], rows: int) -> list[TokenSpan]:
    """Return what is left of the spans without their first rows."""
    for at, span in enumerate(spans):
        if rows < _count_positions(span):
            return [replace(span, start=span.start + rows), *spans[at + 1 :]]
        rows -= _count_positions(span)
    return []


def group_by_tokens(spans: Sequence[TokenSpan]) -> dict[tuple[int, ...], list[Target]]:
    """Return each sequence that is fed, once, with the targets of all spans that it scores."""
    same: dict[tuple[int, ...], list[Target]] = {}
    for at, span in enumerate(spans):
        found = same.setdefault(tuple(span.fed), [])
        found += make_targets(span, at, 0, len(span.token_ids) - 1)
    return same
