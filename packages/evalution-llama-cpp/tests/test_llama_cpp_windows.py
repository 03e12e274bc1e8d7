"""Models with a sliding window: what a sequence takes over from another is whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_llama_cpp import LlamaCpp

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from evalution_llama_cpp.session import LlamaCppSession

ENGINE = LlamaCpp(device="cpu", n_threads=1, n_ctx=512, batch_size=4)
ROUNDING = 5e-3
"""llama.cpp looks GELU up in a table of f16: 4e-4 was seen between a text alone and in company."""


@pytest.fixture
def session(random_gguf: Callable[..., Path]) -> Iterator[LlamaCppSession]:
    with ENGINE.build(Model(str(random_gguf("gemma2")))) as session:
        session.check()
        yield session


def drawn(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(3, 290) for _ in range(count)]


def pair(context: list[int], continuation: list[int]) -> LoglikelihoodRequest:
    return LoglikelihoodRequest(
        context_input_ids=context, continuation_input_ids=continuation, truncation="error"
    )


def fill(session: LlamaCppSession, chance: random.Random) -> None:
    """Go once round the cache, so that cells which no sequence sees are taken."""
    session.generate(
        [
            GenerationRequest(input_ids=drawn(chance, 20), max_new_tokens=60, ignore_eos=True)
            for _ in range(10)
        ]
    )


def test_scoring_does_not_share_a_prefix_that_lost_cells(session: LlamaCppSession) -> None:
    chance = random.Random(1)
    text = drawn(chance, 120)
    session.loglikelihood([pair(text[:-1], text[-1:])])
    fill(session, chance)
    request = pair(text[:60], drawn(chance, 4))
    (after,) = session.loglikelihood([request])
    session.gc()
    (alone,) = session.loglikelihood([request])
    assert after.token_logprobs == pytest.approx(alone.token_logprobs, abs=ROUNDING)


def test_scoring_shares_a_prefix_that_is_whole_within_the_window(session: LlamaCppSession) -> None:
    chance = random.Random(2)
    text = drawn(chance, 120)
    session.loglikelihood([pair(text, drawn(chance, 1))])
    fill(session, chance)
    request = pair(text + drawn(chance, 3), drawn(chance, 1))
    before = session.decoded_tokens
    (after,) = session.loglikelihood([request])
    assert session.decoded_tokens - before == 3
    session.gc()
    (alone,) = session.loglikelihood([request])
    assert after.token_logprobs == pytest.approx(alone.token_logprobs, abs=ROUNDING)


def test_prompt_does_not_share_a_prefix_that_lost_cells(session: LlamaCppSession) -> None:
    chance = random.Random(3)
    prompt = drawn(chance, 40)
    asked = [GenerationRequest(input_ids=prompt, max_new_tokens=200, ignore_eos=True)]
    asked += [
        GenerationRequest(input_ids=drawn(chance, 20), max_new_tokens=60, ignore_eos=True)
        for _ in range(9)
    ]
    asked.append(
        GenerationRequest(input_ids=prompt[:30] + drawn(chance, 1), max_new_tokens=20, logprobs=1)
    )
    session.generate(asked)
    (alone,) = session.generate(asked[-1:])
    together = session.generate(asked)[-1]
    assert together.token_ids == alone.token_ids
    assert together.token_logprobs == pytest.approx(alone.token_logprobs, abs=ROUNDING)
