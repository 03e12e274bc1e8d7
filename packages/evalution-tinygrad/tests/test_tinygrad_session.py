"""Answers that don't depend on other requests, and the tokens that are run for them."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from evalution_core import (
    BaseInferenceSession,
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
)
from evalution_enginekit import TokenSpan, plan_scoring
from evalution_reference import Reference
from evalution_tinygrad import Tinygrad

TINY = Model("builtin:tiny")
_WORDS = [
    "The",
    "cat",
    "sees",
    "the",
    "red",
    "house",
    "and",
    "one",
    "plus",
    "two",
    "is",
    "three",
    ".",
]
_CLOSE = {"abs": 1e-4, "rel": 0}


@pytest.fixture(scope="module")
def reference() -> Iterator[BaseInferenceSession]:
    with Reference(dtype="float64").build(TINY) as session:
        yield session


@pytest.fixture(scope="module")
def small() -> Iterator[Any]:
    """A session with room for few tokens, in a cache that is always too small or untidy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evalution_tinygrad.kv_cache._LEAST_CAPACITY", 256)
        patch.setattr("evalution_tinygrad.kv_cache._SLACK", 0)
        engine = Tinygrad(device="cpu", batch_size=4, pass_tokens=16, cache_tokens=120)
        with engine.build(TINY) as session:
            yield session


def _pairs() -> list[LoglikelihoodRequest]:
    chance = random.Random(3)
    heads = [" ".join(chance.choices(_WORDS, k=length)) for length in (0, 3, 30)]
    return [
        LoglikelihoodRequest(f"{heads[at % 3]} {_WORDS[at % 5]}", f" {' '.join(words)}")
        for at, words in enumerate(chance.choices(_WORDS, k=1 + i % 4) for i in range(24))
    ]


def _prompts() -> list[GenerationRequest]:
    chance = random.Random(5)
    return [
        GenerationRequest(
            " ".join(chance.choices(_WORDS, k=1 + 7 * at % 40)), max_new_tokens=4 + 9 * at % 30
        )
        for at in range(12)
    ]


def test_scores_do_not_depend_on_batch_or_order(small: Any, reference: Any) -> None:
    pairs = _pairs()
    right = reference.loglikelihood(pairs)
    for size in (1, 5, None):
        order = sorted(range(len(pairs)), key=lambda at: (at * 7) % 25)
        found = small.loglikelihood([pairs[at] for at in order], batch_size=size)
        for at, output in zip(order, found, strict=True):
            assert output.token_logprobs == pytest.approx(right[at].token_logprobs, **_CLOSE)
            assert output.is_greedy == right[at].is_greedy


def test_a_cache_smaller_than_all_requests_changes_no_answer(small: Any, reference: Any) -> None:
    prompts = _prompts()
    needed = sum(request.max_new_tokens for request in prompts)
    assert needed > 120
    found, right = small.generate(prompts), reference.generate(prompts)
    assert [output.token_ids for output in found] == [output.token_ids for output in right]
    assert small.requests_in_flight == 0


def test_a_request_beyond_the_cache_runs_alone(small: Any, reference: Any) -> None:
    request = GenerationRequest("The cat", max_new_tokens=200, ignore_eos=True)
    (found,), (right,) = small.generate([request]), reference.generate([request])
    assert found.token_ids == right.token_ids
    assert found.completion_tokens == 200


def test_scoring_and_generation_take_turns_on_one_cache(small: Any, reference: Any) -> None:
    prompts, pairs = _prompts(), _pairs()[:6]
    scores = reference.loglikelihood(pairs)
    outputs: dict[int, Any] = {}
    for at, output in small.generate_continuous(enumerate(prompts)):
        outputs[at] = output
        for ours, right in zip(small.loglikelihood(pairs), scores, strict=True):
            assert ours.token_logprobs == pytest.approx(right.token_logprobs, **_CLOSE)
    right = reference.generate(prompts)
    assert [outputs[at].token_ids for at in range(len(prompts))] == [
        output.token_ids for output in right
    ]


def test_each_token_is_run_once_and_a_kept_prefix_never_again(small: Any) -> None:
    head = " ".join(_WORDS * 3)
    pairs = [LoglikelihoodRequest(f"{head} {word}", " is three") for word in _WORDS]
    small.gc()
    before = small._scorer._packing.tokens_run
    small.loglikelihood(pairs)
    first = small._scorer._packing.tokens_run - before
    codec = small.tokenizer
    spans: list[TokenSpan] = []
    for pair in pairs:
        ids = [*codec.leading_ids, *codec.encode(pair.context + pair.continuation)]
        spans.append(TokenSpan(ids, len(codec.encode(pair.context)) + 1))
    assert first == plan_scoring(spans).unique_tokens
    small.loglikelihood(pairs)
    again = small._scorer._packing.tokens_run - before - first
    assert again <= first - len(codec.encode(head))
    small.gc()
    assert small._forward.cache.held == 0


def test_a_stream_closed_early_leaves_no_slot(small: Any) -> None:
    prompts = [GenerationRequest("The cat sees", max_new_tokens=40, ignore_eos=True)] * 12
    stream = small.generate_continuous(enumerate(prompts))
    next(stream)
    stream.close()
    (output,) = small.generate([GenerationRequest("The", max_new_tokens=3, ignore_eos=True)])
    assert output.completion_tokens == 3
    small.gc()
    assert small.requests_in_flight == 0
    assert small._forward.cache.held == 0


def test_a_closed_session_holds_no_weights() -> None:
    session: Any = Tinygrad(device="cpu", batch_size=1, pass_tokens=1).build(TINY)
    session.generate([GenerationRequest("The", max_new_tokens=2)])
    block = weakref.ref(session._forward._model.blk[0])
    gc.disable()  # or a collection that happens by chance frees them
    try:
        session.close()
        assert block() is None
    finally:
        gc.enable()


def test_session_describes_its_execution() -> None:
    with Tinygrad(device="cpu:x86", max_model_len=64, batch_size="auto").build(TINY) as session:
        described = session.describe_execution() or {}
        assert session.info.max_model_len == 64
        assert session.preferred_batch_size == 16
        assert Capability.CONTINUOUS_BATCHING in session.info.capabilities
        identity = session.identity() or {}
    wanted = {
        "device": "CPU:X86",
        "dtype": "float32",
        "batching": "continuous",
        "weight_type": "float32",
        "quantization": "F32",
        "jitbeam": 0,
    }
    assert wanted.items() <= described.items()
    assert "tiny-f32.gguf" in identity
