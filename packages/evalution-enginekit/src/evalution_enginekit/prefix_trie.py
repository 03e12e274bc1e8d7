"""A radix tree over token sequences: what they share, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


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

    @property
    def unique_tokens(self) -> int:
        """Tokens a model has to be fed to have seen every sequence."""
        return sum(len(node.token_ids) for node in self.walk())

    @staticmethod
    def _split(node: TrieNode, at: int) -> TrieNode:
        upper = TrieNode(node.depth, node.token_ids[:at], node.parent)
        assert node.parent is not None
        node.parent.children[node.token_ids[0]] = upper
        node.depth, node.token_ids, node.parent = node.depth + at, node.token_ids[at:], upper
        upper.children[node.token_ids[0]] = node
        return upper


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    limit = min(len(left), len(right))
    if list(left[:limit]) == list(right[:limit]):
        return limit
    return next(at for at in range(limit) if left[at] != right[at])
