"""Scoring: every shared prefix run once where the model allows it, else padded rows.

A pass over a prefix tree takes whole subtrees side by side, up to a number of tokens, behind a
prefix that is cached. A subtree that is too large has its root added to the cached prefix, and its
children are taken one after the other; if the root is only a few tokens, they are run again in each
pass that needs them, which is cheaper than a pass of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from evalution_enginekit import (
    BatchLimits,
    ScoringPlan,
    Target,
    TokenScore,
    TokenSpan,
    batches,
    plan_scoring,
    run_halving,
)
from evalution_enginekit.planning import SpanScores
from evalution_transformers.forward import (
    Forward,
    Inputs,
    RowScores,
    SharedPrefix,
    make_tree_mask,
    score_rows,
    to_attention_mask,
)
from evalution_transformers.generate import OutOfMemory

_LEAST_KEPT = 8
"""Cached tokens from which continuing behind them beats running them again."""
_REPEATED_SHARE = 64
"""A root of at most a 64th of a pass is repeated rather than cached."""

_Scored = tuple[Target, float, bool]
"""A target, its log-probability, and whether it is greedy."""


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

    def next_pass(self, capacity: Callable[[int], int]) -> TreePass | None:
        """Return the next pass, or None at the end.

        `capacity` returns the tokens that fit into a pass behind as many cached ones.
        """
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
            room = capacity(self._end(fork.cached))
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

    def state(self) -> list[_Fork]:
        """Return a copy of the subtrees that wait, for `restore`."""
        return [_Fork(fork.cached, fork.repeated, list(fork.waiting)) for fork in self._forks]

    def restore(self, state: list[_Fork]) -> None:
        """Return to an earlier `state`."""
        self._forks = state

    def path_ids(self, path: tuple[int, ...]) -> list[int]:
        """Return the tokens along a path of nodes."""
        return [token_id for at in path for token_id in self.nodes[at].token_ids]

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

    def _end(self, path: tuple[int, ...]) -> int:
        return self.nodes[path[-1]].end if path else 0

    def _subtree(self, root: int) -> list[int]:
        found: list[int] = []
        waiting = [root]
        while waiting:
            at = waiting.pop()
            found.append(at)
            waiting.extend(reversed(self.nodes[at].children))
        return found


class PrefixScorer:
    """Scores spans over the tree of their prefixes, and keeps the last prefix for the next call.

    Args:
        forward: the model.
        additive_mask: whether the attention adds its mask to the scores, as eager attention does,
            and so needs numbers in place of booleans.
        pass_tokens: tokens of one forward pass, or fewer once memory ran out.
        keeps_prefix: False where weights may change between two calls, as in a training loop.
        out_of_memory: the exceptions after which a smaller pass is tried.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        additive_mask: bool,
        pass_tokens: int,
        keeps_prefix: bool = True,
        out_of_memory: OutOfMemory = torch.OutOfMemoryError,
    ):
        self._forward = forward
        self._additive_mask = additive_mask
        self._pass_tokens = pass_tokens
        self._keeps_prefix = keeps_prefix
        self._out_of_memory = out_of_memory
        self._limits = BatchLimits()
        self._prefix = SharedPrefix(forward)

    def forget(self) -> None:
        """Free the cached prefix."""
        self._prefix.clear()

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield the complete scores after each forward pass, in the order of the spans."""
        if not self._keeps_prefix:
            self._prefix.clear()
        scores = SpanScores(spans)
        tree = PrefixTree(plan_scoring(spans))
        cached = self._prefix.shared_with(tree.first_path)
        if cached >= _LEAST_KEPT:
            tree.begin_behind(cached)
        while True:
            before = tree.state()
            tree_pass = tree.next_pass(self._capacity)
            if tree_pass is None:
                return
            try:
                found = self._run(tree, tree_pass)
            except self._out_of_memory:
                if not self._lower_capacity(tree, tree_pass):
                    raise
                tree.restore(before)
                continue
            except BaseException:
                # Some layers may hold tokens that others don't.
                self._prefix.clear()
                raise
            for target, logprob, is_greedy in found:
                scores.add(target, logprob, is_greedy)
            yield scores.take_complete()

    def _capacity(self, behind: int) -> int:
        return min(self._pass_tokens, self._limits.limit(behind) or self._pass_tokens)

    def _lower_capacity(self, tree: PrefixTree, tree_pass: TreePass) -> bool:
        """Halve the tokens of a pass behind such a prefix; False if it was one token."""
        self._prefix.clear()
        behind = len(tree.path_ids(tree_pass.cached))
        smaller = self._capacity(behind) // 2
        if smaller:
            self._limits.lower(behind, smaller)
        return smaller > 0

    def _run(self, tree: PrefixTree, tree_pass: TreePass) -> list[_Scored]:
        path = tree.path_ids(tree_pass.cached)
        wanted = [target for at in tree_pass.cached for target in tree.nodes[at].targets]
        begin = self._prefix.shared_with(path)
        begin = min([begin, *(target.position for target in wanted)])
        found: list[_Scored] = []
        for run in self._prefix.runs(path, begin, self._capacity(begin)):
            end = run.begin + run.inputs.token_ids.shape[1]
            inside = [target for target in wanted if run.begin <= target.position < end]
            found += self._score(run.inputs, [t.position - run.begin for t in inside], inside)
        if tree_pass.nodes:
            found += self._run_nodes(tree, tree_pass.nodes)
        for at in (*tree_pass.cached, *tree_pass.nodes):
            tree.nodes[at].targets = []
        return found

    def _run_nodes(self, tree: PrefixTree, nodes: tuple[int, ...]) -> list[_Scored]:
        layout = lay_out(tree, nodes)
        mask = None
        if len(nodes) > 1:
            seen = make_tree_mask(layout.owners, layout.ancestors, len(self._prefix))
            mask = to_attention_mask(
                seen.to(self._forward.device),
                self._forward.model.dtype,
                additive=self._additive_mask,
            )
        inputs = self._prefix.continue_with(layout.token_ids, layout.positions, mask)
        found = self._score(inputs, layout.columns, layout.targets)
        self._prefix.prune(len(layout.token_ids))
        return found

    def _score(self, inputs: Inputs, columns: list[int], targets: list[Target]) -> list[_Scored]:
        if not targets:
            self._forward.run(inputs)
            return []
        device = self._forward.device
        at = torch.tensor(columns, device=device)
        token_ids = torch.tensor([target.token_id for target in targets], device=device)
        found = score_rows(self._forward, inputs, torch.zeros_like(at), at, token_ids)
        return list(zip(targets, found.logprobs, found.greedy, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a pass in one row of tokens; `targets[i]` is read at `columns[i]`.

    `owners` holds the node of each token. `ancestors[i][j]` says that node i sees node j, which is
    itself or one that it continues.
    """

    token_ids: list[int]
    positions: list[int]
    owners: list[int]
    ancestors: list[list[bool]]
    columns: list[int]
    targets: list[Target]


def lay_out(tree: PrefixTree, nodes: Sequence[int]) -> Layout:
    """Lay out nodes side by side, each behind its parent if that is among them."""
    place = {at: index for index, at in enumerate(nodes)}
    layout = Layout([], [], [], [], [], [])
    for index, at in enumerate(nodes):
        node = tree.nodes[at]
        begin = len(layout.token_ids) - node.depth
        layout.columns.extend(begin + target.position for target in node.targets)
        layout.targets.extend(node.targets)
        layout.token_ids.extend(node.token_ids)
        layout.positions.extend(range(node.depth, node.end))
        layout.owners.extend([index] * len(node.token_ids))
        above = place.get(node.parent) if node.parent is not None else None
        row = list(layout.ancestors[above]) if above is not None else [False] * len(nodes)
        row[index] = True
        layout.ancestors.append(row)
    return layout


def group_by_tokens(spans: Sequence[TokenSpan]) -> dict[tuple[int, ...], list[Target]]:
    """Return each sequence that is fed, once, with the targets of all spans that it scores."""
    same: dict[tuple[int, ...], list[Target]] = {}
    for at, span in enumerate(spans):
        found = same.setdefault(tuple(span.fed), [])
        found += (
            Target(position - 1, span.token_ids[position], at, position - span.start)
            for position in range(span.start, len(span.token_ids))
        )
    return same


class PaddedScorer:
    """Scores whole sequences, padded on the right; spans with the same fed tokens share one row.

    Args:
        forward: the model.
        pass_tokens: padded tokens of one forward pass.
        equal_lengths: rows of one pass must be equally long, for a model whose rotary embedding
            depends on the longest row.
        out_of_memory: the exceptions after which half of a batch is tried.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        pass_tokens: int,
        equal_lengths: bool = False,
        out_of_memory: OutOfMemory = torch.OutOfMemoryError,
    ):
        self._forward = forward
        self._pass_tokens = pass_tokens
        self._equal_lengths = equal_lengths
        self._out_of_memory = out_of_memory
        self._limits = BatchLimits()

    def forget(self) -> None:
        """Do nothing: nothing is kept between two calls."""

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield the complete scores after each forward pass, in the order of the spans."""
        scores = SpanScores(spans)
        same = group_by_tokens(spans)
        rows = list(same.items())
        for batch in self._batches([len(row) for row in same]):
            run_halving(
                [rows[at] for at in batch],
                lambda part: self._run(part, scores),
                length=lambda row: len(row[0]),
                limits=self._limits,
                out_of_memory=self._out_of_memory,
            )
            yield scores.take_complete()

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        if not self._equal_lengths:
            yield from batches(lengths, token_budget=self._pass_tokens)
            return
        for length in sorted(set(lengths), reverse=True):
            equal = [at for at, found in enumerate(lengths) if found == length]
            size = max(1, self._pass_tokens // length)
            yield from (equal[begin : begin + size] for begin in range(0, len(equal), size))

    def _run(
        self, rows: Sequence[tuple[tuple[int, ...], list[Target]]], scores: SpanScores
    ) -> Sequence[None]:
        targets = [(row, target) for row, (_, found) in enumerate(rows) for target in found]
        scored = self._score([token_ids for token_ids, _ in rows], targets)
        for (_, target), logprob, is_greedy in zip(
            targets, scored.logprobs, scored.greedy, strict=True
        ):
            scores.add(target, logprob, is_greedy)
        return [None] * len(rows)

    def _score(
        self, rows: Sequence[tuple[int, ...]], targets: Sequence[tuple[int, Target]]
    ) -> RowScores:
        # Causal attention never looks at what follows: padding on the right needs no mask.
        longest = max(len(row) for row in rows)
        token_ids = torch.tensor([[*row, *row[-1:] * (longest - len(row))] for row in rows])
        device = self._forward.device
        return score_rows(
            self._forward,
            Inputs(token_ids.to(device)),
            torch.tensor([row for row, _ in targets], device=device),
            torch.tensor([target.position for _, target in targets], device=device),
            torch.tensor([target.token_id for _, target in targets], device=device),
        )
