"""Packs of a plan's trie: everything once, in order, within what fits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import TokenSpan, plan_scoring
from evalution_transformers.packing import Packing

_IDS = st.lists(st.integers(0, 2), min_size=2, max_size=24)


@st.composite
def _spans(draw: st.DrawFn) -> list[TokenSpan]:
    sequences = sorted(draw(st.lists(_IDS, min_size=1, max_size=12)))
    return [TokenSpan(ids, draw(st.integers(1, len(ids) - 1))) for ids in sequences]


@given(_spans(), st.integers(1, 300))
@settings(deadline=None)
def test_packs_cover_every_branch_behind_its_parents(spans: list[TokenSpan], room: int) -> None:
    plan = plan_scoring(spans)
    packing = Packing(plan)
    seen: set[int] = set()
    while (pack := packing.next_pack(lambda _: room)) is not None:
        there = set(pack.trunk)
        for at in (*pack.trunk, *pack.members):
            parent = packing.branches[at].parent
            assert parent is None or parent in there
            there.add(at)
        assert sum(len(packing.branches[at].token_ids) for at in pack.members) <= room
        seen |= there
    assert seen == set(range(len(plan.segments)))


@given(_spans(), st.integers(1, 300))
@settings(deadline=None)
def test_packs_come_in_the_order_of_the_plan(spans: list[TokenSpan], room: int) -> None:
    packing = Packing(plan_scoring(spans))
    firsts: list[int] = []
    while (pack := packing.next_pack(lambda _: room)) is not None:
        for at in (*pack.trunk, *pack.members):
            if at not in firsts:
                firsts.append(at)
    assert firsts == sorted(firsts)


@given(_spans(), st.integers(2, 40))
@settings(deadline=None)
def test_a_pack_can_be_taken_back_and_made_smaller(spans: list[TokenSpan], room: int) -> None:
    plan = plan_scoring(spans)
    packing = Packing(plan)
    before = packing.state()
    assert packing.next_pack(lambda _: room) is not None
    packing.restore(before)
    seen: set[int] = set()
    while (pack := packing.next_pack(lambda _: room // 2)) is not None:
        seen |= {*pack.trunk, *pack.members}
    assert seen == set(range(len(plan.segments)))


def test_what_is_cached_is_cut_off_the_first_root() -> None:
    packing = Packing(plan_scoring([TokenSpan([5, 6, 7, 8, 9], 4)]))
    assert packing.first_path == [5, 6, 7]
    packing.begin_behind(2)
    pack = packing.next_pack(lambda _: 100)
    assert pack is not None
    assert packing.path_ids(pack.trunk) == [5, 6]
    assert [packing.branches[at].token_ids for at in pack.members] == [[7, 8]]
    assert packing.next_pack(lambda _: 100) is None
