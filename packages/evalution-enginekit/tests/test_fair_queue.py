"""Fair queuing on a simulated runtime, whose clock is the tokens that it has served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import GenerationOutput, GenerationRequest, LoglikelihoodRequest
from evalution_enginekit.fair_queue import (
    Accounts,
    Caller,
    count_prompt,
    count_prompts,
    estimate_cost,
    find_saving,
)

costs = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


@dataclass
class Runtime:
    """One slot, given to the request that is next; `served` counts tokens by caller."""

    accounts: Accounts = field(default_factory=Accounts)
    served: Counter[Caller] = field(default_factory=Counter[Caller])

    def serve(self, waiting: dict[Caller, Sequence[int]], requests: int) -> list[Caller]:
        """Serve callers that never cease to ask, their costs in turn; return who was served."""
        opened = {caller: self.accounts.open(caller) for caller in waiting}
        asked = Counter[Caller]()
        order: list[Caller] = []
        for _ in range(requests):
            heads = {c: waiting[c][asked[c] % len(waiting[c])] for c in waiting}
            caller = min(waiting, key=lambda c: opened[c].rank(heads[c]))
            opened[caller].charge(heads[caller])
            asked[caller] += 1
            self.served[caller] += heads[caller]
            order.append(caller)
        for account in opened.values():
            self.accounts.close(account)
        return order


@given(st.lists(costs, min_size=2, max_size=6), st.integers(1, 300))
@settings(max_examples=40)
def test_callers_that_always_ask_get_equal_tokens_whatever_their_requests_cost(
    callers: list[list[int]], requests: int
) -> None:
    runtime = Runtime()
    waiting: dict[Caller, Sequence[int]] = {("host", i): each for i, each in enumerate(callers)}
    runtime.serve(waiting, requests)
    longest = max(map(max, callers))
    got = [runtime.served[caller] for caller in waiting]
    assert max(got) - min(got) <= 2 * longest


@given(st.integers(1, 30), st.integers(1, 30), st.integers(2, 1000))
@settings(max_examples=30)
def test_hosts_get_equal_tokens_however_many_connections_they_have(
    one: int, other: int, cost: int
) -> None:
    runtime = Runtime()
    waiting: dict[Caller, Sequence[int]] = {("a", i): [cost] for i in range(one)}
    waiting |= {("b", i): [cost] for i in range(other)}
    runtime.serve(waiting, 4 * (one + other))
    served = [sum(n for caller, n in runtime.served.items() if caller[0] == h) for h in "ab"]
    assert abs(served[0] - served[1]) <= cost


@given(st.integers(1, 40), st.integers(1, 300), st.integers(2, 1000))
@settings(max_examples=30)
def test_cheap_request_of_a_newcomer_is_next(heavy: int, before: int, cost: int) -> None:
    runtime = Runtime()
    waiting: dict[Caller, Sequence[int]] = {("host", i): [cost] for i in range(heavy)}
    opened = [runtime.accounts.open(caller) for caller in waiting]
    runtime.serve(waiting, before)
    newcomer = runtime.accounts.open(("host", "light"))
    assert newcomer.rank(1) < min(account.rank(cost) for account in opened)


@given(st.integers(1, 200), st.integers(1, 200))
@settings(max_examples=30)
def test_time_away_earns_nothing(away: int, beside: int) -> None:
    runtime = Runtime()
    busy = runtime.accounts.open(("host", "busy"))
    runtime.serve({("host", "idle"): [10]}, 1)
    runtime.serve({("host", "busy"): [10]}, away)
    runtime.served.clear()
    runtime.serve({("host", "busy"): [10], ("host", "idle"): [10]}, beside)
    assert abs(runtime.served["host", "busy"] - runtime.served["host", "idle"]) <= 20
    runtime.accounts.close(busy)


def test_caller_that_leaves_and_returns_does_not_lose_its_debt() -> None:
    runtime = Runtime()
    other = runtime.accounts.open(("host", "other"))
    for _ in range(3):  # a call of its own for each costly request
        runtime.serve({("host", "heavy"): [1000]}, 1)
    heavy = runtime.accounts.open(("host", "heavy"))
    assert other.rank(1000) < heavy.rank(1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500)), max_size=200))
@settings(max_examples=30)
def test_accounts_do_not_outlive_their_calls(calls: list[tuple[int, int]]) -> None:
    accounts = Accounts()
    for host, connection in calls:
        account = accounts.open((host, connection))
        account.charge(5)
        account.correct(-2)
        accounts.close(account)
    assert len(accounts) == 0


def test_idle_callers_are_forgotten_while_others_wait() -> None:
    accounts = Accounts()
    steady = accounts.open(("host", "steady"))
    for connection in range(10_000):
        account = accounts.open(("host", connection))
        account.charge(5)
        accounts.close(account)
        steady.charge(5)
    assert len(accounts) < 100


@pytest.mark.parametrize(
    ("request_", "cost"),
    [
        (GenerationRequest(input_ids=[1] * 10, max_new_tokens=5), 21),
        (GenerationRequest("abcd" * 10, max_new_tokens=5), 21),
        (GenerationRequest(messages=[{"role": "a" * 36}], max_new_tokens=10**9), 211),
        (LoglikelihoodRequest("abcd" * 5, "abcd" * 5), 11),
        (LoglikelihoodRequest(context_input_ids=[1] * 5, continuation_input_ids=[1] * 5), 11),
    ],
)
def test_cost_counts_generated_tokens_twice_and_at_most_what_the_model_takes(
    request_: GenerationRequest | LoglikelihoodRequest, cost: float
) -> None:
    assert estimate_cost(request_, count_prompt(request_), 100) == cost


@pytest.mark.parametrize(
    ("messages", "tools", "characters"),
    [
        ([{"role": "user", "content": "abc"}], None, 18),
        ([{"role": "u" * 30, "content": "abc"}], None, 44),
        ([{"role": "user", "content": "abc", "name": "n" * 9}], None, 31),
        ([{"role": "user", "content": [{"type": "text", "text": "abc"}]}], None, 30),
        ([{"role": "user", "calls": [{"arguments": {"a": ["x" * 9, ("y" * 9,)]}}]}], None, 41),
        ([{"role": "user", "content": "abc"}], [{"name": "f", "k" * 9: {"t": "d" * 9}}], 42),
        ([{"r": [0] * 9 + [None, True, 1.5, "", [], {}]}], None, 16),
        (None, None, 0),
        (5, None, 0),
    ],
)
def test_every_text_of_a_conversation_and_of_its_tools_counts(
    messages: Any, tools: Any, characters: int
) -> None:
    request = GenerationRequest(messages=messages, tools=tools)
    assert count_prompt(request) == (characters, 0)
    if not tools:
        scored = LoglikelihoodRequest("", "ab", messages=messages)
        assert count_prompt(scored) == (characters + 2 if messages != 5 else 0, 0)


def test_endless_conversation_has_no_count() -> None:
    message: dict[str, Any] = {"role": "user"}
    message["content"] = [message]
    assert count_prompt(GenerationRequest(messages=[message])) == (0, 0)


def test_choices_of_one_conversation_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []

    def watched(request: Any) -> tuple[int, int]:
        counted.append(request)
        return count_prompt(request)

    monkeypatch.setattr("evalution_enginekit.fair_queue.count_prompt", watched)
    messages = [[{"role": "user"}], [{"role": "users"}]]
    choices = [GenerationRequest(messages=one, seed=n) for one in messages for n in range(3)]
    scored = LoglikelihoodRequest("a", "b")
    sizes = count_prompts([*choices, GenerationRequest("abc"), scored, scored])
    assert sizes == [(8, 0)] * 3 + [(9, 0)] * 3 + [(3, 0)] + [(2, 0)] * 2
    assert len(counted) == 5


def test_tokens_that_were_not_generated_are_given_back() -> None:
    request = GenerationRequest("a", max_new_tokens=1000)
    output = GenerationOutput("a", "b", completion_tokens=10)
    assert find_saving(request, output, 100) == 2 * 90
    malformed = GenerationRequest("a", max_new_tokens="many")  # pyright: ignore[reportArgumentType]
    assert find_saving(malformed, output, 100) == 0.0
