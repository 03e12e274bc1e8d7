"""Which parts of a scoring plan's trie one forward pass takes.

A pass takes whole subtrees side by side, up to a number of tokens, behind a trunk that is cached. A
subtree that is too large has its root put into the trunk, and its children are taken one after the
other; if the root is only a few tokens, they are run again in each pass that needs them, which is
cheaper than a pass of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from evalution_enginekit import ScoringPlan, Target

_RELAY_SHARE = 64
"""A root of at most a 64th of a pass is repeated rather than cached."""


@dataclass(slots=True)
class Branch:
    """A segment of the trie; `targets` are those that no pass has scored yet."""

    depth: int
    token_ids: list[int]
    targets: list[Target]
    parent: int | None
    children: list[int] = field(default_factory=list[int])
    subtree: int = 0

    @property
    def end(self) -> int:
        return self.depth + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Pack:
    """The branches of one pass, each behind its parent, and the path that the trunk has to hold."""

    trunk: tuple[int, ...]
    members: tuple[int, ...]


@dataclass(slots=True)
class _Fork:
    """Subtrees that wait, the trunk they grow on, and short branches between the two."""

    trunk: tuple[int, ...]
    relays: tuple[int, ...]
    waiting: list[int]


class Packing:
    """Hands out packs in the order of the plan, each within the number of tokens asked for."""

    def __init__(self, plan: ScoringPlan):
        self.branches = [
            Branch(segment.depth, segment.token_ids, list(segment.targets), segment.parent)
            for segment in plan.segments
        ]
        roots: list[int] = []
        for at, branch in enumerate(self.branches):
            siblings = roots if branch.parent is None else self.branches[branch.parent].children
            siblings.append(at)
        for branch in reversed(self.branches):
            below = sum(self.branches[child].subtree for child in branch.children)
            branch.subtree = len(branch.token_ids) + below
        self._forks = [_Fork((), (), roots)] if roots else []

    @property
    def first_path(self) -> list[int]:
        """The tokens of the first root before its first target: what a cache may stand for."""
        if not self._forks:
            return []
        root = self.branches[self._forks[0].waiting[0]]
        first = min((target.position for target in root.targets), default=len(root.token_ids) - 1)
        return root.token_ids[:first]

    def begin_behind(self, cached: int) -> None:
        """Cut the first root in two: the first `cached` tokens of `first_path` are a trunk."""
        at = self._forks[0].waiting.pop(0)
        root = self.branches[at]
        upper = Branch(0, root.token_ids[:cached], [], None, [at], root.subtree)
        root.parent = len(self.branches)
        self.branches.append(upper)
        root.depth, root.token_ids = cached, root.token_ids[cached:]
        root.subtree -= cached
        self._forks.append(_Fork((root.parent,), (), [at]))

    def next_pack(self, capacity: Callable[[int], int]) -> Pack | None:
        """The next pack, or None at the end; `capacity` is the tokens that fit behind a trunk."""
        members: list[int] = []
        used = 0
        trunk: tuple[int, ...] | None = None
        while self._forks:
            fork = self._forks[-1]
            if not fork.waiting:
                self._forks.pop()
                continue
            if trunk is not None and fork.trunk != trunk:
                break
            room = capacity(self._end(fork.trunk))
            relays = [relay for relay in fork.relays if relay not in members]
            between = sum(len(self.branches[relay].token_ids) for relay in relays)
            needed = between + self.branches[fork.waiting[0]].subtree
            if used + needed <= room:
                members += [*relays, *self._subtree(fork.waiting.pop(0))]
                used, trunk = used + needed, fork.trunk
            elif needed <= room:
                break
            elif (deeper := self._opened(fork, room, allow_trunk=not members)) is not None:
                self._forks.append(deeper)
                if deeper.trunk != fork.trunk and not deeper.waiting:
                    return Pack(deeper.trunk, ())
            else:
                break
        return Pack(trunk, tuple(members)) if trunk is not None else None

    def state(self) -> list[_Fork]:
        """What `restore` goes back to."""
        return [_Fork(fork.trunk, fork.relays, list(fork.waiting)) for fork in self._forks]

    def restore(self, state: list[_Fork]) -> None:
        self._forks = state

    def path_ids(self, path: tuple[int, ...]) -> list[int]:
        return [token_id for at in path for token_id in self.branches[at].token_ids]

    def _opened(self, fork: _Fork, room: int, *, allow_trunk: bool) -> _Fork | None:
        """The children of a subtree that doesn't fit, behind its root; None: not in this pack."""
        root = self.branches[fork.waiting[0]]
        between = sum(len(self.branches[relay].token_ids) for relay in fork.relays)
        short = between + len(root.token_ids) <= room // _RELAY_SHARE
        if not (short and root.children) and not allow_trunk:
            return None
        at = fork.waiting.pop(0)
        if short and root.children:
            return _Fork(fork.trunk, (*fork.relays, at), list(root.children))
        return _Fork((*fork.trunk, *fork.relays, at), (), list(root.children))

    def _end(self, path: tuple[int, ...]) -> int:
        return self.branches[path[-1]].end if path else 0

    def _subtree(self, root: int) -> list[int]:
        found: list[int] = []
        waiting = [root]
        while waiting:
            at = waiting.pop()
            found.append(at)
            waiting.extend(reversed(self.branches[at].children))
        return found
