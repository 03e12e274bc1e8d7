"""Passes over a prefix tree: everything once, in order, within the capacity."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import TokenSpan, plan_scoring
from evalution_transformers.score import PrefixTree

_IDS = st.lists(st.integers(0, 2), min_size=2, max_size=24)


@st.composite
def _spans(draw: st.DrawFn) -> list[TokenSpan]:
    sequences = sorted(draw(st.lists(_IDS, min_size=1, max_size=12)))
    return [TokenSpan(ids, draw(st.integers(1, len(ids) - 1))) for ids in sequences]


@given(_spans(), st.integers(1, 300), st.integers(0, 30))
@settings(deadline=None)
def test_passes_cover_every_node_behind_its_parents(
    spans: list[TokenSpan], room: int, lone_room: int
) -> None:
    plan = plan_scoring(spans)
    tree = PrefixTree(plan)
    seen: set[int] = set()
    while (one := tree.next_pass(room, lone_room)) is not None:
        there = set(one.cached)
        for at in (*one.cached, *one.nodes):
            parent = tree.nodes[at].parent
            assert parent is None or parent in there
            there.add(at)
        parents = [tree.nodes[at].parent for at in one.nodes]
        is_text = not one.cached and parents == [None, *one.nodes[:-1]]
        tokens = sum(len(tree.nodes[at].token_ids) for at in one.nodes)
        assert tokens <= (max(room, lone_room) if is_text else room)
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


def test_cached_tokens_are_cut_off_the_first_root() -> None:
    tree = PrefixTree(plan_scoring([TokenSpan([5, 6, 7, 8, 9], 4)]))
    assert tree.first_path == [5, 6, 7]
    tree.begin_behind(2)
    one = tree.next_pass(100)
    assert one is not None
    assert tree.path_ids(one.cached) == [5, 6]
    assert [tree.nodes[at].token_ids for at in one.nodes] == [[7, 8]]
    assert tree.next_pass(100) is None
