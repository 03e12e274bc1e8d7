"""Scoring over a prefix tree: shared prefixes are decoded once, the rest side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evalution_core import EngineRuntimeError
from evalution_core.encoding import shared_prefix
from evalution_enginekit import ScoringPlan, Segment, Target, TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.distributions import RowBlock, Rows, count_block_rows, split_spans
from evalution_enginekit.planning import SpanScores
from evalution_enginekit.sampling import token_logprobs
from evalution_llama_cpp.context import Context, KVCacheBudget, Logits, Reservation

_MOST_LOGITS = 1 << 26
"""Logits of one decode: 256 MiB."""
_LEAST_ROWS = 64
"""Rows of a block with the largest vocabularies: decodes of fewer tokens take longer for each."""


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A segment of a scoring plan and how far it has run.

    `reservation` covers it and its descendants while no two of its children run at a time: its own
    cells and those of its longest line of descendants. `sequence` holds its path; `fed` counts its
    own tokens that are in the cache.
    """

    segment: Segment
    parent: PrefixNode | None
    children: list[PrefixNode] = field(default_factory=list["PrefixNode"])
    reservation: Reservation = field(default_factory=lambda: Reservation(0))
    wanted: dict[int, list[Target]] = field(default_factory=dict[int, list[Target]])
    """Targets by the offset, in the segment, of the row that they read."""
    sequence: int | None = None
    fed: int = 0
    unstarted: int = 0
    unfinished: int = 0
    uses_parents_reservation: bool = False
    """True if it runs within its parent's reservation instead of its own."""
    child_uses_reservation: bool = False

    @property
    def length(self) -> int:
        return len(self.segment.token_ids)


class PrefixTree:
    """The segments of a plan as a tree that runs side by side within the cache's budget.

    One child at a time runs within its parent's reservation, so that a node that has begun can
    always end; others run beside it where the budget has room.
    """

    def __init__(self, plan: ScoringPlan, context: Context, budget: KVCacheBudget):
        self._context = context
        self._budget = budget
        self._running: dict[PrefixNode, None] = {}
        self.roots = _make_roots(plan)

    def start(self, node: PrefixNode) -> bool:
        """Give the node a sequence with its ancestors' tokens; return whether there was room."""
        parent = node.parent
        if parent is not None and not parent.child_uses_reservation:
            parent.child_uses_reservation = node.uses_parents_reservation = True
        elif not self._budget.reserve(node.reservation):
            return False
        self._running[node] = None
        if parent is None:
            node.sequence = self._budget.take_sequence()
            return True
        if parent.unstarted == 1:
            node.sequence, parent.sequence = parent.sequence, None
        else:
            assert parent.sequence is not None
            node.sequence = self._budget.take_sequence()
            self._context.copy(parent.sequence, node.sequence, node.segment.depth)
        parent.unstarted -= 1
        return True

    def end(self, node: PrefixNode) -> Sequence[PrefixNode]:
        """End a node whose children have ended; return all that end with it, itself first."""
        ended: list[PrefixNode] = []
        above: PrefixNode | None = node
        while above is not None and not above.unfinished:
            self._release(above)
            ended.append(above)
            parent = above.parent
            if parent is not None:
                parent.unfinished -= 1
                if above.uses_parents_reservation:
                    parent.child_uses_reservation = False
            above = parent
        return ended

    def end_all(self) -> None:
        """End all running nodes."""
        for node in list(self._running):
            self._release(node)

    def _release(self, node: PrefixNode) -> None:
        del self._running[node]
        if node.sequence is not None:
            self._budget.free_sequence(node.sequence)
            node.sequence = None
        if not node.uses_parents_reservation:
            self._budget.release(node.reservation)


def _make_roots(plan: ScoringPlan) -> list[PrefixNode]:
    """Return the plan's roots, each with its descendants; siblings in the order in which they run.

    The one that needs most sequences runs last, on its parent's own, so that a comb of prefixes
    needs two and any tree of n leaves no more than about log2(n).
    """
    nodes: list[PrefixNode] = []
    roots: list[PrefixNode] = []
    for segment in plan.segments:
        parent = None if segment.parent is None else nodes[segment.parent]
        node = PrefixNode(segment, parent)
        for target in segment.targets:
            node.wanted.setdefault(target.position - segment.depth, []).append(target)
        nodes.append(node)
        (roots if parent is None else parent.children).append(node)
    for node in reversed(nodes):
        node.children.sort(key=lambda child: child.reservation.sequences)
        node.unstarted = node.unfinished = len(node.children)
        node.reservation = _count_need(node)
    return roots


def _count_need(node: PrefixNode) -> Reservation:
    children = node.children
    below = max((child.reservation.cells for child in children), default=0)
    beside = [1 + child.reservation.sequences for child in children[:-1]]
    last = [child.reservation.sequences for child in children[-1:]]
    return Reservation(node.length + below, max([1, *beside, *last]))


@dataclass(slots=True)
class SharedPrefix:
    """The tokens of the last root, in a sequence of their own, for the next call.

    `reservation` has no cells as long as the root holds them.
    """

    token_ids: Sequence[int]
    sequence: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class _Run:
    """Part of a node in a batch; the logits of `offsets` are its rows from `first` on."""

    node: PrefixNode
    first: int
    offsets: list[int]


class PrefixScorer:
    """Scores spans, many at a time, and keeps the last root for the next call.

    `make_room` is called where the budget has no room; it drops what can be computed again.
    """

    def __init__(
        self, context: Context, budget: KVCacheBudget, make_room: Callable[[Reservation], None]
    ):
        self._context = context
        self._budget = budget
        self._make_room = make_room
        self._prefix: SharedPrefix | None = None
        self._is_busy = False
        self.decoded_tokens = 0

    @property
    def prefix(self) -> SharedPrefix | None:
        return self._prefix

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield, after each decode, the complete scores in the order of the spans."""
        scores = SpanScores(spans)
        for runs, logits in self._decode_spans(spans):
            _add_scores(scores, runs, logits)
            yield scores.take_complete()

    def compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        """Yield the log-probabilities of each span's scored positions; empty blocks between."""
        vocabulary, capacity = self._context.vocabulary_size, self._context.batch.capacity
        at_once = max(count_block_rows(vocabulary), min(_LEAST_ROWS, capacity))
        # Whole batches where there are several.
        for group in split_spans(spans, at_once - at_once % capacity or at_once):
            block = RowBlock(group, vocabulary)
            for runs, logits in self._decode_spans(group):
                targets, rows = _find_targets(runs)
                block.fill(targets, logits, rows)
                yield block.rows[:0]
            yield block.rows

    def forget_prefix(self) -> None:
        if self._prefix is not None:
            self._budget.free_sequence(self._prefix.sequence)
            self._budget.release(self._prefix.reservation)
            self._prefix = None

    def _decode_spans(self, spans: Sequence[TokenSpan]) -> Iterator[tuple[list[_Run], Logits]]:
        """Yield each decode of the spans' tree, and nothing found while another tree runs.

        Two trees would take cells from each other that neither can give back.
        """
        while self._is_busy:
            yield [], np.empty((0, self._context.vocabulary_size), np.float32)
        self._is_busy = True
        tree = PrefixTree(plan_scoring(spans), self._context, self._budget)
        try:
            yield from self._decode_tree(tree)
        finally:
            self._context.batch.clear()
            tree.end_all()
            self._reserve_prefix()
            self._is_busy = False

    def _decode_tree(self, tree: PrefixTree) -> Iterator[tuple[list[_Run], Logits]]:
        """Yield each decode's runs and the logits of their wanted rows."""
        last = tree.roots[-1] if tree.roots else None
        ready, feeding = tree.roots[::-1], list[PrefixNode]()
        while ready or feeding:
            runs = [self._feed(node) for node in feeding]
            while ready and self._context.batch.room and not self._is_full(ready[-1]):
                if not self._start(ready[-1], tree, alone=not runs):
                    break
                feeding.append(ready.pop())
                runs.append(self._feed(feeding[-1]))
            self.decoded_tokens += self._context.batch.length
            logits = self._context.decode()
            fed = [node for node in feeding if node.fed == node.length]
            feeding = [node for node in feeding if node.fed < node.length]
            for node in reversed(fed):
                ready += reversed(node.children)
            for node in fed:
                if node is last:
                    self._keep(node)
                if not node.children and last in tree.end(node):
                    self._reserve_prefix()
            # At the end: after the last score the caller stops, and nothing after it would run.
            yield runs, logits

    def _start(self, node: PrefixNode, tree: PrefixTree, *, alone: bool) -> bool:
        if tree.start(node):
            self._share_prefix(node)
            return True
        if not alone:
            return False
        # Nothing else runs, so no room will come by itself. Releasing the prefix's cells is enough:
        # a root that begins as it does takes their tokens over.
        self._release_prefix()
        self._make_room(node.reservation)
        if tree.start(node):
            self._share_prefix(node)
            self.forget_prefix()
            return True
        self.forget_prefix()
        if not tree.start(node):
            raise EngineRuntimeError(
                f"a path of {node.reservation.cells} tokens doesn't fit the KV cache"
            )
        return True

    def _share_prefix(self, root: PrefixNode) -> None:
        """Copy to a root what it shares with the kept prefix before the first wanted row."""
        prefix = self._prefix
        if prefix is None or root.parent is not None:
            return
        assert root.sequence is not None
        first_row = min(root.wanted, default=root.length)
        # A root whose every token is in the cache would have no decode to end in.
        most = min(first_row, root.length - 1)
        shared = min(shared_prefix(prefix.token_ids, root.segment.token_ids), most)
        if shared and self._context.can_fork(prefix.sequence, shared):
            self._context.copy(prefix.sequence, root.sequence, shared)
            root.fed = shared

    def _keep(self, root: PrefixNode) -> None:
        """Keep the root's tokens as the shared prefix if a sequence is left for them."""
        self.forget_prefix()
        sequence_alone = Reservation(0)
        if not self._budget.reserve(sequence_alone):
            return
        assert root.sequence is not None
        sequence = self._budget.take_sequence()
        self._context.copy(root.sequence, sequence, root.length)
        self._prefix = SharedPrefix(root.segment.token_ids, sequence, sequence_alone)

    def _reserve_prefix(self) -> None:
        """Reserve the prefix's cells once its root, which held them, has released its own."""
        prefix = self._prefix
        if prefix is not None and not prefix.reservation.cells:
            reserved = self._budget.reserve(Reservation(len(prefix.token_ids), 0))
            assert reserved
            prefix.reservation = Reservation(len(prefix.token_ids))

    def _release_prefix(self) -> None:
        """Release the prefix's cells and keep its sequence."""
        if self._prefix is not None:
            self._budget.release(Reservation(self._prefix.reservation.cells, 0))
            self._prefix.reservation = Reservation(0)

    def _is_full(self, node: PrefixNode) -> bool:
        """Return whether another node's rows would need more logits than may exist at a time."""
        return bool(node.wanted) and self._rows_left() < 1

    def _rows_left(self) -> int:
        rows = max(1, _MOST_LOGITS // self._context.vocabulary_size)
        return rows - self._context.batch.outputs

    def _feed(self, node: PrefixNode) -> _Run:
        """Add as much of the node's remaining tokens to the batch as fits."""
        assert node.sequence is not None
        begin = node.fed
        end = min(node.length, begin + self._context.batch.room)
        offsets = [at for at in range(begin, end) if at in node.wanted]
        if len(offsets) > (left := max(0, self._rows_left())):
            end = offsets[left]
            offsets = offsets[:left]
        first = self._context.batch.add(
            node.segment.token_ids[begin:end],
            node.segment.depth + begin,
            node.sequence,
            [at - begin for at in offsets],
        )
        node.fed = end
        return _Run(node, first, offsets)


def _find_targets(runs: Sequence[_Run]) -> tuple[list[Target], list[int]]:
    """Return the targets of the decoded rows, and the row of the logits that each reads."""
    targets: list[Target] = []
    rows: list[int] = []
    for run in runs:
        for row, offset in enumerate(run.offsets, run.first):
            found = run.node.wanted[offset]
            targets += found
            rows += [row] * len(found)
    return targets, rows


def _add_scores(scores: SpanScores, runs: Sequence[_Run], logits: Logits) -> None:
    """Note what the targets of the decoded rows got."""
    targets, rows = _find_targets(runs)
    if not targets:
        return
    token_ids = np.array([target.token_id for target in targets], np.int64)
    logprobs, greedy = token_logprobs(logits, token_ids, np.array(rows, np.int64))
    scores.add(targets, zip(logprobs, greedy, strict=True))
