"""Passes over a prefix tree: everything once, in order, within the capacity."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import TokenSpan, plan_scoring
from evalution_transformers.score import PrefixTree, fill_rows

_IDS = st.lists(st.integers(0, 2), min_size=2, max_size=24)


@st.composite
def _spans(draw: st.DrawFn) -> list[TokenSpan]:
    sequences = sorted(draw(st.lists(_IDS, min_size=1, max_size=12)))
    return [TokenSpan(ids, draw(st.integers(1, len(ids) - 1))) for ids in sequences]


@given(_spans(), st.integers(1, 300), st.integers(1, 60))
@settings(deadline=None)
def test_passes_cover_every_node_behind_its_parents(
    spans: list[TokenSpan], room: int, row_tokens: int
) -> None:
    plan = plan_scoring(spans)
    tree = PrefixTree(plan)
    seen: set[int] = set()
    while (one := tree.next_pass(room, row_tokens)) is not None:
        there = set(one.cached)
        for at in (*one.cached, *one.nodes):
            parent = tree.nodes[at].parent
            assert parent is None or parent in there
            there.add(at)
        assert sum(len(tree.nodes[at].token_ids) for at in one.nodes) <= room
        seen |= there
    assert seen == set(range(len(plan.segments)))


@given(_spans(), st.integers(1, 300))
@settings(deadline=None)
def test_passes_come_in_the_order_of_the_plan(spans: list[TokenSpan], room: int) -> None:
    tree = PrefixTree(plan_scoring(spans))
    firsts: list[int] = []
    while (one := tree.next_pass(room)) is not None:
        for at in (*one.cached, *one.nodes):
            if at not in firsts:
                firsts.append(at)
    assert firsts == sorted(firsts)


@given(_spans(), st.integers(24, 300))
@settings(deadline=None)
def test_rows_have_every_target_of_their_pass_behind_its_own_tokens(
    spans: list[TokenSpan], room: int
) -> None:
    tree = PrefixTree(plan_scoring(spans))
    while (one := tree.next_pass(room)) is not None:
        rows = None if one.cached else tree.find_leaf_rows(one.nodes, room)
        if rows is None:
            continue
        assert len(rows) * max(len(token_ids) for token_ids, _ in rows) <= room
        found = Counter(target for _, targets in rows for target in targets)
        assert found == Counter(t for at in one.nodes for t in tree.nodes[at].targets)
        for token_ids, targets in rows:
            for target in targets:
                before = spans[target.span].token_ids[: target.position + 1]
                assert list(token_ids[: target.position + 1]) == list(before)


@given(_spans(), st.integers(1, 300), st.integers(1, 60))
@settings(deadline=None)
def test_a_token_in_a_row_sees_its_own_sequence_alone(
    spans: list[TokenSpan], room: int, row_tokens: int
) -> None:
    tree = PrefixTree(plan_scoring(spans))
    while (one := tree.next_pass(room, row_tokens)) is not None:
        if not one.nodes:
            continue
        behind = tree.path_ids(one.cached)
        rows = fill_rows(tree, one.nodes, row_tokens)
        found = Counter(target for row in rows for target in row.targets)
        assert found == Counter(t for at in one.nodes for t in tree.nodes[at].targets)
        assert len({len(row.token_ids) for row in rows}) == 1
        for row in rows:
            for column, target in zip(row.columns, row.targets, strict=True):
                seen = [row.token_ids[s] for s in range(column + 1) if column < row.ends[s]]
                before = spans[target.span].token_ids[: target.position + 1]
                assert behind + seen == list(before)
                assert row.positions[column] == target.position


def test_branches_of_a_short_root_stand_in_rows_of_their_own() -> None:
    spans = [TokenSpan([1, *range(first, first + 90), 2, 3], 91) for first in range(100, 2500, 100)]
    tree = PrefixTree(plan_scoring(spans))
    one = tree.next_pass(4096, 512)
    assert one is not None
    rows = fill_rows(tree, one.nodes, 512)
    assert len(rows) == 5
    assert {row.token_ids[0] for row in rows} == {1}


def test_texts_of_one_length_stand_in_rows_of_their_own() -> None:
    texts = [[1, *range(first, first + 40)] for first in (100, 200, 300)]
    spans = [TokenSpan(ids, 1) for ids in texts]
    tree = PrefixTree(plan_scoring(spans))
    one = tree.next_pass(200)
    assert one is not None
    rows = tree.find_leaf_rows(one.nodes, 200)
    assert rows is not None
    assert [list(token_ids) for token_ids, _ in rows] == [ids[:-1] for ids in texts]
    # The first token of each text is scored behind the one that they share, in the first row.
    assert [len(targets) for _, targets in rows] == [42, 39, 39]
    assert tree.find_leaf_rows(one.nodes, 119) is None


def test_cached_tokens_are_cut_off_the_first_root() -> None:
    tree = PrefixTree(plan_scoring([TokenSpan([5, 6, 7, 8, 9], 4)]))
    assert tree.first_path == [5, 6, 7]
    tree.begin_behind(2)
    one = tree.next_pass(100)
    assert one is not None
    assert tree.path_ids(one.cached) == [5, 6]
    assert [tree.nodes[at].token_ids for at in one.nodes] == [[7, 8]]
    assert tree.next_pass(100) is None
