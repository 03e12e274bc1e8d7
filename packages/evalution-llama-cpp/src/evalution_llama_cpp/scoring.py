"""Scoring over a trie of prefixes: what spans share is decoded once, the rest side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evalution_core import EngineRuntimeError
from evalution_enginekit import Target, TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.planning import SpanScores, shared_prefix
from evalution_enginekit.sampling import token_logprobs
from evalution_llama_cpp.cache_ledger import CacheLedger, Share
from evalution_llama_cpp.context import Context, Logits
from evalution_llama_cpp.score_tree import Branch, Grove, branches_of

_MOST_LOGITS = 1 << 26
"""Logits of one decode: 256 MiB."""


@dataclass(slots=True)
class Head:
    """The tokens of the last root, in a sequence of their own, for the next call.

    `share` is what is reserved for it: no cells while its root has them.
    """

    token_ids: Sequence[int]
    sequence: int
    share: Share


@dataclass(frozen=True, slots=True)
class _Run:
    """Part of a branch in a batch: its tokens from `begin` to `end`, its rows from `first` on."""

    branch: Branch
    first: int
    offsets: list[int]


class TrieScorer:
    """Scores spans, many at a time, and keeps the head of the last ones for the next call.

    `give_way` is asked for room where the ledger has none: it drops what can be computed again.
    """

    def __init__(self, context: Context, ledger: CacheLedger, give_way: Callable[[Share], None]):
        self._context = context
        self._ledger = ledger
        self._give_way = give_way
        self._head: Head | None = None
        self.decoded_tokens = 0

    @property
    def head(self) -> Head | None:
        return self._head

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """After each decode, the scores that are complete, in the order of the spans."""
        scores = SpanScores(spans)
        roots = branches_of(plan_scoring(spans))
        grove = Grove(self._context, self._ledger)
        try:
            for runs, logits in self._passes(roots, grove):
                _add_scores(scores, runs, logits)
                yield scores.take_complete()
        finally:
            self._context.batch.clear()
            grove.fell()
            self._reserve_head()

    def forget_head(self) -> None:
        if self._head is not None:
            self._ledger.give_back(self._head.sequence)
            self._ledger.release(self._head.share)
            self._head = None

    def _passes(self, roots: list[Branch], grove: Grove) -> Iterator[tuple[list[_Run], Logits]]:
        """Each decode's runs and the logits of their wanted rows."""
        last = roots[-1] if roots else None
        ready, feeding = roots[::-1], list[Branch]()
        while ready or feeding:
            runs = [self._feed(branch) for branch in feeding]
            while ready and self._context.batch.room and not self._is_full(ready[-1]):
                if not self._started(ready[-1], grove, alone=not runs):
                    break
                feeding.append(ready.pop())
                runs.append(self._feed(feeding[-1]))
            self.decoded_tokens += self._context.batch.length
            logits = self._context.decode()
            fed = [branch for branch in feeding if branch.fed == branch.length]
            feeding = [branch for branch in feeding if branch.fed < branch.length]
            for branch in reversed(fed):
                ready += reversed(branch.children)
            for branch in fed:
                if branch is last:
                    self._keep(branch)
                if not branch.children and last in grove.end(branch):
                    self._reserve_head()
            # Last of all: with the last score the caller lets go, and nothing behind would run.
            yield runs, logits

    def _started(self, branch: Branch, grove: Grove, *, alone: bool) -> bool:
        if grove.start(branch):
            self._share_head(branch)
            return True
        if not alone:
            return False
        # Nothing else is under way, so no room will come by itself. Of the head its cells are
        # enough: a root that begins as it does takes their tokens over.
        self._release_head()
        self._give_way(branch.share)
        if grove.start(branch):
            self._share_head(branch)
            self.forget_head()
            return True
        self.forget_head()
        if not grove.start(branch):
            raise EngineRuntimeError(
                f"a path of {branch.share.cells} tokens doesn't fit the KV cache"
            )
        return True

    def _share_head(self, root: Branch) -> None:
        """Let a root begin with what the head has of it before the first row that is wanted."""
        head = self._head
        if head is None or root.parent is not None:
            return
        assert root.sequence is not None
        first_row = min(root.wanted, default=root.length)
        # A root whose every token is in the cache would have no decode to end in.
        most = min(first_row, root.length - 1)
        shared = min(shared_prefix(head.token_ids, root.segment.token_ids), most)
        if shared and self._context.can_fork(head.sequence, shared):
            self._context.copy(head.sequence, root.sequence, shared)
            root.fed = shared

    def _keep(self, root: Branch) -> None:
        """Make the root's tokens the head, where a sequence is left for them."""
        self.forget_head()
        sequence_alone = Share(0)
        if not self._ledger.reserve(sequence_alone):
            return
        assert root.sequence is not None
        sequence = self._ledger.take()
        self._context.copy(root.sequence, sequence, root.length)
        self._head = Head(root.segment.token_ids, sequence, sequence_alone)

    def _reserve_head(self) -> None:
        """Reserve the head's cells as soon as its root, which had them, has released its own."""
        head = self._head
        if head is not None and not head.share.cells:
            reserved = self._ledger.reserve(Share(len(head.token_ids), 0))
            assert reserved
            head.share = Share(len(head.token_ids))

    def _release_head(self) -> None:
        """Leave the head its sequence alone."""
        if self._head is not None:
            self._ledger.release(Share(self._head.share.cells, 0))
            self._head.share = Share(0)

    def _is_full(self, branch: Branch) -> bool:
        """Whether another branch's rows would need more logits than may exist at a time."""
        return bool(branch.wanted) and self._rows_left() < 1

    def _rows_left(self) -> int:
        rows = max(1, _MOST_LOGITS // self._context.vocabulary_size)
        return rows - self._context.batch.outputs

    def _feed(self, branch: Branch) -> _Run:
        """Add what fits of the branch's rest to the batch."""
        assert branch.sequence is not None
        begin = branch.fed
        end = min(branch.length, begin + self._context.batch.room)
        offsets = [at for at in range(begin, end) if at in branch.wanted]
        if len(offsets) > (left := max(0, self._rows_left())):
            end = offsets[left]
            offsets = offsets[:left]
        first = self._context.batch.add(
            branch.segment.token_ids[begin:end],
            branch.segment.depth + begin,
            branch.sequence,
            [at - begin for at in offsets],
        )
        branch.fed = end
        return _Run(branch, first, offsets)


def _add_scores(scores: SpanScores, runs: Sequence[_Run], logits: Logits) -> None:
    """Note what the targets of the decoded rows got."""
    targets: list[Target] = []
    rows: list[int] = []
    for run in runs:
        for row, offset in enumerate(run.offsets, run.first):
            found = run.branch.wanted[offset]
            targets += found
            rows += [row] * len(found)
    if not targets:
        return
    token_ids = np.array([target.token_id for target in targets], np.int64)
    logprobs, greedy = token_logprobs(logits, token_ids, np.array(rows, np.int64))
    for target, logprob, is_greedy in zip(targets, logprobs, greedy, strict=True):
        scores.add(target, logprob, is_greedy)
