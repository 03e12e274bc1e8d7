"""Scoring: every shared prefix run once where the model allows it, else padded rows.

A pass over a prefix tree takes whole subtrees side by side, up to a number of tokens, behind a
prefix that is cached. A subtree that is too large has its root added to the cached prefix, and its
children are taken one after the other; if the root is only a few tokens, they are run again in each
pass that needs them, which is cheaper than a pass of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from evalution_enginekit import ScoringPlan, Target, TokenScore, TokenSpan, batches, plan_scoring
from evalution_enginekit.planning import SpanScores
from evalution_transformers.forward import (
    Forward,
    Inputs,
    SharedPrefix,
    score_rows,
)
from evalution_transformers.generate import OutOfMemory

_LEAST_KEPT = 8
"""Cached tokens from which continuing behind them beats running them again."""
_REPEATED_SHARE = 64
"""A root of at most a 64th of a pass is repeated rather than cached."""


class Scorer(ABC):
    """Scores spans; once memory has run out, by smaller passes.

    Args:
        pass_tokens: tokens of one forward pass, padding included.
    """

    _out_of_memory: OutOfMemory = torch.OutOfMemoryError
    """The exceptions after which half of the tokens are tried."""

    def __init__(self, pass_tokens: int):
        self._pass_tokens = pass_tokens

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """Yield the complete scores after each forward pass, in the order of the spans."""
        done = 0
        while done < len(spans):
            scores = SpanScores(spans[done:])
            try:
                for _ in self._passes(spans[done:], scores):
                    complete = scores.take_complete()
                    done += len(complete)
                    yield complete
            except self._out_of_memory:
                self.forget()
                if self._pass_tokens == 1:
                    raise
                self._halve()
            except BaseException:
                # Some layers may hold tokens that others don't.
                self.forget()
                raise

    def _halve(self) -> None:
        self._pass_tokens //= 2

    @abstractmethod
    def _passes(self, spans: Sequence[TokenSpan], scores: SpanScores) -> Iterator[None]:
        """Score all spans, and yield after each forward pass."""

    def forget(self) -> None:
        """Free what can be computed again."""
        return


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
        self._prefix.clear()

    def _passes(self, spans: Sequence[TokenSpan], scores: SpanScores) -> Iterator[None]:
        if not self._keeps_prefix:
            self._prefix.clear()
        tree = PrefixTree(plan_scoring(spans))
        cached = self._prefix.count_shared(tree.first_path)
        if cached >= _LEAST_KEPT:
            tree.begin_behind(cached)
        while (tree_pass := tree.next_pass(self._pass_tokens)) is not None:
            self._run(tree, tree_pass, scores)
            yield

    def _run(self, tree: PrefixTree, tree_pass: TreePass, scores: SpanScores) -> None:
        path = tree.path_ids(tree_pass.cached)
        wanted = [target for at in tree_pass.cached for target in tree.nodes[at].targets]
        begin = self._prefix.count_shared(path)
        begin = min([begin, *(target.position for target in wanted)])
        for place, inputs in self._prefix.passes(path, begin, self._pass_tokens):
            inside = [target for target in wanted if target.position in place]
            columns = [target.position - place.start for target in inside]
            self._score(inputs, columns, inside, scores)
        if tree_pass.nodes:
            self._run_nodes(tree, tree_pass.nodes, scores)
        for at in (*tree_pass.cached, *tree_pass.nodes):
            tree.nodes[at].targets = []

    def _run_nodes(self, tree: PrefixTree, nodes: tuple[int, ...], scores: SpanScores) -> None:
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
        self._score(inputs, columns, targets, scores)
        self._prefix.prune(len(token_ids))

    def _score(
        self, inputs: Inputs, columns: list[int], targets: list[Target], scores: SpanScores
    ) -> None:
        if not targets:
            self._forward.run(inputs)
            return
        token_ids = [target.token_id for target in targets]
        found = score_rows(self._forward, inputs, [0] * len(columns), columns, token_ids)
        for target, (logprob, is_greedy) in zip(targets, found, strict=True):
            scores.add(target, logprob, is_greedy)


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

    def _passes(self, spans: Sequence[TokenSpan], scores: SpanScores) -> Iterator[None]:
        same = group_by_tokens(spans)
        rows = list(same.items())
        for batch in self._batches([len(row) for row in same]):
            self._run([rows[at] for at in batch], scores)
            yield

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
    ) -> None:
        # Causal attention never looks at what follows: padding on the right needs no mask.
        longest = max(len(token_ids) for token_ids, _ in rows)
        padded = [[*ids, *ids[-1:] * (longest - len(ids))] for ids, _ in rows]
        places = [(at, target) for at, (_, targets) in enumerate(rows) for target in targets]
        found = score_rows(
            self._forward,
            self._forward.inputs(padded),
            [at for at, _ in places],
            [target.position for _, target in places],
            [target.token_id for _, target in places],
        )
        for (_, target), (logprob, is_greedy) in zip(places, found, strict=True):
            scores.add(target, logprob, is_greedy)
