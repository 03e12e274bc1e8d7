"""The scoring plan, run on a cache that can only be rewound and extended."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import TokenScore, TokenSpan, plan_scoring
from evalution_enginekit.planning import SpanScores, order_by_prefix


@st.composite
def token_spans(draw: st.DrawFn) -> TokenSpan:
    token_ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=9))
    return TokenSpan(token_ids, draw(st.integers(1, len(token_ids) - 1)))


SPANS = st.lists(token_spans(), max_size=10)


@settings(deadline=None, max_examples=60)
@given(SPANS)
def test_every_slot_of_every_span_is_read_once_after_its_own_prefix(spans: list[TokenSpan]) -> None:
    cache: list[int] = []
    read: set[tuple[int, int]] = set()
    for segment in plan_scoring(spans).segments:
        assert segment.depth <= len(cache), "the cache can't be rewound to what it doesn't hold"
        cache = cache[: segment.depth] + segment.token_ids
        for target in segment.targets:
            span = spans[target.span]
            assert segment.depth <= target.position < len(cache)
            assert target.position + 1 == span.start + target.slot
            assert target.token_id == span.token_ids[target.position + 1]
            assert cache[: target.position + 1] == span.token_ids[: target.position + 1]
            assert (target.span, target.slot) not in read
            read.add((target.span, target.slot))
    assert read == {
        (index, slot)
        for index, span in enumerate(spans)
        for slot in range(len(span.token_ids) - span.start)
    }


@settings(deadline=None, max_examples=60)
@given(SPANS)
def test_only_different_prefixes_are_forwarded(spans: list[TokenSpan]) -> None:
    plan = plan_scoring(spans)
    different = {tuple(s.fed[:end]) for s in spans for end in range(1, len(s.fed) + 1)}
    assert plan.unique_tokens == len(different)
    assert plan.unique_tokens == sum(len(segment.token_ids) for segment in plan.segments)
    assert plan.naive_tokens == sum(len(span.fed) for span in spans)


def test_choices_of_one_question_share_the_question_and_one_row() -> None:
    question = [1, 2, 3, 4]
    plan = plan_scoring([TokenSpan([*question, choice], 4) for choice in (7, 8, 9)])
    (segment,) = plan.segments
    assert (plan.unique_tokens, plan.naive_tokens) == (4, 12)
    assert [(t.position, t.token_id, t.span) for t in segment.targets] == [
        (3, 7, 0),
        (3, 8, 1),
        (3, 9, 2),
    ]


@settings(deadline=None, max_examples=60)
@given(SPANS)
def test_the_grouped_order_keeps_every_shared_prefix_together(spans: list[TokenSpan]) -> None:
    order = order_by_prefix(spans)
    assert sorted(order) == list(range(len(spans)))
    fed = [tuple(spans[index].fed) for index in order]
    for prefix in {run[:end] for run in fed for end in range(1, len(run) + 1)}:
        places = [at for at, run in enumerate(fed) if run[: len(prefix)] == prefix]
        assert places == list(range(places[0], places[-1] + 1)), prefix


def test_scores_are_returned_once_in_the_order_of_the_spans() -> None:
    spans = [TokenSpan([1, 2, 3], 1), TokenSpan([1, 4], 1)]
    scores = SpanScores(spans)
    targets = {
        (target.span, target.slot): target
        for segment in plan_scoring(spans).segments
        for target in segment.targets
    }
    scores.add([targets[1, 0]], [(-0.5, True)])
    assert scores.take_complete() == [], "the first span lacks two values"
    scores.add([targets[0, 1]], [(-2.0, True)])
    scores.add([targets[0, 0]], [(-1.0, False)])
    assert scores.take_complete() == [TokenScore([-1.0, -2.0], False), TokenScore([-0.5], True)]
    assert scores.take_complete() == []
