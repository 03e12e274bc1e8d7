from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import (  # pyright: ignore[reportMissingTypeStubs]
    threadpool_info,
    threadpool_limits,
)

from evalution_core.errors import ConfigurationError, EngineRuntimeError, InvalidRequestError
from evalution_enginekit.sampling import token_logprobs
from evalution_reference.llama import Llama, softmax_in_place
from evalution_reference.load import load_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {
    "multi-head": {"num_key_value_heads": 4},
    "grouped": {"num_key_value_heads": 2},
    "one-kv-head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "biased, wide heads": {"attention_bias": True, "head_dim": 20},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 12},
}


@pytest.fixture(params=FAMILIES.values(), ids=list(FAMILIES))
def model(request: pytest.FixtureRequest, write_checkpoint: Callable[..., Path]) -> Llama:
    return Llama(*load_checkpoint(write_checkpoint(**request.param)), dtype="float64")


@pytest.fixture
def grouped(write_checkpoint: Callable[..., Path]) -> Llama:
    return Llama(*load_checkpoint(write_checkpoint()), dtype="float64")


def ids(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 97, count)


def test_tokens_run_in_pieces_or_one_by_one_give_the_states_of_one_run(model: Llama) -> None:
    tokens = ids(40)
    whole = model.hidden_states(tokens, model.new_cache())
    cache = model.new_cache()
    pieces = [model.hidden_states(piece, cache) for piece in np.split(tokens, [1, 9, 30])]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-12)
    assert cache.length == 40
    cache = model.new_cache()
    steps = [model.decode(tokens[i : i + 1], [cache]) for i in range(40)]
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=1e-12)


def test_a_batched_step_gives_each_sequence_what_it_gets_alone(model: Llama) -> None:
    prompts = [ids(length, seed=length) for length in (1, 7, 23)]
    caches = [model.new_cache() for _ in prompts]
    for prompt, cache in zip(prompts, caches, strict=True):
        model.hidden_states(prompt, cache)
    alone = [
        model.hidden_states(np.array([token]), cache.fork())
        for token, cache in zip((5, 6, 7), caches, strict=True)
    ]
    together = model.decode(np.array([5, 6, 7]), caches)
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-12)
    assert [cache.length for cache in caches] == [2, 8, 24]


def test_runs_of_different_lengths_can_share_one_pass(grouped: Llama) -> None:
    prefix, runs = ids(6), [ids(3, 1), ids(1, 2), ids(9, 3)]
    first = grouped.new_cache()
    grouped.hidden_states(prefix, first)
    caches = [first.fork(), grouped.new_cache(), first]
    alone = [
        grouped.hidden_states(run, cache.fork()) for run, cache in zip(runs, caches, strict=True)
    ]
    together = grouped.extend(runs, caches)
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-12)


def test_a_run_longer_than_one_attention_block_is_causal(grouped: Llama) -> None:
    tokens = ids(600)
    whole = grouped.hidden_states(tokens, grouped.new_cache())
    cache = grouped.new_cache()
    steps = [grouped.hidden_states(piece, cache) for piece in np.split(tokens, [100, 257])]
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=1e-12)
    tokens[-1] = (tokens[-1] + 1) % 97
    changed = grouped.hidden_states(tokens, grouped.new_cache())
    np.testing.assert_array_equal(changed[:-1], whole[:-1])
    assert np.abs(changed[-1] - whole[-1]).max() > 1e-3


def test_a_rewound_cache_and_a_fork_hold_the_prefix_alone(grouped: Llama) -> None:
    prefix, one, other = ids(10), ids(5, 1), ids(5, 2)
    expected = grouped.hidden_states(np.concatenate([prefix, other]), grouped.new_cache())[10:]
    cache = grouped.new_cache()
    grouped.hidden_states(prefix, cache)
    fork = cache.fork()
    grouped.hidden_states(one, cache)
    cache.truncate(10)
    np.testing.assert_allclose(grouped.hidden_states(other, cache), expected, atol=1e-12)
    np.testing.assert_allclose(grouped.hidden_states(other, fork), expected, atol=1e-12)


def test_a_fork_and_its_origin_do_not_see_each_others_tokens(grouped: Llama) -> None:
    prefix, one, other = ids(10), ids(5, 1), ids(5, 2)
    expected = grouped.hidden_states(np.concatenate([prefix, other]), grouped.new_cache())[10:]
    cache = grouped.new_cache()
    for piece in (prefix[:9], prefix[9:]):  # the second one leaves room in what is reserved
        grouped.hidden_states(piece, cache)
    fork = cache.fork()
    first = grouped.hidden_states(other[:3], fork)
    grouped.hidden_states(one, cache)
    second = grouped.hidden_states(other[3:], fork)
    np.testing.assert_allclose(np.concatenate([first, second]), expected, atol=1e-12)
    assert (cache.length, fork.length) == (15, 15)


@pytest.mark.parametrize("length", [-1, 11])
def test_a_cache_can_only_be_truncated_to_what_it_holds(grouped: Llama, length: int) -> None:
    cache = grouped.new_cache()
    grouped.hidden_states(ids(10), cache)
    with pytest.raises(ValueError, match="cache of 10 tokens"):
        cache.truncate(length)


def test_a_failed_pass_leaves_the_cache_as_it_was(
    grouped: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = grouped.new_cache()
    grouped.hidden_states(ids(10), cache)
    expected = grouped.hidden_states(ids(3, 1), cache.fork())
    with monkeypatch.context() as patch:
        patch.setattr("evalution_reference.llama.swiglu", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            grouped.hidden_states(ids(5, 2), cache)
    assert cache.length == 10
    np.testing.assert_allclose(grouped.hidden_states(ids(3, 1), cache), expected, atol=1e-12)


def test_float32_stays_float32_and_close_to_float64(write_checkpoint: Callable[..., Path]) -> None:
    config, weights = load_checkpoint(write_checkpoint(dtype="float32"))
    tokens, targets = ids(60), ids(60, 1)
    scores: list[list[float]] = []
    for dtype in ("float32", "float64"):
        model = Llama(config, weights, dtype=dtype)
        hidden = model.hidden_states(tokens, model.new_cache())
        logits = model.logits(hidden)
        assert hidden.dtype == logits.dtype == dtype
        scores.append(token_logprobs(logits, targets)[0])
    np.testing.assert_allclose(scores[0], scores[1], atol=5e-5)
    assert scores[0] != scores[1]


def test_a_tied_head_is_the_embedding(write_checkpoint: Callable[..., Path]) -> None:
    config, weights = load_checkpoint(write_checkpoint(tie_word_embeddings=True))
    model = Llama(config, weights, dtype="float64")
    hidden = model.hidden_states(ids(3), model.new_cache())
    expected = hidden @ weights["model.embed_tokens.weight"].T
    np.testing.assert_allclose(model.logits(hidden), expected, atol=1e-12)


def test_logits_are_computed_for_the_rows_asked_for(grouped: Llama) -> None:
    hidden = grouped.hidden_states(ids(5), grouped.new_cache())
    assert grouped.logits(hidden[3:]).shape == (2, 97)
    np.testing.assert_allclose(grouped.logits(hidden)[3:], grouped.logits(hidden[3:]), atol=1e-12)


@pytest.mark.parametrize("token", [-1, 97])
def test_an_id_outside_the_vocabulary_is_refused(grouped: Llama, token: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"token id {token} is outside .* of 97"):
        grouped.hidden_states(np.array([3, token]), grouped.new_cache())


def test_an_empty_run_is_refused(grouped: Llama) -> None:
    with pytest.raises(InvalidRequestError, match="no token ids"):
        grouped.hidden_states(ids(0), grouped.new_cache())
    with pytest.raises(InvalidRequestError, match="no token ids"):
        grouped.decode(ids(0), [])


def test_logits_that_are_not_finite_are_an_error_of_the_runtime(grouped: Llama) -> None:
    with pytest.raises(EngineRuntimeError, match="not finite in float64"):
        grouped.logits(np.full((1, 32), np.nan))


@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_other_precisions_are_refused(write_checkpoint: Callable[..., Path], dtype: str) -> None:
    with pytest.raises(ConfigurationError, match="'float32' or 'float64'"):
        Llama(*load_checkpoint(write_checkpoint()), dtype=dtype)


@pytest.mark.parametrize(("hidden_size", "expected"), [(32, 1), (512, 2)])
def test_only_a_large_model_computes_on_the_threads_that_are_set(
    write_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    hidden_size: int,
    expected: int,
) -> None:
    model = Llama(*load_checkpoint(write_checkpoint(hidden_size=hidden_size)))
    seen: list[int] = []

    def record(scores: Any) -> None:
        seen.extend(count_threads())
        softmax_in_place(scores)

    monkeypatch.setattr("evalution_reference.llama.softmax_in_place", record)
    with threadpool_limits(2, user_api="blas"):
        model.hidden_states(ids(3), model.new_cache())
        assert count_threads() == {2}
    assert set(seen) == {expected}


def count_threads() -> set[int]:
    """Return the threads of each BLAS library in this process."""
    found: Any = threadpool_info()
    return {library["num_threads"] for library in found if library["user_api"] == "blas"}
