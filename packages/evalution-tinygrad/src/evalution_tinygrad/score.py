"""Scoring over a prefix tree: every shared token runs once, only scored rows get logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalution_enginekit import ScoringPlan, TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.distributions import RowBlock, Rows, count_block_rows, split_spans
from evalution_enginekit.planning import SpanScores
from evalution_tinygrad.kv_cache import Path, Prefixes
from evalution_tinygrad.model import SCORED_ROWS, Forward, Packing, Pass, Run


class PlannedRuns:
    """The runs of a plan, each root behind the prefix of it that is kept.

    `roots` are the tokens and paths of the plan's roots; `total` is the number of tokens to run.
    """

    def __init__(self, plan: ScoringPlan, prefixes: Prefixes):
        self._plan = plan
        self.roots: dict[int, tuple[list[int], Path]] = {}
        self.total = plan.unique_tokens
        for index, segment in enumerate(plan.segments):
            if segment.parent is None:
                # Only tokens that are run have rows, not those in the cache.
                first = min((t.position for t in segment.targets), default=len(segment.token_ids))
                path = prefixes.find_path(segment.token_ids, first)
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


class Scorer:
    """Scores spans and keeps the last root of their tree for the next call."""

    def __init__(self, forward: Forward, packing: Packing, prefixes: Prefixes):
        self._forward = forward
        self._packing = packing
        self._prefixes = prefixes

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield, after each pass, the complete scores in the order of the spans."""
        scores = SpanScores(spans)
        for found in self._run_passes(spans):
            targets = [wanted.target for wanted in found.wanted]
            values = self._forward.scores(
                found.hidden,
                [wanted.row for wanted in found.wanted],
                [target.token_id for target in targets],
            )
            scores.add(targets, values)
            yield scores.take_complete()

    def compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        """Yield the log-probabilities of each span's scored positions; empty blocks between."""
        vocabulary = self._forward.vocabulary_size
        at_once = count_block_rows(vocabulary)
        for group in split_spans(spans, at_once - at_once % SCORED_ROWS or at_once):
            block = RowBlock(group, vocabulary)
            for found in self._run_passes(group):
                for at in range(0, len(found.wanted), SCORED_ROWS):
                    wanted = found.wanted[at : at + SCORED_ROWS]
                    rows = [each.row for each in wanted]
                    logits = self._forward.logits(found.hidden, rows, SCORED_ROWS)
                    targets = [each.target for each in wanted]
                    block.fill(targets, logits, range(len(wanted)))
                yield block.rows[:0]
            yield block.rows

    def _run_passes(self, spans: Sequence[TokenSpan]) -> Iterator[Pass]:
        """Yield the passes of the spans' tree; the last root is kept with the last one."""
        runs = PlannedRuns(plan_scoring(spans), self._prefixes)
        for found in self._packing.passes(runs, runs.total):
            # Before the last pass is yielded: the caller may stop after it.
            self._remember(runs)
            yield found

    def _remember(self, runs: PlannedRuns) -> None:
        token_ids, path = runs.roots[max(runs.roots)]
        if path.length == len(token_ids):
            self._prefixes.remember(token_ids, path)
