"""In-flight depth and rates, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalution_core import EngineRuntimeError
from evalution_openai.client.retry import (
    AdaptiveConcurrency,
    RateLimit,
    RetryableError,
    RetryState,
)
from evalution_openai.engine import OpenAICompatible


def test_refusals_of_one_moment_count_once(clock: Any) -> None:
    depths: list[int] = []
    concurrency = AdaptiveConcurrency(clock, depths.append, 16, 16)
    clock.time = 5.0
    for _ in range(16):
        concurrency.note_refusal(sent_at=4.0)
    assert depths == [8], "they were sent before the first refusal came"
    concurrency.note_refusal(sent_at=5.0)
    assert depths == [8, 4]


@pytest.mark.parametrize(("retries", "seconds"), [(0, [300.0]), (2, [30.0, 30.0, 300.0])])
def test_each_try_but_the_last_ends_early(clock: Any, retries: int, seconds: list[float]) -> None:
    state = RetryState(OpenAICompatible(), retries, clock, random.Random(0), early_s=30.0)
    found = [state.timeout_s]
    for _ in range(retries):
        state.plan_wait(RetryableError(EngineRuntimeError("slow")))
        found.append(state.timeout_s)
    assert found == seconds


def test_depth_rises_by_one_a_round(clock: Any) -> None:
    depths: list[int] = []
    concurrency = AdaptiveConcurrency(clock, depths.append, 2, 4)
    for _ in range(2 + 3):
        concurrency.note_answer()
    assert depths == [3, 4]
    for _ in range(50):
        concurrency.note_answer()
    assert depths == [3, 4]


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 64))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_depth_keeps_within_its_bounds(clock: Any, answers: list[bool], most: int) -> None:
    concurrency = AdaptiveConcurrency(clock, lambda _: None, most, most)
    for served in answers:
        clock.time += 1.0
        if served:
            concurrency.note_answer()
        else:
            concurrency.note_refusal(clock.time)
        assert 1 <= concurrency.depth <= most


@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), st.integers(1, 600))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_minute_has_more_than_the_rate(clock: Any, amounts: list[int], rate: int) -> None:
    limit = RateLimit(clock, rate)
    taken: list[tuple[float, int]] = []

    async def take() -> None:
        for amount in amounts:
            await limit.take(amount)
            taken.append((clock.time, amount))

    asyncio.run(take())
    burst = rate / 60 + max(amounts)
    for begin, _ in taken:
        within = sum(amount for at, amount in taken if begin <= at < begin + 60)
        assert within <= rate + 2 * burst


def test_unused_tokens_return_to_the_rate_limit(clock: Any) -> None:
    limit = RateLimit(clock, 60)

    async def spend() -> None:
        await limit.take(30)
        limit.give_back(28)
        await limit.take(1)

    asyncio.run(spend())
    assert clock.time <= 2.0
