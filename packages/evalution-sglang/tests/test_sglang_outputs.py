"""Scores and tokens read from SGLang's results, and the detection of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import EngineRuntimeError, InvalidRequestError
from evalution_enginekit import TokenPrompt, TokenSpan
from evalution_enginekit.serving import SpanGroup
from evalution_sglang.requests import (
    Meta,
    Parameters,
    generation_update,
    group_scores,
    score_update,
)

BEST = 999


def value(position: int, token_id: int) -> float:
    return -token_id / 100 - position / 1000


def meta(
    fed: list[int], start_len: int, listed: list[tuple[int, float]], *, best: float = 0.0
) -> Meta:
    """SGLang's result for `fed`, whose prompt entries begin at `start_len`, the first one empty."""
    entries: list[Any] = [(None, fed[start_len], None)] if start_len < len(fed) else []
    top: list[Any] = [None] * len(entries)
    for at in range(start_len + 1, len(fed)):
        entries.append((value(at, fed[at]), fed[at], None))
        top.append([(best, BEST, None)])
    return {
        "id": "r",
        "finish_reason": {"type": "length", "length": 1},
        "cached_tokens": start_len,
        "input_token_logprobs": entries,
        "input_top_logprobs": top,
        "output_token_logprobs": [(-0.1, BEST, None)],
        "output_top_logprobs": [[(-0.1, BEST, None)]],
        "output_token_ids_logprobs": [[(v, i, None) for i, v in listed]],
    }


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9), st.data())
def test_empty_entry_at_the_start_is_no_score(token_ids: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(1, len(token_ids) - 1))
    group = SpanGroup((TokenSpan(token_ids, start),))
    asked = Parameters(vocabulary=BEST + 1, seeds=False).scoring(group)
    last = token_ids[-1]
    found = meta(
        asked["input_ids"], asked["logprob_start_len"], [(last, value(len(token_ids) - 1, last))]
    )
    (score,) = group_scores(found, group)
    assert score.logprobs == pytest.approx(
        [value(at, token_ids[at]) for at in range(start, len(token_ids))]
    )


def test_logprobs_start_one_token_before_the_scored_ones() -> None:
    makes = Parameters(vocabulary=10, seeds=False)
    inner = makes.scoring(SpanGroup((TokenSpan([1, 2, 3, 4, 5], 3),)))
    assert (inner["input_ids"], inner["logprob_start_len"]) == ([1, 2, 3, 4], 2)
    alone = makes.scoring(SpanGroup((TokenSpan([1, 2, 3, 4, 5], 4),)))
    assert (alone["input_ids"], alone["logprob_start_len"]) == ([1, 2, 3, 4], 4)


def test_each_span_of_a_group_is_scored_by_its_last_token() -> None:
    group = SpanGroup(tuple(TokenSpan([1, 2, letter], 2) for letter in (5, 6, 7)))
    scores = group_scores(meta([1, 2], 2, [(5, -2.0), (6, -0.1), (7, -3.0)]), group)
    assert [score.logprobs for score in scores] == [[-2.0], [-0.1], [-3.0]]
    assert [score.is_greedy for score in scores] == [False, True, False]
    assert scores[0].runtime == {"cached_tokens": 2}


def test_tied_token_is_greedy() -> None:
    group = SpanGroup((TokenSpan([1, 2, 3], 1),))
    assert group_scores(meta([1, 2], 0, [(3, -0.1)], best=value(1, 2)), group)[0].is_greedy
    likelier = meta([1, 2], 0, [(3, -0.1)], best=value(1, 2) + 1e-6)
    assert group_scores(likelier, group)[0].is_greedy is False


def test_shifted_missing_and_unlisted_values_are_errors() -> None:
    group = SpanGroup((TokenSpan([1, 2, 3, 4], 1),))
    with pytest.raises(EngineRuntimeError, match="shifted: token 7 where 2 was fed"):
        group_scores(meta([1, 7, 3], 0, [(4, -1.0)]), group)
    with pytest.raises(EngineRuntimeError, match="returned 2 prompt log-probabilities; 2 and"):
        group_scores(meta([1, 2, 3], 1, [(4, -1.0)]), group)
    empty: Any = meta([1, 2, 3], 0, [(4, -1.0)])
    empty["input_token_logprobs"][1] = (None, 2, None)
    with pytest.raises(EngineRuntimeError, match="left out the log-probability of token 2"):
        group_scores(empty, group)
    blind: Any = meta([1, 2, 3], 0, [(4, -1.0)])
    blind["input_top_logprobs"][2] = None  # the last one
    with pytest.raises(EngineRuntimeError, match="left out the likeliest token of a position"):
        group_scores(blind, group)
    with pytest.raises(EngineRuntimeError, match="left out listed token 4"):
        group_scores(meta([1, 2, 3], 0, [(5, -1.0)]), group)
    bare = meta([1, 2, 3], 0, [(4, -1.0)])
    bare["output_token_ids_logprobs"] = []
    with pytest.raises(EngineRuntimeError, match="no log-probabilities of the listed tokens"):
        group_scores(bare, group)
    update = score_update("r", {"output_ids": [9], "meta_info": bare}, group)
    assert update.is_finished
    assert isinstance(update.error, EngineRuntimeError)


def test_generated_tokens_carry_the_requested_top_logprobs() -> None:
    prompt = TokenPrompt(0, [1], 4, logprobs=2)
    found_meta: Meta = {
        "finish_reason": None,
        "output_token_logprobs": [(-2.0, 8, None)],
        "output_top_logprobs": [[(-0.1, 5, None), (-0.2, 6, None)]],
    }
    update = generation_update("r", {"output_ids": [8], "meta_info": found_meta}, prompt)
    assert (update.token_ids, update.logprobs) == ([8], [-2.0])
    assert update.top_logprobs == [{5: -0.1, 6: -0.2}]
    alone = generation_update(
        "r", {"output_ids": [8], "meta_info": found_meta}, TokenPrompt(0, [1], 4, logprobs=0)
    )
    assert (alone.logprobs, alone.top_logprobs) == ([-2.0], [{}])
    assert (update.is_finished, update.finish) == (False, None)
    found_meta["finish_reason"] = {"type": "stop", "matched": 8}
    update = generation_update("r", {"output_ids": [8], "meta_info": found_meta}, prompt)
    assert (update.is_finished, update.finish) == (True, "stop")
    assert update.runtime == {"cached_tokens": None, "stop_reason": 8}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequestError), (503, EngineRuntimeError)]
)
def test_aborted_request_is_an_error(status: int, kind: type[Exception]) -> None:
    ended = {"type": "abort", "message": "too long", "status_code": status}
    output: Any = {"output_ids": [], "meta_info": {"finish_reason": ended}}
    update = generation_update("r", output, TokenPrompt(0, [1], 4))
    assert type(update.error) is kind
    assert "too long" in str(update.error)
    group = SpanGroup((TokenSpan([1, 2], 1),))
    assert type(score_update("r", output, group).error) is kind


def test_logits_that_are_no_numbers_are_an_error_of_their_prompt() -> None:
    """`_check_vocab_boundary_finish` of SGLang 0.5.23 calls them a stop; the id may be wrong."""
    ended = {"type": "stop", "matched": "NaN happened"}
    output: Any = {"output_ids": [-1], "meta_info": {"finish_reason": ended}}
    update = generation_update("r", output, TokenPrompt(0, [1], 4))
    assert type(update.error) is EngineRuntimeError
    assert str(update.error) == "SGLang ended the prompt: NaN happened"


def test_prompt_is_sampled_by_its_own_seed_where_there_are_seeds() -> None:
    prompt = TokenPrompt(0, [1], 4, stop_ids=frozenset({7}), do_sample=True, temperature=0.5)
    plain = Parameters(vocabulary=10, seeds=False).generation(prompt)["sampling_params"]
    assert "sampling_seed" not in plain
    assert (plain["temperature"], plain["top_k"], plain["ignore_eos"]) == (0.5, -1, False)
    seeded = Parameters(vocabulary=10, seeds=True)
    drawn = {seeded.generation(prompt)["sampling_params"]["sampling_seed"] for _ in range(4)}
    assert len(drawn) == 4
    fixed = TokenPrompt(0, [1], 4, do_sample=True, seed=(1 << 63) + 5)
    assert seeded.generation(fixed)["sampling_params"]["sampling_seed"] == 5
    assert seeded.generation(fixed)["sampling_params"]["ignore_eos"] is True
