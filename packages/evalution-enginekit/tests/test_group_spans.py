"""Spans grouped into requests: all of them, in order, and only neighbours that may share one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evalution_enginekit import TokenSpan
from evalution_enginekit.serving_session import group_spans


@st.composite
def spans(draw: st.DrawFn) -> list[TokenSpan]:
    ids = draw(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=4), max_size=12))
    return [TokenSpan(each, draw(st.integers(1, len(each) - 1))) for each in sorted(ids)]


@given(spans(), st.integers(1, 3))
def test_groups_hold_all_spans_in_order_and_differ_in_the_last_token_alone(
    given_spans: list[TokenSpan], limit: int
) -> None:
    groups = group_spans(given_spans, listed_limit=limit)
    assert [span for group in groups for span in group.spans] == given_spans
    for group in groups:
        assert 1 <= len(group.spans) <= limit
        assert set(group.listed) == {span.token_ids[-1] for span in group.spans}
        assert len(set(group.listed)) == len(group.listed)
        for span in group.spans:
            assert list(span.fed) == list(group.fed)
            assert span.start == group.start
            assert group.inner == len(span.token_ids) - span.start - 1


def test_neighbours_that_can_share_a_request_do() -> None:
    choices = [TokenSpan([5, 6, letter], 2) for letter in (1, 2, 3, 4)]
    assert [len(group.spans) for group in group_spans(choices, listed_limit=128)] == [4]
