from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evalution_enginekit import TokenPrompt
from evalution_enginekit.planning import WrongScoresError
from evalution_enginekit.sampling import TokenChoice, next_token, token_logprobs

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0])

some_logits = hnp.arrays(
    np.float64, st.integers(1, 40), elements=st.floats(-50, 50, allow_nan=False, width=32)
)


def draws(logits: np.ndarray, count: int = 4000, **settings: float) -> np.ndarray:
    generator = np.random.default_rng(0)
    ids = [
        next_token(logits, do_sample=True, generator=generator, **settings)  # type: ignore[arg-type]
        for _ in range(count)
    ]
    return np.bincount(ids, minlength=len(logits)) / count


def test_greedy_takes_the_lowest_id_among_the_largest_whatever_the_settings() -> None:
    assert next_token(LOGITS) == 1
    assert next_token(LOGITS, do_sample=False, temperature=9.0, top_p=0.1, top_k=3) == 1


def test_draws_follow_the_softmax() -> None:
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(draws(LOGITS), expected, atol=0.03)


def test_temperature_comes_before_top_p() -> None:
    # At temperature 1 the first token holds 0.73 of the mass, at 4 only 0.56.
    logits = np.array([1.0, 0.0])
    assert draws(logits, temperature=1.0, top_p=0.7).tolist() == [1.0, 0.0]
    assert draws(logits, temperature=4.0, top_p=0.7).min() > 0.3


def test_top_k_comes_before_top_p() -> None:
    # Of four equal tokens one reaches top_p=0.25; of the two that top_k leaves, one holds 0.5.
    logits = np.array([2.0, 1.0, 1.0 - 1e-9, 1.0 - 2e-9])
    assert draws(logits, top_k=2, top_p=0.74)[1] > 0.2
    assert draws(logits, top_k=2, top_p=0.73).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_top_k_tells_logits_apart_that_are_equal_beside_the_largest() -> None:
    frequencies = draws(np.array([1.0, 1e-19, 0.0]), top_k=2)
    assert frequencies[1] > 0.1
    assert frequencies[2] == 0.0


def test_top_k_keeps_ties_with_the_kth_largest() -> None:
    frequencies = draws(LOGITS, top_k=1)
    assert frequencies[[1, 3]].sum() == 1.0
    assert frequencies[[1, 3]].min() > 0.4


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-6])
def test_a_tiny_temperature_is_greedy_and_does_not_overflow(temperature: float) -> None:
    logits = np.array([-1e30, 3.0, 2.0, 1e30])
    generator = np.random.default_rng(0)
    chosen = next_token(logits, do_sample=True, temperature=temperature, generator=generator)
    assert chosen == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "settings", [{}, {"do_sample": True}, {"do_sample": True, "top_p": 0.5, "top_k": 3}]
)
def test_logits_without_log_probabilities_end_the_prompt_with_an_error(
    bad: float, settings: dict[str, Any]
) -> None:
    logits = LOGITS.copy()
    logits[2] = bad
    with pytest.raises(WrongScoresError, match=r"nan as a log-prob.*set a dtype of a wider"):
        next_token(logits, generator=np.random.default_rng(0), **settings)
    choice = TokenChoice(TokenPrompt(7, [1], 9, temperature=1.0, **settings))
    assert choice.take(LOGITS).error is None
    event = choice.take(logits)
    assert isinstance(event.error, WrongScoresError)
    assert event.error.__traceback__ is None, "its frames hold the logits"
    assert (event.key, choice.is_done) == (7, True)


@pytest.mark.parametrize("top_p", [0.0, 1e-12])
def test_top_p_keeps_at_least_one_token(top_p: float) -> None:
    assert draws(LOGITS, count=50, top_p=top_p)[1] == 1.0


def test_the_largest_draw_falls_on_a_token_that_can_be_drawn() -> None:
    class Highest(np.random.Generator):
        def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
            return 1 - 2**-53

    generator = Highest(np.random.PCG64())
    for scale in np.linspace(0.1, 3, 50):
        logits = np.append(scale * np.arange(9.0), -2000.0)
        assert 0 <= next_token(logits, do_sample=True, generator=generator) < 9


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = np.random.default_rng(1).standard_normal(50)

    def sequence() -> list[int]:
        generator = np.random.default_rng(7)
        return [next_token(logits, do_sample=True, generator=generator) for _ in range(20)]

    assert sequence() == sequence()
    assert len(set(sequence())) > 1, "they are drawn"


@settings(deadline=None)
@given(
    logits=some_logits,
    temperature=st.floats(1e-3, 100),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_drawn_token_is_one_that_transformers_would_keep(
    logits: np.ndarray, temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    drawn = next_token(
        logits,
        do_sample=True,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        generator=generator,
    )
    scaled = logits / temperature
    if 0 < top_k < len(scaled):
        kth = np.sort(scaled)[-top_k]
        scaled = np.where(scaled < kth, -np.inf, scaled)
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    likelier = probabilities[probabilities > probabilities[drawn]].sum()
    assert probabilities[drawn] > 0
    assert likelier == 0 or likelier < top_p + 1e-9


@settings(deadline=None)
@given(logits=some_logits, data=st.data())
def test_logprobs_are_a_log_softmax_and_greedy_means_no_larger_logit(
    logits: np.ndarray, data: st.DataObject
) -> None:
    target = data.draw(st.integers(0, len(logits) - 1))
    logprobs, greedy = token_logprobs(logits[None], np.array([target]))
    exact = logits[target] - math.log(math.fsum(math.exp(logit) for logit in logits.tolist()))
    assert logprobs[0] == pytest.approx(exact, abs=1e-12)
    assert greedy == [not any(logits > logits[target])]


def test_logprobs_of_large_logits_do_not_overflow_and_half_precision_is_widened() -> None:
    logits = np.array([[6e4, 6e4 - 64, -6e4]], np.float16)
    logprobs, greedy = token_logprobs(np.repeat(logits, 3, axis=0), np.array([0, 1, 2]))
    assert logprobs == pytest.approx([0.0, -64.0, -120000.0])
    assert greedy == [True, False, False]
    assert all(type(value) is float for value in logprobs)


def test_a_tie_is_greedy_for_every_token_in_it() -> None:
    assert token_logprobs(LOGITS[None].repeat(2, 0), np.array([1, 3]))[1] == [True, True]
