"""Scoring over a trie of prefixes: every shared token is run once, only scored rows get logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalution_enginekit import TokenScore, TokenSpan, plan_scoring
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
        logprobs = [[0.0] * (len(span.token_ids) - span.start) for span in spans]
        greedy = [True] * len(spans)
        missing = [len(values) for values in logprobs]
        done = 0
        runs = PlannedRuns(plan_scoring(spans), self._prefixes)
        for found in self._packing.passes(runs, runs.total):
            targets = [wanted.target for wanted in found.wanted]
            scores = self._forward.scores(
                found.hidden,
                [wanted.row for wanted in found.wanted],
                [target.token_id for target in targets],
            )
            for target, (logprob, is_greedy) in zip(targets, scores, strict=True):
                logprobs[target.span][target.slot] = logprob
                greedy[target.span] &= is_greedy
                missing[target.span] -= 1
            # Before the last scores are handed over: nobody may ask for more after them.
            self._remember(runs)
            begin = done
            while done < len(spans) and not missing[done]:
                done += 1
            yield [TokenScore(logprobs[at], greedy[at]) for at in range(begin, done)]

    def _remember(self, runs: PlannedRuns) -> None:
        token_ids, path = runs.roots[max(runs.roots)]
        if path.length == len(token_ids):
            self._prefixes.remember(token_ids, path)
