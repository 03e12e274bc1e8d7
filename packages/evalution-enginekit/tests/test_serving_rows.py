"""Rows of a serving runtime: one token generated for each, whatever the order of the answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import InvalidRequestError
from evalution_enginekit import TokenEvent, TokenPrompt, TokenSpan, serving_rows
from evalution_enginekit.planning import TokenScore, WrongScoresError, take_top
from evalution_enginekit.scoring import complete_top_logprobs
from evalution_enginekit.serving import PromptSource
from evalution_enginekit.serving_rows import generate_rows
from evalution_enginekit.serving_session import group_spans

VOCABULARY = 7
Serve = Callable[[PromptSource], Generator[Sequence[TokenEvent]]]


def make_row(prefix: Sequence[int]) -> dict[int, float]:
    """The prefix decides every value, so that a row of another position is found."""
    values = random.Random(str(list(prefix))).sample(range(1000), VOCABULARY)
    return {token_id: -float(value) for token_id, value in enumerate(values)}


def list_row(prompt: TokenPrompt) -> TokenEvent:
    if prompt.logprobs is None:
        return TokenEvent(prompt.key, [0], finish="length")
    return TokenEvent(prompt.key, [0], [-1.0], [make_row(prompt.token_ids)], finish="length")


def serve(
    slots: int, answer: Callable[[TokenPrompt], TokenEvent] = list_row, seed: int = 0
) -> tuple[Serve, list[list[TokenPrompt]]]:
    """A runtime that answers some of its prompts with each step, and what ran at each."""
    chance, seen = random.Random(seed), list[list[TokenPrompt]]()

    def generate(source: PromptSource) -> Generator[Sequence[TokenEvent]]:
        running: list[TokenPrompt] = []
        while True:
            running += source.take(slots - len(running))
            if not running:
                return
            seen.append(list(running))
            chance.shuffle(running)
            answered = [running.pop() for _ in range(chance.randint(1, len(running)))]
            yield [answer(prompt) for prompt in answered]

    return generate, seen


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 6), min_size=2, max_size=9), st.integers(1, 8)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_rows_come_in_order_whatever_the_order_of_the_answers(
    drawn: list[tuple[list[int], int]], slots: int, seed: int
) -> None:
    spans = [TokenSpan(ids, min(start, len(ids) - 1)) for ids, start in drawn]
    generate, _ = serve(slots, seed=seed)
    found = np.concatenate(list(generate_rows(generate, spans, VOCABULARY)))
    prefixes = [s.token_ids[:at] for s in spans for at in range(s.start, len(s.token_ids))]
    assert found.tolist() == [list(make_row(prefix).values()) for prefix in prefixes]


def test_the_longest_prefix_is_cached_before_the_others_and_few_rows_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving_rows, "_LISTED_VALUES", 3 * VOCABULARY)
    ids = [1, 2, 3, 4, 5, 6, 5, 4]
    generate, seen = serve(64)
    list(generate_rows(generate, [TokenSpan(ids, 1)], VOCABULARY))
    assert [list(prompt.token_ids) for prompt in seen[0]] == [ids[:-1]]
    assert all(prompt.logprobs == VOCABULARY for step in seen[1:] for prompt in step)
    assert max(map(len, seen)) == 3
    generate, seen = serve(64)
    list(generate_rows(generate, [TokenSpan(ids, 7)], VOCABULARY))
    assert [prompt.logprobs for step in seen for prompt in step] == [VOCABULARY]


def test_incomplete_row_and_refused_prompt_end_the_rows() -> None:
    def cut(prompt: TokenPrompt) -> TokenEvent:
        return TokenEvent(prompt.key, [0], [-1.0], [{0: -1.0}])

    def refuse(prompt: TokenPrompt) -> TokenEvent:
        return TokenEvent(prompt.key, error=InvalidRequestError("too many"))

    for answer, error, message in (
        (cut, WrongScoresError, "listed 1 log-probabilities of a vocabulary of 7"),
        (refuse, InvalidRequestError, "too many"),
    ):
        with pytest.raises(error, match=message):
            list(generate_rows(serve(4, answer)[0], [TokenSpan([1, 2], 1)], VOCABULARY))


@given(st.dictionaries(st.integers(0, 50), st.sampled_from([-1.0, -2.0, -3.0]), min_size=1))
def test_top_tokens_are_the_likeliest_of_a_list_best_first(listed: dict[int, float]) -> None:
    best = sorted(listed.items(), key=lambda item: (-item[1], item[0]))
    for count in range(1, len(listed) + 1):
        assert list(take_top(listed, count).items()) == best[:count]
    with pytest.raises(WrongScoresError, match=f"position were asked for, and {len(listed)} came"):
        take_top(listed, len(listed) + 1)


def test_span_that_wants_top_tokens_is_a_group_by_itself() -> None:
    choices = [TokenSpan([5, 6, letter], 2, top_logprobs=2) for letter in (1, 2)]
    plain = [TokenSpan([5, 6, letter], 2) for letter in (3, 4)]
    groups = group_spans([*choices, *plain], listed_limit=128)
    assert [(len(group.spans), group.top_logprobs) for group in groups] == [
        (1, 2),
        (1, 2),
        (2, None),
    ]


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({3: -0.5, 4: -1.0}, None),
        ({4: -0.1, 5: -0.2}, None),
        ({3: -1.5, 4: -2.0}, "-0.5, and by the most likely tokens of its position -1.5"),
        ({4: -1.0, 5: -2.0}, "token 3 has the log-probability -0.5, and .* another position"),
    ],
)
def test_top_tokens_that_contradict_the_scored_one_are_refused(
    top: dict[int, float], message: str | None
) -> None:
    span = TokenSpan([1, 3], 1, top_logprobs=2)
    score: Any = TokenScore([-0.5], top_logprobs=[top])
    if message is None:
        assert complete_top_logprobs(span, score) == [top]
        return
    with pytest.raises(WrongScoresError, match=message):
        complete_top_logprobs(span, score)
