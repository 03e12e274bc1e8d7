"""Plan scoring over a radix tree of token sequences: shared prefixes are forwarded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from itertools import count, repeat
from typing import Any, NamedTuple, cast

from evalution_core import EngineRuntimeError
from evalution_core.encoding import TokenSpan, shared_prefix
from evalution_core.requests import TopLogprobs


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural-log probabilities of the scored tokens, in order.

    `is_greedy`: no token had a strictly larger logit at any of the positions; None if unknown.
    `top_logprobs` has the most likely tokens of each position, for a span that asks for them.
    """

    logprobs: Sequence[float]
    is_greedy: bool | None = None
    runtime: dict[str, Any] | None = field(default=None)
    top_logprobs: TopLogprobs | None = None


class WrongScoresError(EngineRuntimeError):
    """A runtime returned other scores than were asked for: fewer, or of other tokens.

    It works, and can't be trusted: in the self check this is a failure, where other errors of a
    runtime are raised.
    """


_ABOVE_ZERO = 1e-6
"""Rounding error that is accepted for the log-probability of a certain token."""


def check_logprobs(values: Sequence[float]) -> list[float]:
    """Return log-probabilities that a runtime returned; minus infinity is one.

    Raises:
        WrongScoresError: one is NaN, above 0, or missing.
    """
    wrong = [value for value in values if value is None or not value <= _ABOVE_ZERO]  # pyright: ignore[reportUnnecessaryComparison]
    if wrong:
        raise WrongScoresError(
            f"the runtime returned {wrong[0]!r} as a log-probability, which is a number up to 0; "
            "where it is nan, set a dtype of a wider range"
        )
    return list(values)


def check_score(score: object) -> TokenScore:
    """Return a score that a runtime returned.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(score, TokenScore):
        raise TypeError(f"a score must be a TokenScore or an error, got {score!r:.80}")
    return score


def take_top(listed: Mapping[int, float], count: int) -> dict[int, float]:
    """Return the most likely of the tokens that a runtime lists for one position, best first.

    Of equals the smallest id comes first.

    Raises:
        WrongScoresError: it lists fewer than `count`.
    """
    if len(listed) < count:
        raise WrongScoresError(
            f"the {count} most likely tokens of a position were asked for, and {len(listed)} came"
        )
    return dict(nsmallest(count, listed.items(), key=lambda item: (-item[1], item[0])))


@dataclass(slots=True, eq=False)
class TrieNode:
    """A run of tokens that follows its parent's; `depth` counts the tokens before the run."""

    depth: int
    token_ids: list[int]
    parent: TrieNode | None = None
    children: dict[int, TrieNode] = field(default_factory=dict[int, "TrieNode"])

    @property
    def end(self) -> int:
        return self.depth + len(self.token_ids)


class PrefixTrie:
    """Sequences by their shared prefixes. Children keep the order in which they were inserted."""

    def __init__(self) -> None:
        self.root = TrieNode(0, [])

    def insert(self, token_ids: Sequence[int]) -> None:
        node, depth = self.root, 0
        while depth < len(token_ids):
            child = node.children.get(token_ids[depth])
            if child is None:
                leaf = TrieNode(depth, list(token_ids[depth:]), node)
                node.children[token_ids[depth]] = leaf
                return
            # No more than the child's run: the whole rest at every node would be quadratic.
            run = child.token_ids
            shared = shared_prefix(run, token_ids[depth : depth + len(run)])
            if shared < len(run):
                child = self._split(child, shared)
            node, depth = child, depth + shared

    def path(self, token_ids: Sequence[int]) -> Iterator[TrieNode]:
        """The nodes of an inserted sequence, from the root's child down."""
        node, depth = self.root, 0
        while depth < len(token_ids):
            node = node.children[token_ids[depth]]
            depth = node.end
            yield node

    def walk(self) -> Iterator[TrieNode]:
        """Every node but the root, depth first: a node directly follows its subtree's elders."""
        waiting = list(reversed(self.root.children.values()))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children.values()))

    @staticmethod
    def _split(node: TrieNode, at: int) -> TrieNode:
        upper = TrieNode(node.depth, node.token_ids[:at], node.parent)
        assert node.parent is not None
        node.parent.children[node.token_ids[0]] = upper
        node.depth, node.token_ids, node.parent = node.depth + at, node.token_ids[at:], upper
        upper.children[node.token_ids[0]] = node
        return upper


class Target(NamedTuple):
    """Read `token_id`'s log-probability off the row at `position`, for one span's slot."""

    position: int
    token_id: int
    span: int
    slot: int


def make_targets(span: TokenSpan, at: int, begin: int, end: int) -> Iterator[Target]:
    """Yield what span number `at` scores off the rows from position `begin` to before `end`."""
    begin = max(begin, span.start - 1)
    token_ids = span.token_ids[begin + 1 : end + 1]
    slots = count(begin + 1 - span.start)
    # Not by `_make`, which runs in Python for each of what may be all tokens of a corpus.
    make: Callable[[tuple[int, ...]], Target] = partial(cast("Any", tuple).__new__, Target)
    return map(make, zip(range(begin, end), token_ids, repeat(at), slots, strict=False))


@dataclass(frozen=True, slots=True)
class Segment:
    """Forward `token_ids` behind the `depth` tokens of its ancestors, and read the targets.

    `position` of a target is absolute and lies within the segment. `parent` is the index of the
    segment that it continues, None at a root.
    """

    parent: int | None
    depth: int
    token_ids: list[int]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """Segments in depth-first order, each behind its parent.

    Taken in this order with one cache, rewinding it to a segment's depth restores its path; an
    engine that can fork caches may run segments side by side instead.
    """

    segments: tuple[Segment, ...]
    unique_tokens: int
    """Tokens that are forwarded: those of the spans' trie."""
    naive_tokens: int
    """Tokens that forwarding each span by itself would take."""


def plan_scoring(spans: Sequence[TokenSpan]) -> ScoringPlan:
    """The fewest tokens that give every span its rows."""
    trie = PrefixTrie()
    for span in spans:
        trie.insert(span.fed)
    targets: dict[int, list[Target]] = {}
    for at, span in enumerate(spans):
        for node in trie.path(span.fed):
            found = targets.setdefault(id(node), [])
            found += make_targets(span, at, node.depth, node.end)
    nodes = list(trie.walk())
    index = {id(node): at for at, node in enumerate(nodes)}
    segments = tuple(
        Segment(
            index.get(id(node.parent)), node.depth, node.token_ids, tuple(targets.get(id(node), ()))
        )
        for node in nodes
    )
    return ScoringPlan(
        segments,
        sum(len(segment.token_ids) for segment in segments),
        sum(len(span.token_ids) - 1 for span in spans),
    )


class SpanScores:
    """Gathers what a plan's targets got and hands out complete scores in the order of the spans."""

    def __init__(self, spans: Sequence[TokenSpan]):
        self._logprobs = [[0.0] * (len(span.token_ids) - span.start) for span in spans]
        self._greedy = [True] * len(spans)
        self._missing = [len(values) for values in self._logprobs]
        self._taken = 0

    def add(self, targets: Sequence[Target], found: Iterable[tuple[float, bool]]) -> None:
        """Note each target's natural-log probability, once, and whether no logit was larger."""
        logprobs, greedy, missing = self._logprobs, self._greedy, self._missing
        for (_, _, span, slot), (logprob, is_greedy) in zip(targets, found, strict=True):
            logprobs[span][slot] = logprob
            missing[span] -= 1
            if not is_greedy:
                greedy[span] = False

    def take_complete(self) -> list[TokenScore]:
        """Return the scores that lack nothing and were not returned before, up to a gap."""
        begin = self._taken
        while self._taken < len(self._missing) and not self._missing[self._taken]:
            self._taken += 1
        return [
            TokenScore(self._logprobs[at], self._greedy[at]) for at in range(begin, self._taken)
        ]


def order_by_prefix(spans: Sequence[TokenSpan]) -> list[int]:
    """Indices that bring spans with a shared prefix next to each other."""
    # Compared as they are: lists, all of them; a copy of each would double the prompts' memory.
    return sorted(range(len(spans)), key=lambda index: cast("list[int]", spans[index].token_ids))
