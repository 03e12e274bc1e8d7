"""Scoring over a prefix tree: shared prefixes run once, the rest side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evalution_core.encoding import shared_prefix
from evalution_enginekit import ScoringPlan, Segment, TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.distributions import Rows, count_block_rows, log_softmax_rows
from evalution_enginekit.planning import SpanScores
from evalution_enginekit.sampling import token_logprobs
from evalution_reference.llama import Floats, KVCache, Llama

_SEGMENTS_AT_ONCE = 16
_ROWS_AT_ONCE = 256
"""Rows of logits that exist at a time: bounds memory by 256 x vocabulary."""

_ScoredSegment = tuple[Segment, list[tuple[float, bool]]]
"""A segment with log-probability and greediness of each of its targets."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The tokens of a plan's root, and a cache that holds them."""

    token_ids: list[int]
    cache: KVCache


@dataclass(slots=True)
class _Visit:
    """A segment whose ancestors are in `cache`, with perhaps some of its own tokens."""

    index: int
    segment: Segment
    cache: KVCache

    @property
    def run(self) -> list[int]:
        return self.segment.token_ids[self.cache.length - self.segment.depth :]


class PrefixScorer:
    """Scores spans and keeps the last plan's root for the next call.

    A kept cache is only copied from, so a call that fails doesn't affect the next.
    """

    def __init__(self, model: Llama):
        self._model = model
        self._prefix: SharedPrefix | None = None

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield, after each forward pass, the complete scores in the order of the spans."""
        scores = SpanScores(spans)
        for passed in self._run_passes(plan_scoring(spans)):
            for segment, found in passed:
                scores.add(segment.targets, found)
            yield scores.take_complete()

    def compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        """Yield the log-probabilities of each span's scored positions, a block at a time."""
        at_once = count_block_rows(self._model.config.vocab_size)
        for span in spans:
            fed, first = list(span.fed), span.start - 1
            cache = self._make_root_cache(fed, first, self._prefix)
            begin = cache.length
            hidden = self._model.extend([np.array(fed[begin:])], [cache])
            self._prefix = SharedPrefix(fed, cache)
            for at in range(first - begin, len(hidden), at_once):
                yield log_softmax_rows(self._model.logits(hidden[at : at + at_once]))

    def forget_prefix(self) -> None:
        self._prefix = None

    def _run_passes(self, plan: ScoringPlan) -> Iterator[list[_ScoredSegment]]:
        """Yield the scored segments of each forward pass, those of the first spans first."""
        children: dict[int | None, list[int]] = {}
        for index, segment in enumerate(plan.segments):
            children.setdefault(segment.parent, []).append(index)
        roots = children.get(None, [])
        prefix = self._prefix
        waiting: list[tuple[int, KVCache | None]] = [(root, None) for root in reversed(roots)]
        while waiting:
            # Caches are made only when their turn comes: waiting segments hold none.
            taken = [waiting.pop() for _ in range(min(_SEGMENTS_AT_ONCE, len(waiting)))]
            visits = [
                self._make_visit(at, plan.segments[at], before, prefix) for at, before in taken
            ]
            yield list(self._run(visits))
            for visit in reversed(visits):
                if visit.index == roots[-1]:
                    self._prefix = SharedPrefix(visit.segment.token_ids, visit.cache)
                later = reversed(children.get(visit.index, []))
                waiting += [(child, visit.cache) for child in later]

    def _make_visit(
        self, index: int, segment: Segment, before: KVCache | None, prefix: SharedPrefix | None
    ) -> _Visit:
        if before is not None:
            return _Visit(index, segment, before.fork())
        ids = segment.token_ids
        first_row = min((target.position for target in segment.targets), default=len(ids))
        return _Visit(index, segment, self._make_root_cache(ids, first_row, prefix))

    def _make_root_cache(
        self, token_ids: list[int], first_row: int, prefix: SharedPrefix | None
    ) -> KVCache:
        """Return a cache of what `prefix` shares with the ids, up to the first scored row."""
        if prefix is None:
            return self._model.new_cache()
        shared = min(shared_prefix(prefix.token_ids, token_ids), first_row)
        if not shared:
            return self._model.new_cache()
        cache = prefix.cache.fork()
        cache.truncate(shared)
        return cache

    def _run(self, visits: list[_Visit]) -> Iterator[_ScoredSegment]:
        running = [visit for visit in visits if visit.run]
        if not running:
            return
        begins = [visit.cache.length for visit in running]
        runs = [np.array(visit.run) for visit in running]
        hidden = self._model.extend(runs, [visit.cache for visit in running])
        rows: list[int] = []
        offset = 0
        for visit, begin, run in zip(running, begins, runs, strict=True):
            rows += [offset + target.position - begin for target in visit.segment.targets]
            offset += len(run)
        targets = [target.token_id for visit in running for target in visit.segment.targets]
        scores = iter(self._score_rows(hidden, rows, targets))
        for visit in running:
            yield visit.segment, [next(scores) for _ in visit.segment.targets]

    def _score_rows(
        self, hidden: Floats, rows: list[int], targets: list[int]
    ) -> Iterator[tuple[float, bool]]:
        """Yield log-probability and greediness of each target; several may read the same row."""
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            wanted, inverse = np.unique(rows[at : at + _ROWS_AT_ONCE], return_inverse=True)
            token_ids = np.array(targets[at : at + _ROWS_AT_ONCE])
            found = token_logprobs(self._model.logits(hidden[wanted]), token_ids, inverse)
            yield from zip(*found, strict=True)
