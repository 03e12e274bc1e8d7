"""Scoring over a trie of prefixes: every shared token is run once, only scored rows get logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalution_enginekit import TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.planning import SpanScores
from evalution_tinygrad.forward import Forward
from evalution_tinygrad.packing import Packing, PlannedRuns
from evalution_tinygrad.prefixes import Prefixes


class Scorer:
    """Scores spans, and keeps the last root of their trie for the next call."""

    def __init__(self, forward: Forward, packing: Packing, prefixes: Prefixes):
        self._forward = forward
        self._packing = packing
        self._prefixes = prefixes

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """After each pass, the scores that are complete, in the order of the spans."""
        scores = SpanScores(spans)
        runs = PlannedRuns(plan_scoring(spans), self._prefixes)
        for found in self._packing.passes(runs, runs.total):
            targets = [wanted.target for wanted in found.wanted]
            values = self._forward.scores(
                found.hidden,
                [wanted.row for wanted in found.wanted],
                [target.token_id for target in targets],
            )
            for target, (logprob, is_greedy) in zip(targets, values, strict=True):
                scores.add(target, logprob, is_greedy)
            # Before the last scores are handed over: nobody may ask for more after them.
            self._remember(runs)
            yield scores.take_complete()

    def _remember(self, runs: PlannedRuns) -> None:
        token_ids, path = runs.roots[max(runs.roots)]
        if path.length == len(token_ids):
            self._prefixes.remember(token_ids, path)
