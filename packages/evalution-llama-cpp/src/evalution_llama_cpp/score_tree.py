"""The segments of a scoring plan as a tree that runs side by side within a bounded cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalution_enginekit import ScoringPlan, Segment, Target
from evalution_llama_cpp.cache_ledger import CacheLedger, Share
from evalution_llama_cpp.context import Context


@dataclass(slots=True, eq=False)
class Branch:
    """A segment on its way through the model.

    `share` is what it and its descendants need while no two of its children run at a time: its own
    cells and those of its longest descent. `sequence` holds its path; `fed` counts its own tokens
    that are in the cache.
    """

    segment: Segment
    parent: Branch | None
    children: list[Branch] = field(default_factory=list["Branch"])
    share: Share = field(default_factory=lambda: Share(0))
    wanted: dict[int, list[Target]] = field(default_factory=dict[int, list[Target]])
    """Targets by the offset, in the segment, of the row that they are read off."""
    sequence: int | None = None
    fed: int = 0
    unstarted: int = 0
    unfinished: int = 0
    has_lane: bool = False
    """Whether it runs within its parent's share, rather than one of its own."""
    lane_is_taken: bool = False

    @property
    def length(self) -> int:
        return len(self.segment.token_ids)


def branches_of(plan: ScoringPlan) -> list[Branch]:
    """The plan's roots, each with its descendants; siblings in the order in which they run.

    The one that needs most sequences runs last, on its parent's own, so that a comb of prefixes
    needs two and any tree of n leaves no more than about log2(n).
    """
    branches: list[Branch] = []
    roots: list[Branch] = []
    for segment in plan.segments:
        parent = None if segment.parent is None else branches[segment.parent]
        branch = Branch(segment, parent)
        for target in segment.targets:
            branch.wanted.setdefault(target.position - segment.depth, []).append(target)
        branches.append(branch)
        (roots if parent is None else parent.children).append(branch)
    for branch in reversed(branches):
        branch.children.sort(key=lambda child: child.share.sequences)
        branch.unstarted = branch.unfinished = len(branch.children)
        branch.share = _needed(branch)
    return roots


def _needed(branch: Branch) -> Share:
    children = branch.children
    descent = max((child.share.cells for child in children), default=0)
    beside = [1 + child.share.sequences for child in children[:-1]]
    last = [child.share.sequences for child in children[-1:]]
    return Share(branch.length + descent, max([1, *beside, *last]))


class Grove:
    """Starts and ends branches, and keeps the cache's books for them.

    One child at a time runs within its parent's share, so that what has begun can always end;
    others run beside it where the ledger has room.
    """

    def __init__(self, context: Context, ledger: CacheLedger):
        self._context = context
        self._ledger = ledger
        self._growing: dict[Branch, None] = {}

    def start(self, branch: Branch) -> bool:
        """Whether there was room; then the branch has a sequence with its ancestors' tokens."""
        parent = branch.parent
        if parent is not None and not parent.lane_is_taken:
            parent.lane_is_taken = branch.has_lane = True
        elif not self._ledger.reserve(branch.share):
            return False
        self._growing[branch] = None
        if parent is None:
            branch.sequence = self._ledger.take()
            return True
        if parent.unstarted == 1:
            branch.sequence, parent.sequence = parent.sequence, None
        else:
            assert parent.sequence is not None
            branch.sequence = self._ledger.take()
            self._context.copy(parent.sequence, branch.sequence, branch.segment.depth)
        parent.unstarted -= 1
        return True

    def end(self, branch: Branch) -> Sequence[Branch]:
        """A branch without children has run: those that have ended with it, itself first."""
        ended: list[Branch] = []
        above: Branch | None = branch
        while above is not None and not above.unfinished:
            self._let_go(above)
            ended.append(above)
            parent = above.parent
            if parent is not None:
                parent.unfinished -= 1
                parent.lane_is_taken = parent.lane_is_taken and not above.has_lane
            above = parent
        return ended

    def fell(self) -> None:
        """End whatever runs."""
        for branch in list(self._growing):
            self._let_go(branch)

    def _let_go(self, branch: Branch) -> None:
        del self._growing[branch]
        if branch.sequence is not None:
            self._ledger.give_back(branch.sequence)
            branch.sequence = None
        if not branch.has_lane:
            self._ledger.release(branch.share)
