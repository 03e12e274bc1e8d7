"""Groups wait for the one that computes their shared prefix, and for no other."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from evalution_enginekit import TokenSpan
from evalution_enginekit.serving import SpanGroup
from evalution_sglang.requests import SharedPrefixes

HEAD = list(range(100, 200))


def group(*token_ids: int, scored: int = 1) -> SpanGroup:
    return SpanGroup((TokenSpan([*token_ids, 1], len(token_ids) + 1 - scored),))


def question(number: int, choice: int) -> SpanGroup:
    own = [number * 1000 + at for at in range(50)]
    return group(*HEAD, *own, choice, choice, scored=3)


def test_first_group_with_a_prefix_computes_it() -> None:
    prefixes = SharedPrefixes()
    names = [f"{number}{choice}" for number in (1, 2, 3) for choice in "abc"]
    started = [name for name in names if prefixes.enter(name, question(int(name[0]), ord(name[1])))]
    assert started == ["1a"]
    assert list(prefixes.leave("1a")) == ["1b", "1c", "2a", "3a"]
    assert list(prefixes.leave("1b")) == []
    assert list(prefixes.leave("2a")) == ["2b", "2c"]
    assert prefixes.enter("1d", question(1, 9))
    assert list(prefixes.leave("3a")) == ["3b", "3c"]


def test_short_or_scored_prefix_is_not_waited_for() -> None:
    prefixes = SharedPrefixes()
    assert prefixes.enter("a", group(*HEAD[:31], 5))
    assert prefixes.enter("b", group(*HEAD[:31], 6))
    assert prefixes.enter("c", group(*HEAD, 5, scored=90))
    assert prefixes.enter("d", group(*HEAD, 6, scored=90))
    assert prefixes.enter("e", group(*HEAD, 7, scored=100))
    assert not prefixes.enter("f", group(*HEAD, 7, scored=2))


def test_aborted_group_is_not_started_later() -> None:
    prefixes = SharedPrefixes()
    assert prefixes.enter("a", group(*HEAD, 5))
    assert not prefixes.enter("b", group(*HEAD, 6))
    assert not prefixes.enter("c", group(*HEAD, 7))
    assert prefixes.leave("b") == {}
    assert list(prefixes.leave("a")) == ["c"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 40)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_every_group_is_started_once_whatever_finishes_first(
    shapes: list[tuple[int, int, int]], order: Random
) -> None:
    prefixes = SharedPrefixes()
    running: list[str] = []
    seen: list[str] = []
    for at, (head, question_, scored) in enumerate(shapes):
        name = str(at)
        ids = [*(head * 1000 + i for i in range(50)), *(question_ * 7000 + i for i in range(40))]
        if prefixes.enter(name, group(*ids, at, scored=scored)):
            running.append(name)
        if running and order.random() < 0.3:
            seen.append(running.pop(0))
            running += prefixes.leave(seen[-1])
    while running:
        seen.append(running.pop(order.randrange(len(running))))
        running += prefixes.leave(seen[-1])
    assert sorted(seen, key=int) == [str(at) for at in range(len(shapes))]
