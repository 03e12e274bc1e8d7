"""Scoring over a trie of prefixes: what spans share is run once, what they don't side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evalution_enginekit import ScoringPlan, Segment, TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.prefix_trie import shared_prefix
from evalution_reference.kv_cache import KVCache
from evalution_reference.llama import Floats, Llama
from evalution_reference.log_softmax import token_logprobs

_SEGMENTS_AT_ONCE = 16
_ROWS_AT_ONCE = 256
"""Rows of logits that exist at a time: bounds memory by 256 x vocabulary."""


@dataclass(slots=True)
class _Visit:
    """A segment whose ancestors are in `cache`, and perhaps some of its own tokens."""

    index: int
    segment: Segment
    cache: KVCache

    @property
    def run(self) -> list[int]:
        return self.segment.token_ids[self.cache.length - self.segment.depth :]


class PrefixScorer:
    """Scores spans, and keeps the head of the last ones for the next call."""

    def __init__(self, model: Llama):
        self._model = model
        self._head: tuple[list[int], KVCache] | None = None

    def score(self, spans: Sequence[TokenSpan]) -> list[TokenScore]:
        """One score a span, in their order."""
        logprobs = [[0.0] * (len(span.token_ids) - span.start) for span in spans]
        greedy = [True] * len(spans)
        for segment, found in self._scored_segments(plan_scoring(spans)):
            for target, (logprob, is_greedy) in zip(segment.targets, found, strict=True):
                logprobs[target.span][target.slot] = logprob
                greedy[target.span] &= is_greedy
        return [TokenScore(*score) for score in zip(logprobs, greedy, strict=True)]

    def forget_head(self) -> None:
        self._head = None

    def _scored_segments(
        self, plan: ScoringPlan
    ) -> Iterator[tuple[Segment, list[tuple[float, bool]]]]:
        children: dict[int | None, list[int]] = {}
        for index, segment in enumerate(plan.segments):
            children.setdefault(segment.parent, []).append(index)
        waiting = [(root, self._head_for(plan.segments[root])) for root in children.get(None, [])]
        while waiting:
            # Forked only when its turn comes: what waits holds no cache of its own.
            taken = [waiting.pop() for _ in range(min(_SEGMENTS_AT_ONCE, len(waiting)))]
            visits = [_Visit(at, plan.segments[at], cache.fork()) for at, cache in taken]
            yield from self._run(visits)
            for visit in visits:
                if visit.segment.parent is None:
                    self._head = (visit.segment.token_ids, visit.cache)
                waiting += [(child, visit.cache) for child in children.get(visit.index, [])]

    def _head_for(self, root: Segment) -> KVCache:
        """What the kept head has of this segment before the first row that is wanted."""
        if self._head is None:
            return self._model.new_cache()
        token_ids, head = self._head
        first_row = min((target.position for target in root.targets), default=len(root.token_ids))
        cache = head.fork()
        cache.truncate(min(shared_prefix(token_ids, root.token_ids), first_row))
        return cache

    def _run(self, visits: list[_Visit]) -> Iterator[tuple[Segment, list[tuple[float, bool]]]]:
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
        scores = iter(self._scores(hidden, rows, targets))
        for visit in running:
            yield visit.segment, [next(scores) for _ in visit.segment.targets]

    def _scores(
        self, hidden: Floats, rows: list[int], targets: list[int]
    ) -> Iterator[tuple[float, bool]]:
        """Log-probability and greediness of each target; several may read the same row."""
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            wanted, inverse = np.unique(rows[at : at + _ROWS_AT_ONCE], return_inverse=True)
            logits = self._model.logits(hidden[wanted])[inverse]
            found = token_logprobs(logits, np.array(targets[at : at + _ROWS_AT_ONCE]))
            yield from zip(*found, strict=True)
