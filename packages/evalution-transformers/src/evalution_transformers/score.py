"""Scoring: every shared prefix run once where the model allows it, else padded rows.

A pass over a prefix tree takes whole subtrees side by side, up to a number of tokens, behind a
prefix that is cached. A subtree that is too large has its root added to the cached prefix, and its
children are taken one after the other; if the root is only a few tokens, they are run again in each
pass that needs them, which is cheaper than a pass of their own. Sequences of a pass that share next
to nothing and are about as long stand in rows of their own, others in one row under a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from evalution_enginekit import ScoringPlan, Target, TokenSpan, batches, plan_scoring
from evalution_transformers.forward import Forward, SharedPrefix, TorchLogits
from evalution_transformers.scoring_passes import PassLogits, Scorer, group_by_tokens

_LEAST_KEPT = 8
"""Cached tokens from which continuing behind them beats running them again."""
_PADDED = 1.05
"""Tokens with their padding, for each token, up to which sequences stand in rows of their own."""
_REPEATED_SHARE = 64
"""A root of at most a 64th of a pass is repeated rather than cached."""


@dataclass(slots=True)
class Node:
    """A run of tokens in the tree; `targets` are those that no pass has scored yet."""

    depth: int
    token_ids: list[int]
    targets: list[Target]
    parent: int | None
    children: list[int] = field(default_factory=list[int])
    subtree_tokens: int = 0

    @property
    def end(self) -> int:
        return self.depth + len(self.token_ids)


Row: TypeAlias = tuple[Sequence[int], Sequence[Target]]
"""A sequence from its first token, with the targets that its pass scores."""


@dataclass(frozen=True, slots=True)
class TreePass:
    """The nodes of one pass, each behind its parent, and the path that must be cached before it."""

    cached: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(slots=True)
class _Fork:
    """Subtrees that wait, the cached path before them, and short nodes between the two."""

    cached: tuple[int, ...]
    repeated: tuple[int, ...]
    waiting: list[int]


class PrefixTree:
    """Divides the tree of a scoring plan into passes, in the order of the plan."""

    def __init__(self, plan: ScoringPlan):
        self.nodes = [
            Node(segment.depth, segment.token_ids, list(segment.targets), segment.parent)
            for segment in plan.segments
        ]
        roots: list[int] = []
        for at, node in enumerate(self.nodes):
            siblings = roots if node.parent is None else self.nodes[node.parent].children
            siblings.append(at)
        for node in reversed(self.nodes):
            below = sum(self.nodes[child].subtree_tokens for child in node.children)
            node.subtree_tokens = len(node.token_ids) + below
        self._forks = [_Fork((), (), roots)] if roots else []

    @property
    def first_path(self) -> list[int]:
        """The tokens of the first root before its first target, which a cache may stand for."""
        if not self._forks:
            return []
        root = self.nodes[self._forks[0].waiting[0]]
        first = min((target.position for target in root.targets), default=len(root.token_ids) - 1)
        return root.token_ids[:first]

    def begin_behind(self, cached: int) -> None:
        """Cut the first root in two, of which the first `cached` tokens are cached already."""
        at = self._forks[0].waiting.pop(0)
        root = self.nodes[at]
        upper = Node(0, root.token_ids[:cached], [], None, [at], root.subtree_tokens)
        root.parent = len(self.nodes)
        self.nodes.append(upper)
        root.depth, root.token_ids = cached, root.token_ids[cached:]
        root.subtree_tokens -= cached
        self._forks.append(_Fork((root.parent,), (), [at]))

    def next_pass(self, room: int) -> TreePass | None:
        """Return the next pass, of at most `room` tokens not cached, or None at the end."""
        nodes: list[int] = []
        used = 0
        cached: tuple[int, ...] | None = None
        while self._forks:
            fork = self._forks[-1]
            if not fork.waiting:
                self._forks.pop()
                continue
            if cached is not None and fork.cached != cached:
                break
            repeated = [at for at in fork.repeated if at not in nodes]
            between = sum(len(self.nodes[at].token_ids) for at in repeated)
            needed = between + self.nodes[fork.waiting[0]].subtree_tokens
            if used + needed <= room:
                nodes += [*repeated, *self._subtree(fork.waiting.pop(0))]
                used, cached = used + needed, fork.cached
            elif needed <= room:
                break
            elif (deeper := self._open(fork, room, may_cache=not nodes)) is not None:
                self._forks.append(deeper)
                if deeper.cached != fork.cached and not deeper.waiting:
                    return TreePass(deeper.cached, ())
            else:
                break
        return TreePass(cached, tuple(nodes)) if cached is not None else None

    def path_ids(self, path: tuple[int, ...]) -> list[int]:
        """Return the tokens along a path of nodes."""
        return [token_id for at in path for token_id in self.nodes[at].token_ids]

    def find_rows(self, nodes: Sequence[int], room: int) -> list[Row] | None:
        """Return a pass behind no prefix as a row for each leaf, if that adds hardly any tokens.

        With their padding, the rows are at most `room` tokens. Attention within rows takes far less
        than with a mask over all tokens in one.
        """
        inner = {self.nodes[at].parent for at in nodes}
        leaves = [at for at in nodes if at not in inner]
        padded = len(leaves) * max(self.nodes[leaf].end for leaf in leaves)
        tokens = sum(len(self.nodes[at].token_ids) for at in nodes)
        if padded > min(room, _PADDED * tokens):
            return None
        rows: list[Row] = []
        scored: set[int] = set()
        for leaf in leaves:
            path = self._find_path(leaf)
            fresh = [at for at in path if at not in scored]
            scored.update(path)
            targets = [target for at in fresh for target in self.nodes[at].targets]
            rows.append((self.path_ids(path), targets))
        return rows

    def _find_path(self, leaf: int) -> tuple[int, ...]:
        path = [leaf]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return tuple(reversed(path))

    def _open(self, fork: _Fork, room: int, *, may_cache: bool) -> _Fork | None:
        """Return the children of a subtree that doesn't fit; None: not in this pass."""
        root = self.nodes[fork.waiting[0]]
        between = sum(len(self.nodes[at].token_ids) for at in fork.repeated)
        short = between + len(root.token_ids) <= room // _REPEATED_SHARE
        if not (short and root.children) and not may_cache:
            return None
        at = fork.waiting.pop(0)
        if short and root.children:
            return _Fork(fork.cached, (*fork.repeated, at), list(root.children))
        return _Fork((*fork.cached, *fork.repeated, at), (), list(root.children))

    def _subtree(self, root: int) -> list[int]:
        found: list[int] = []
        waiting = [root]
        while waiting:
            at = waiting.pop()
            found.append(at)
            waiting.extend(reversed(self.nodes[at].children))
        return found


class PrefixScorer(Scorer):
    """Scores spans over the tree of their prefixes, and keeps the last prefix for the next call.

    Args:
        forward: the model.
        pass_tokens: as in `Scorer`.
        keeps_prefix: False where weights may change between two calls, as in a training loop.
    """

    def __init__(self, forward: Forward, *, pass_tokens: int, keeps_prefix: bool = True):
        super().__init__(pass_tokens)
        self._forward = forward
        self._keeps_prefix = keeps_prefix
        self._prefix = SharedPrefix(forward)

    def forget(self) -> None:
        super().forget()
        self._prefix.clear()

    def _passes(self, spans: Sequence[TokenSpan]) -> Iterator[tuple[Sequence[Target], PassLogits]]:
        if not self._keeps_prefix:
            self._prefix.clear()
        tree = PrefixTree(plan_scoring(spans))
        cached = self._prefix.count_shared(tree.first_path)
        if cached >= _LEAST_KEPT:
            tree.begin_behind(cached)
        while (tree_pass := tree.next_pass(self._pass_tokens)) is not None:
            yield from self._run(tree, tree_pass)

    def _run(
        self, tree: PrefixTree, tree_pass: TreePass
    ) -> Iterator[tuple[Sequence[Target], PassLogits]]:
        path = tree.path_ids(tree_pass.cached)
        wanted = [target for at in tree_pass.cached for target in tree.nodes[at].targets]
        begin = self._prefix.count_shared(path)
        begin = min([begin, *(target.position for target in wanted)])
        for place, inputs in self._prefix.passes(path, begin, self._pass_tokens):
            inside = [target for target in wanted if target.position in place]
            if inside:
                columns = [target.position - place.start for target in inside]
                yield inside, TorchLogits.run(self._forward, inputs, columns)
            else:
                self._forward.run(inputs)
        if tree_pass.nodes:
            rows = None if tree_pass.cached else tree.find_rows(tree_pass.nodes, self._pass_tokens)
            if rows is None:
                yield self._run_nodes(tree, tree_pass.nodes)
            else:
                yield run_rows(self._forward, rows)
        for at in (*tree_pass.cached, *tree_pass.nodes):
            tree.nodes[at].targets = []

    def _run_nodes(
        self, tree: PrefixTree, nodes: tuple[int, ...]
    ) -> tuple[list[Target], PassLogits]:
        """Run nodes side by side in one row of tokens, each behind its parent if that is there."""
        place = {at: index for index, at in enumerate(nodes)}
        token_ids: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        ancestors: list[list[bool]] = []
        columns: list[int] = []
        targets: list[Target] = []
        for index, at in enumerate(nodes):
            node = tree.nodes[at]
            begin = len(token_ids) - node.depth
            columns += [begin + target.position for target in node.targets]
            targets += node.targets
            token_ids += node.token_ids
            positions += range(node.depth, node.end)
            owners += [index] * len(node.token_ids)
            above = None if node.parent is None else place.get(node.parent)
            seen = [False] * len(nodes) if above is None else list(ancestors[above])
            seen[index] = True
            ancestors.append(seen)
        inputs = self._prefix.continue_with(token_ids, positions, owners, ancestors)
        logits = TorchLogits.run(self._forward, inputs, columns)
        self._prefix.prune(len(token_ids))
        return targets, logits


class PaddedScorer(Scorer):
    """Scores whole sequences, padded on the right; spans with the same fed tokens share one row.

    Args:
        forward: the model.
        pass_tokens: as in `Scorer`.
        equal_lengths: rows of one pass must be equally long, for a model whose rotary embedding
            depends on the longest row.
    """

    def __init__(self, forward: Forward, *, pass_tokens: int, equal_lengths: bool = False):
        super().__init__(pass_tokens)
        self._forward = forward
        self._equal_lengths = equal_lengths

    def _passes(self, spans: Sequence[TokenSpan]) -> Iterator[tuple[Sequence[Target], PassLogits]]:
        same = group_by_tokens(spans)
        rows = list(same.items())
        for batch in self._batches([len(row) for row in same]):
            yield run_rows(self._forward, [rows[at] for at in batch])

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        if not self._equal_lengths:
            yield from batches(lengths, token_budget=self._pass_tokens)
            return
        for length in sorted(set(lengths), reverse=True):
            equal = [at for at, found in enumerate(lengths) if found == length]
            size = max(1, self._pass_tokens // length)
            yield from (equal[begin : begin + size] for begin in range(0, len(equal), size))


def run_rows(forward: Forward, rows: Sequence[Row]) -> tuple[list[Target], PassLogits]:
    """Run sequences as rows, padded to the longest; returns their targets and these' logits."""
    # Causal attention never looks at what follows: padding on the right needs no mask.
    longest = max(len(token_ids) for token_ids, _ in rows)
    padded = [[*ids, *[ids[-1]] * (longest - len(ids))] for ids, _ in rows]
    targets = [target for _, targets in rows for target in targets]
    logits = TorchLogits.run(
        forward,
        forward.inputs(padded),
        [target.position for target in targets],
        [at for at, (_, targets) in enumerate(rows) for _ in targets],
    )
    return targets, logits
