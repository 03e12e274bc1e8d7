"""Spans scored together, call after call, compared with each of them scored alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import EngineRuntimeError
from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenScore, TokenSpan
from evalution_reference.llama import KVCache, Llama
from evalution_reference.load import load_checkpoint
from evalution_reference.score import PrefixScorer

PREFIX = list(range(40, 120))


@pytest.fixture(scope="module")
def model() -> Llama:
    config, weights = load_checkpoint(builtin_path("builtin:tiny", "safetensors"))
    return Llama(config, weights, "float64")


@st.composite
def token_spans(draw: st.DrawFn) -> TokenSpan:
    token_ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=7))
    return TokenSpan(token_ids, draw(st.integers(1, len(token_ids) - 1)))


def score(scorer: PrefixScorer, spans: list[TokenSpan]) -> list[TokenScore]:
    return [score for step in scorer.score(spans) for score in step]


def two_token_spans(count: int) -> list[TokenSpan]:
    """As many roots, none of which begins as the others or as PREFIX does."""
    return [TokenSpan([200 + index, 7], 1) for index in range(count)]


def assert_right(model: Llama, spans: Sequence[TokenSpan], scores: Sequence[TokenScore]) -> None:
    """Each score is the one that a single pass over the span alone gives."""
    for span, score in zip(spans, scores, strict=True):
        hidden = model.hidden_states(np.array(span.fed), model.new_cache())
        logits = model.logits(hidden[span.start - 1 :])
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        wanted = span.token_ids[span.start :]
        expected = [float(row[token_id]) for row, token_id in zip(logprobs, wanted, strict=True)]
        assert score.logprobs == pytest.approx(expected, abs=1e-10, rel=0)
        assert score.is_greedy == (logits.argmax(axis=-1).tolist() == list(wanted))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(token_spans(), max_size=6), max_size=3))
def test_scores_do_not_depend_on_earlier_calls(model: Llama, calls: list[list[TokenSpan]]) -> None:
    scorer = PrefixScorer(model)
    for spans in calls:
        assert_right(model, spans, score(scorer, spans))


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """From now on: the length of each cache that is copied; how many are new at each pass."""
    seen: dict[str, list[int]] = {"copied": [], "new": [], "run": []}
    fork, new_cache, extend = KVCache.fork, Llama.new_cache, Llama.extend
    made = 0

    def counted_fork(self: KVCache) -> KVCache:
        seen["copied"].append(self.length)
        return fork(self)

    def counted_new(self: Llama) -> KVCache:
        nonlocal made
        made += 1
        return new_cache(self)

    def counted_extend(self: Llama, runs: Any, caches: Any) -> Any:
        nonlocal made
        seen["new"].append(made)
        seen["run"].append(sum(len(run) for run in runs))
        made = 0
        return extend(self, runs, caches)

    monkeypatch.setattr(KVCache, "fork", counted_fork)
    monkeypatch.setattr(Llama, "new_cache", counted_new)
    monkeypatch.setattr(Llama, "extend", counted_extend)
    return seen


def test_roots_without_the_kept_prefix_get_caches_when_their_turn_comes(
    model: Llama, caches: dict[str, list[int]]
) -> None:
    scorer = PrefixScorer(model)
    score(scorer, [TokenSpan([*PREFIX, 7], len(PREFIX))])
    caches["new"].clear()
    spans = two_token_spans(100)
    scores = score(scorer, spans)
    assert caches["copied"] == []
    assert caches["new"] == [16] * 6 + [4], "a root's cache is made when its turn comes"
    assert_right(model, spans, scores)


def test_kept_prefix_is_copied_once_for_the_root_that_shares_it(
    model: Llama, caches: dict[str, list[int]]
) -> None:
    scorer = PrefixScorer(model)
    score(scorer, [TokenSpan([*PREFIX, 7], len(PREFIX))])
    caches["run"].clear()
    spans = [TokenSpan([*PREFIX, 8, 9], len(PREFIX) + 1), *two_token_spans(40)]
    scores = score(scorer, spans)
    assert caches["copied"] == [len(PREFIX)]
    assert sum(caches["run"]) == 1 + 40
    assert_right(model, spans, scores)


def test_last_root_of_a_call_is_kept(model: Llama, caches: dict[str, list[int]]) -> None:
    scorer = PrefixScorer(model)
    score(scorer, [*two_token_spans(40), TokenSpan([*PREFIX, 7], len(PREFIX))])
    caches["run"].clear()
    score(scorer, [TokenSpan([*PREFIX, 8, 9], len(PREFIX) + 1)])
    assert caches["run"] == [1]


@pytest.mark.parametrize("failing", range(3))
def test_scores_are_right_after_a_failed_call(
    model: Llama, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    scorer = PrefixScorer(model)
    score(scorer, [TokenSpan([*PREFIX, 7], len(PREFIX) - 3)])
    spans = [
        *two_token_spans(40),
        *(TokenSpan([*PREFIX[:60], 7, choice, 9], 61) for choice in range(20, 25)),
    ]
    calls = 0
    logits = Llama.logits

    def failing_once(self: Llama, hidden: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise EngineRuntimeError("not finite")
        return logits(self, hidden)

    with monkeypatch.context() as patch:
        patch.setattr(Llama, "logits", failing_once)
        with pytest.raises(EngineRuntimeError, match="not finite"):
            score(scorer, spans)
    assert_right(model, spans, score(scorer, spans))
    again = [TokenSpan([*PREFIX, 7], 1), *reversed(spans)]
    assert_right(model, again, score(scorer, again))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(token_spans(), max_size=4), max_size=3))
def test_rows_are_those_of_a_pass_over_each_span(
    model: Llama, calls: list[list[TokenSpan]]
) -> None:
    scorer = PrefixScorer(model)
    for spans in calls:
        found = iter([row for block in scorer.compute_rows(spans) for row in block])
        for span in spans:
            hidden = model.hidden_states(np.array(span.fed), model.new_cache())
            logits = model.logits(hidden[span.start - 1 :])
            for row in logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)):
                np.testing.assert_allclose(next(found), row, atol=1e-5)
        assert next(found, None) is None
