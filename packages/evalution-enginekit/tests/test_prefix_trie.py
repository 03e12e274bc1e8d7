"""The radix tree against the set of all prefixes, which it stands for."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import shared_prefix
from evalution_enginekit.planning import PrefixTrie

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=12)


def trie_of(sequences: list[list[int]]) -> PrefixTrie:
    trie = PrefixTrie()
    for sequence in sequences:
        trie.insert(sequence)
    return trie


def prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(s[:end]) for s in sequences for end in range(1, len(s) + 1)}


@settings(deadline=None, max_examples=60)
@given(SEQUENCES)
def test_one_token_for_each_different_prefix(sequences: list[list[int]]) -> None:
    nodes = trie_of(sequences).walk()
    assert sum(len(node.token_ids) for node in nodes) == len(prefixes(sequences))


@settings(deadline=None, max_examples=60)
@given(SEQUENCES)
def test_the_path_of_a_sequence_spells_it(sequences: list[list[int]]) -> None:
    trie = trie_of(sequences)
    for sequence in sequences:
        depth = 0
        spelled: list[int] = []
        for node in trie.path(sequence):
            assert node.depth == depth
            depth = node.end
            spelled += node.token_ids
        assert spelled == sequence


@settings(deadline=None, max_examples=60)
@given(SEQUENCES)
def test_the_walk_meets_every_node_after_its_parent_and_keeps_subtrees_together(
    sequences: list[list[int]],
) -> None:
    cache: list[int] = []
    met: list[tuple[int, ...]] = []
    for node in trie_of(sequences).walk():
        assert node.token_ids
        assert node.depth <= len(cache)
        assert node.parent is not None
        assert node.parent.end == node.depth
        cache = cache[: node.depth] + node.token_ids
        met += [tuple(cache[:end]) for end in range(node.depth + 1, node.end + 1)]
    assert len(met) == len(set(met))
    assert set(met) == prefixes(sequences)


def test_children_keep_the_order_of_insertion() -> None:
    trie = trie_of([[1, 2, 3], [9], [1, 2, 0], [1]])
    assert [node.token_ids for node in trie.walk()] == [[1], [2], [3], [0], [9]]


class Sliced(list[int]):
    """A sequence that counts the tokens that are copied out of it."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            Sliced.copied += len(found)
        return found


def test_a_sequence_is_not_copied_again_at_every_node_of_its_path() -> None:
    trie = PrefixTrie()
    nested = [Sliced(range(end)) for end in range(10, 1010, 10)]
    Sliced.copied = 0
    for sequence in nested:
        trie.insert(sequence)
    for sequence in nested:
        assert len(list(trie.path(sequence))) == len(sequence) // 10
    assert Sliced.copied <= 2 * sum(len(sequence) for sequence in nested)


def test_shared_prefix() -> None:
    assert shared_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert shared_prefix([1, 2], [1, 2, 4]) == 2
    assert shared_prefix([], [1]) == 0
    assert shared_prefix([2], [1]) == 0
