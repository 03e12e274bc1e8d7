"""The scoring planner: which tokens to forward, in which order, and which rows to score.

For engines that own their forward pass. Spans that share a prefix share its computation: the
choices of one question, the few-shot head of many, continuations of one token from one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from evalution_enginekit.prefix_trie import PrefixTrie
from evalution_enginekit.tokens import TokenSpan


@dataclass(frozen=True, slots=True)
class Target:
    """Read `token_id`'s log-probability off the row at `position`, for one span's slot."""

    position: int
    token_id: int
    span: int
    slot: int


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
    """What is forwarded: the tokens of the spans' trie."""
    naive_tokens: int
    """What forwarding each span by itself would take."""


def plan_scoring(spans: Sequence[TokenSpan]) -> ScoringPlan:
    """The fewest tokens that give every span its rows."""
    trie = PrefixTrie()
    for span in spans:
        trie.insert(span.fed)
    targets: dict[int, list[Target]] = {}
    for at, span in enumerate(spans):
        for node in trie.path(span.fed):
            found = targets.setdefault(id(node), [])
            for position in range(max(node.depth, span.start - 1), node.end):
                token_id = span.token_ids[position + 1]
                found.append(Target(position, token_id, at, position + 1 - span.start))
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


def grouped_order(spans: Sequence[TokenSpan]) -> list[int]:
    """Indices that bring spans with a shared prefix next to each other."""
    # Compared as they are: lists, all of them; a copy of each would double the prompts' memory.
    return sorted(range(len(spans)), key=lambda index: cast("list[int]", spans[index].token_ids))
