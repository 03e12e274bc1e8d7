"""Scores and tokens read from upstream's result types, from either source."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import EngineRuntimeError
from evalution_enginekit import TokenPrompt, TokenSpan
from evalution_enginekit.serving import SpanGroup
from evalution_tensorrt_llm.requests import (
    generation_update,
    group_scores,
    scored_ids,
)
from evalution_tensorrt_llm.runtime import ScoreSource

VOCABULARY = 11
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=9)


@pytest.fixture(autouse=True, scope="module")
def fake(installed: Any) -> Any:
    return installed("1.3.0rc11")


def rows(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).normal(size=(count, VOCABULARY)).astype(np.float32)


def logprob(row: Any, token_id: int) -> float:
    return float(row[token_id] - np.log(np.exp(row.astype(np.float64)).sum()))


def output(*, logits: Any = None, prompt_logprobs: Any = None, **completion: Any) -> Any:
    """Upstream's result of a finished request."""
    results = sys.modules["fake_trtllm_results"]
    worker = sys.modules["fake_trtllm_worker"]
    made = results.RequestOutput.__new__(results.RequestOutput)
    made.cached_tokens, made._done = 0, True
    made._context_logits = None if logits is None else worker.Tensor(logits)
    made._completion = results.CompletionOutput(
        0, finish_reason="length", prompt_logprobs=prompt_logprobs, **completion
    )
    return made


def entries(logits: Any, added: list[int]) -> Any:
    worker, kind = sys.modules["fake_trtllm_worker"], sys.modules["fake_trtllm_results"].Logprob
    return [worker.made(entry, kind) for entry in worker.ranked(logits, 1, added)]


@given(TOKENS, st.data(), st.booleans())
def test_both_sources_give_the_same_scores(
    token_ids: list[int], data: st.DataObject, has_three_axes: bool
) -> None:
    start = data.draw(st.integers(1, len(token_ids) - 1))
    group = SpanGroup((TokenSpan(token_ids, start),))
    logits = rows(data.draw(st.integers(0, 99)), len(token_ids))
    expected = [logprob(logits[at - 1], token_ids[at]) for at in range(start, len(token_ids))]
    best = [int(row.argmax()) for row in logits]
    is_greedy = all(best[at - 1] == token_ids[at] for at in range(start, len(token_ids)))

    fed = scored_ids(group, ScoreSource.CONTEXT_LOGITS)
    assert fed == token_ids[:-1]
    kept = logits[: len(fed)]
    kept = kept[None] if has_three_axes else kept
    (by_rows,) = group_scores(output(logits=kept), group, ScoreSource.CONTEXT_LOGITS)

    fed = scored_ids(group, ScoreSource.PROMPT_LOGPROBS)
    assert fed == token_ids
    listed = entries(logits, [*token_ids[1:], best[-1]])
    (by_entries,) = group_scores(output(prompt_logprobs=listed), group, ScoreSource.PROMPT_LOGPROBS)

    for score in (by_rows, by_entries):
        assert list(score.logprobs) == pytest.approx(expected, abs=1e-5)
        assert score.is_greedy is is_greedy


def test_each_span_of_a_group_is_scored_by_its_last_token() -> None:
    group = SpanGroup(tuple(TokenSpan([1, 2, letter], 2) for letter in (5, 6, 7)))
    logits = rows(3, 2)
    logits[1, 6] = logits[1].max()
    scores = group_scores(output(logits=logits), group, ScoreSource.CONTEXT_LOGITS)
    for score, letter in zip(scores, (5, 6, 7), strict=True):
        assert list(score.logprobs) == pytest.approx([logprob(logits[1], letter)], abs=1e-5)
    assert scores[1].is_greedy


def test_tied_token_is_greedy() -> None:
    logits = np.zeros((3, VOCABULARY), np.float32)
    group = SpanGroup((TokenSpan([1, 2, 3], 1),))
    (by_rows,) = group_scores(output(logits=logits[:2]), group, ScoreSource.CONTEXT_LOGITS)
    listed = entries(logits, [2, 3, 0])
    (by_entries,) = group_scores(output(prompt_logprobs=listed), group, ScoreSource.PROMPT_LOGPROBS)
    assert by_rows.is_greedy
    assert by_entries.is_greedy


def test_missing_rank_leaves_greedy_unknown() -> None:
    kind = sys.modules["fake_trtllm_results"].Logprob
    listed = [{2: kind(-0.5)}, {3: kind(-0.5)}]
    group = SpanGroup((TokenSpan([1, 2], 1),))
    (score,) = group_scores(output(prompt_logprobs=listed), group, ScoreSource.PROMPT_LOGPROBS)
    assert score.is_greedy is None


def test_shifted_and_missing_rows_are_errors() -> None:
    group = SpanGroup((TokenSpan([1, 2, 3], 1),))
    logits = rows(1, 3)
    logits[:, 9] = 50
    listed = entries(logits, [1, 2, 3])
    with pytest.raises(EngineRuntimeError, match="shifted: token 2 isn't among those of its"):
        group_scores(output(prompt_logprobs=listed), group, ScoreSource.PROMPT_LOGPROBS)
    for found in (None, [], listed[:2]):
        with pytest.raises(EngineRuntimeError, match=r"computed rows for \d of 3 scored tokens"):
            group_scores(output(prompt_logprobs=found), group, ScoreSource.PROMPT_LOGPROBS)
    cut = output(logits=logits[:1])
    cut.cached_tokens = 1
    with pytest.raises(EngineRuntimeError, match=r"rows for 1 of 2 .*; 1 came from the cache"):
        group_scores(cut, group, ScoreSource.CONTEXT_LOGITS)
    with pytest.raises(EngineRuntimeError, match="computed rows for 0 of 2 scored tokens"):
        group_scores(output(), group, ScoreSource.CONTEXT_LOGITS)


def test_generated_tokens_carry_the_requested_top_logprobs() -> None:
    kind = sys.modules["fake_trtllm_results"].Logprob
    entry = {8: kind(-2.0, 4), 5: kind(-0.1, 1), 6: kind(-0.2, 2), 7: kind(-0.3, 3)}
    found = output(token_ids=[8], logprobs=[entry])
    update = generation_update("r", found, TokenPrompt(0, [1], 1, logprobs=2))
    assert (update.logprobs, update.top_logprobs) == ([-2.0], [{5: -0.1, 6: -0.2}])
    assert (update.finish, update.is_finished, update.error) == ("length", True, None)
    assert update.runtime == {"cached_tokens": 0, "stop_reason": None}
    bare = generation_update("r", found, TokenPrompt(0, [1], 1))
    assert (bare.logprobs, bare.top_logprobs) == (None, None)


def test_missing_logprobs_of_generated_tokens_are_an_error() -> None:
    kind = sys.modules["fake_trtllm_results"].Logprob
    prompt = TokenPrompt(0, [1], 1, logprobs=0)
    unlisted = generation_update("r", output(token_ids=[8], logprobs=[{5: kind(-1.0)}]), prompt)
    assert "left out the log-probability of generated token 8" in str(unlisted.error)
    fewer = generation_update("r", output(token_ids=[8], logprobs=[]), prompt)
    assert "returned 0 log-probabilities of 1 tokens" in str(fewer.error)


def test_aborted_request_is_an_error() -> None:
    found = output(token_ids=[8])
    found._completion.finish_reason = "timeout"
    update = generation_update("r", found, TokenPrompt(0, [1], 4))
    assert "ended the request before it was complete: timeout" in str(update.error)
