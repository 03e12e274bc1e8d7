"""Scores and tokens read from vLLM's own result types, with and without a cached prefix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import EngineRuntimeError
from evalution_enginekit import TokenPrompt, TokenSpan
from evalution_enginekit.serving import SpanGroup
from evalution_vllm.requests import generation_update, group_scores, has_scored_rows

logprobs = pytest.importorskip("vllm.logprobs", reason="vllm is not installed")
outputs = pytest.importorskip("vllm.outputs", reason="vllm is not installed")

BEST = 999


def value(position: int, token_id: int) -> float:
    return -token_id / 100 - position / 1000


def flat(rows: list[list[tuple[int, float]] | None]) -> Any:
    found = logprobs.FlatLogprobs()
    for row in rows:
        made = None if row is None else {i: logprobs.Logprob(v) for i, v in row}
        found.append(made)
    return found


def output(
    fed: list[int], listed: list[tuple[int, float]], *, cached: int = 0, best: float = 0.0
) -> Any:
    """vLLM's result for `fed`, whose prompt rows begin behind the first `cached` tokens."""
    rows: list[list[tuple[int, float]] | None] = [None]
    rows += [[(fed[at], value(at, fed[at])), (BEST, best)] for at in range(cached + 1, len(fed))]
    completion = outputs.CompletionOutput(
        0, "", [listed[0][0]], None, flat([listed]), finish_reason="length"
    )
    return outputs.RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=fed,
        prompt_logprobs=flat(rows),
        outputs=[completion],
        finished=True,
        num_cached_tokens=cached,
    )


@given(st.lists(st.integers(0, 50), min_size=3, max_size=9), st.data())
def test_scored_rows_are_found_for_any_cached_prefix(
    token_ids: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, len(token_ids) - 1))
    cached = data.draw(st.integers(0, start - 1))
    group = SpanGroup((TokenSpan(token_ids, start),))
    last = token_ids[-1]
    found = output(
        token_ids[:-1], [(BEST, -0.1), (last, value(len(token_ids) - 1, last))], cached=cached
    )
    (score,) = group_scores(found, group, group.fed)
    expected = [value(at, token_ids[at]) for at in range(start, len(token_ids))]
    assert score.logprobs == pytest.approx(expected)
    assert has_scored_rows(found, group, group.fed)


def test_each_span_of_a_group_is_scored_by_its_last_token() -> None:
    group = SpanGroup(tuple(TokenSpan([1, 2, letter], 2) for letter in (5, 6, 7)))
    found = output([1, 2], [(6, -0.1), (5, -2.0), (7, -3.0)])
    scores = group_scores(found, group, group.fed)
    assert [score.logprobs for score in scores] == [[-2.0], [-0.1], [-3.0]]
    assert [score.is_greedy for score in scores] == [False, True, False]
    assert scores[0].runtime == {"cached_tokens": 0}


def test_tied_token_is_greedy() -> None:
    group = SpanGroup((TokenSpan([1, 2, 3], 1),))
    tied = output([1, 2], [(BEST, -0.5), (3, -0.5)], best=value(1, 2))
    assert group_scores(tied, group, group.fed)[0].is_greedy
    likelier = output([1, 2], [(BEST, -0.5), (3, -0.5)], best=value(1, 2) + 1e-6)
    assert group_scores(likelier, group, group.fed)[0].is_greedy is False


def test_cache_reaching_into_the_scored_tokens_is_detected() -> None:
    group = SpanGroup((TokenSpan([1, 2, 3, 4], 2),))
    assert has_scored_rows(output([1, 2, 3], [(4, -1.0)], cached=1), group, group.fed)
    assert not has_scored_rows(output([1, 2, 3], [(4, -1.0)], cached=2), group, group.fed)


def test_shifted_missing_and_unlisted_values_are_errors() -> None:
    group = SpanGroup((TokenSpan([1, 2, 3, 4], 1),))
    with pytest.raises(EngineRuntimeError, match="shifted: token 7 where 2 was fed"):
        group_scores(output([1, 7, 3], [(4, -1.0)]), group, group.fed)
    short = output([1, 2, 3], [(4, -1.0)])
    short.prompt_logprobs = None
    with pytest.raises(EngineRuntimeError, match="returned 0 of 2 prompt log-probabilities"):
        group_scores(short, group, group.fed)
    with pytest.raises(EngineRuntimeError, match="left out listed token 4"):
        group_scores(output([1, 2, 3], [(5, -1.0)]), group, group.fed)
    bare = output([1, 2, 3], [(4, -1.0)])
    bare.outputs[0].logprobs = None
    with pytest.raises(EngineRuntimeError, match="no log-probabilities of the listed tokens"):
        group_scores(bare, group, group.fed)


def test_generated_tokens_carry_the_requested_top_logprobs() -> None:
    prompt = TokenPrompt(0, [1], 4, logprobs=2)
    found = output([1], [(8, -2.0), (5, -0.1), (6, -0.2), (7, -0.3)])
    update = generation_update("r", found, prompt)
    assert (update.logprobs, update.top_logprobs) == ([-2.0], [{5: -0.1, 6: -0.2}])
    assert (update.finish, update.is_finished, update.error) == ("length", True, None)
    assert update.runtime == {"cached_tokens": 0, "stop_reason": None}


def test_aborted_request_is_an_error() -> None:
    found = output([1], [(8, -2.0)])
    found.outputs[0].finish_reason = "abort"
    update = generation_update("r", found, TokenPrompt(0, [1], 4))
    assert "ended the request before it was complete: abort" in str(update.error)
