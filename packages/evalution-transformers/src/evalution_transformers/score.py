"""Scoring: every shared prefix run once where the model allows it, else padded rows.

A pass over a prefix tree takes whole subtrees side by side, up to a number of tokens, behind a
prefix that is cached. A subtree that is too large has its root added to the cached prefix, and its
children are taken one after the other; if the root is only a few tokens, they are run again in each
pass that needs them, which is cheaper than a pass of their own. Sequences of a pass that share next
to nothing and are about as long stand in rows of their own, others under a mask: in one row, or in
several where a pass has more tokens than a row.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from evalution_enginekit import ScoringPlan, Target, TokenSpan, batches, plan_scoring
from evalution_transformers.forward import Forward, SharedPrefix, TorchLogits
from evalution_transformers.scoring_passes import PassLogits, Scorer, group_by_tokens

_LEAST_KEPT = 8
"""Cached tokens from which continuing behind them beats running them again."""
_PADDED = 1.05
"""Tokens with their padding, for each token, up to which sequences stand in rows of their own."""
_ROW_TOKENS = 1024
"""Tokens of a row: attention takes time by their square, and each row repeats what it shares."""
_IN_ROWS = 1.125
"""Tokens of several rows, for each token of one, up to which they are taken."""
_REPEATED_IN_ROW = 1 / 16
"""A root of at most this share of a row is repeated in each row of its branches."""
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


@dataclass(frozen=True, slots=True)
class Branch:
    """Nodes of a pass that stay together, and the path to them that each of their rows repeats."""

    path: list[int]
    nodes: list[int]


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

    def next_pass(self, room: int, row_tokens: int | None = None) -> TreePass | None:
        """Return the next pass, of at most `room` tokens not cached, or None at the end.

        A tree that is more than half of a pass and than a row is divided too: behind a cached root
        its branches may stand in rows of their own.
        """
        undivided = max(row_tokens or room, room // 2)
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
            first = self.nodes[fork.waiting[0]]
            needed = between + first.subtree_tokens
            fits = needed <= room and (needed <= undivided or not first.children)
            if fits and used + needed <= room:
                nodes += [*repeated, *self._subtree(fork.waiting.pop(0))]
                used, cached = used + needed, fork.cached
            elif fits:
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

    def find_leaf_rows(self, nodes: Sequence[int], room: int) -> list[Row] | None:
        """Return a pass behind no prefix as a row for each leaf, if that adds hardly any tokens.

        With their padding, the rows are at most `room` tokens. Attention without a mask takes far
        less.
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

    def find_branches(self, nodes: Sequence[int], row_tokens: int) -> list[Branch]:
        """Return the nodes of a pass by the trees that they form without what is cached.

        One that is more than a row is divided below its root, where that is short.
        """
        sizes = {at: len(self.nodes[at].token_ids) for at in nodes}
        for at in reversed(nodes):
            if (parent := self.nodes[at].parent) in sizes:
                sizes[parent] += sizes[at]
        divided: dict[int | None, list[int]] = {}
        found: list[Branch] = []
        for at in nodes:
            parent, own = self.nodes[at].parent, len(self.nodes[at].token_ids)
            if parent in sizes and parent not in divided:
                found[-1].nodes.append(at)
            elif sizes[at] > max(row_tokens, own) and own <= row_tokens * _REPEATED_IN_ROW:
                divided[at] = [*divided.get(parent, ()), at]
            else:
                found.append(Branch(divided.get(parent, []), [at]))
        return found

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
        row_tokens: a pass over more is divided into rows of about so many tokens, or of as many as
            the cached prefix has.
        keeps_prefix: False where weights may change between two calls, as in a training loop.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        pass_tokens: int,
        row_tokens: int = _ROW_TOKENS,
        keeps_prefix: bool = True,
    ):
        super().__init__(pass_tokens)
        self._forward = forward
        self._row_tokens = row_tokens
        self._keeps_prefix = keeps_prefix
        self._passes_ahead = _count_passes_ahead(forward)
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
        while (tree_pass := tree.next_pass(self._pass_tokens, self._row_tokens)) is not None:
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
            rows = (
                None
                if tree_pass.cached
                else tree.find_leaf_rows(tree_pass.nodes, self._pass_tokens)
            )
            if rows is None:
                yield self._run_nodes(tree, tree_pass.nodes)
            else:
                yield run_rows(self._forward, rows)
        for at in (*tree_pass.cached, *tree_pass.nodes):
            tree.nodes[at].targets = []

    def _run_nodes(
        self, tree: PrefixTree, nodes: tuple[int, ...]
    ) -> tuple[list[Target], PassLogits]:
        """Run nodes side by side, each behind its parent if that is there, in one row or more."""
        rows = fill_rows(tree, nodes, max(self._row_tokens, len(self._prefix)))
        inputs = self._prefix.continue_with(
            [row.token_ids for row in rows],
            [row.positions for row in rows],
            [row.ends for row in rows],
        )
        logits = TorchLogits.run(
            self._forward,
            inputs,
            [column for row in rows for column in row.columns],
            [at for at, row in enumerate(rows) for _ in row.columns],
        )
        self._prefix.prune()
        return [target for row in rows for target in row.targets], logits


@dataclass(slots=True)
class TreeRow:
    """Nodes side by side in a row of tokens, each before its children, and where targets are.

    `ends` are those of `make_tree_mask`.
    """

    token_ids: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    columns: list[int] = field(default_factory=list[int])
    targets: list[Target] = field(default_factory=list[Target])

    def fill(self, tree: PrefixTree, nodes: Sequence[int], scored: Container[int]) -> None:
        """Put nodes into the row, and the targets of those that no other row has scored."""
        ends: dict[int | None, int] = {}
        for at in nodes:
            node = tree.nodes[at]
            if at not in scored:
                begin = len(self.token_ids) - node.depth
                self.columns += [begin + target.position for target in node.targets]
                self.targets += node.targets
            self.token_ids += node.token_ids
            self.positions += range(node.depth, node.end)
            ends[at] = len(self.token_ids)
        for at in reversed(nodes):
            if (parent := tree.nodes[at].parent) in ends:
                ends[parent] = max(ends[parent], ends[at])
        for at in nodes:
            self.ends += [ends[at]] * len(tree.nodes[at].token_ids)

    def pad(self, width: int) -> None:
        """Fill the row with tokens that none of the others sees."""
        lacking = width - len(self.token_ids)
        self.token_ids += self.token_ids[-1:] * lacking
        self.positions += self.positions[-1:] * lacking
        self.ends += [width] * lacking


def fill_rows(tree: PrefixTree, nodes: Sequence[int], row_tokens: int) -> list[TreeRow]:
    """Return the nodes of a pass in rows of about so many tokens, or in fewer with less padding."""
    branches = tree.find_branches(nodes, row_tokens)
    sizes = [sum(len(tree.nodes[at].token_ids) for at in branch.nodes) for branch in branches]
    unique = sum(len(tree.nodes[at].token_ids) for at in nodes)
    rows: list[TreeRow] = []
    for count in range(-(-unique // max(row_tokens, *sizes)), 0, -1):
        rows = [TreeRow() for _ in range(count)]
        scored: set[int] = set()
        for row, place in zip(rows, _share_out(sizes, count), strict=True):
            inside = dict.fromkeys(
                at for branch in place for at in (*branches[branch].path, *branches[branch].nodes)
            )
            row.fill(tree, list(inside), scored)
            scored.update(inside)
        width = max(len(row.token_ids) for row in rows)
        if count * width <= _IN_ROWS * unique:
            break
    for row in rows:
        row.pad(max(len(row.token_ids) for row in rows))
    return rows


def _share_out(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Return the indices of sizes in so many parts of about the same sum, each in order."""
    parts: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        least = sums.index(min(sums))
        parts[least].append(at)
        sums[least] += sizes[at]
    return [sorted(part) for part in parts]


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
        self._passes_ahead = _count_passes_ahead(forward)

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


def _count_passes_ahead(forward: Forward) -> int:
    """Return 1 where the device computes a pass while the next one is prepared."""
    return int(forward.device.type == "cuda")


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
