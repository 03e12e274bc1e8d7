"""Refill: what a step is given, and what is never given to one again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evalution_enginekit.batching import run_continuous_batching
from evalution_enginekit.generation import TokenEvent, TokenPrompt


@dataclass
class Countdown:
    key: int
    left: int

    @property
    def is_done(self) -> bool:
        return self.left == 0


class Feed:
    """Prompts in their order, and keys that are cancelled before a step."""

    def __init__(self, lengths: Sequence[int], cancelled: dict[int, list[int]]):
        self._prompts = [TokenPrompt(key, [1], length) for key, length in enumerate(lengths)]
        self._cancelled = cancelled
        self._asked = 0

    def take(self, limit: int) -> list[TokenPrompt]:
        taken, self._prompts = self._prompts[:limit], self._prompts[limit:]
        return taken

    def cancelled(self) -> list[int]:
        keys = self._cancelled.get(self._asked, [])
        self._asked += 1
        return keys

    def on_change(self, notify: Callable[[], None]) -> None:
        raise NotImplementedError


def stepped(lengths: Sequence[int], cancelled: dict[int, list[int]], slots: int) -> list[list[int]]:
    """The keys that each step was given."""
    steps: list[list[int]] = []

    def step(sequences: list[Countdown]) -> list[TokenEvent]:
        steps.append([sequence.key for sequence in sequences])
        for sequence in sequences:
            sequence.left -= 1
        return []

    def begin(prompt: TokenPrompt) -> Countdown:
        return Countdown(prompt.key, prompt.max_new_tokens)

    feed: Any = Feed(lengths, cancelled)
    assert all(events == [] for events in run_continuous_batching(feed, slots, begin, step))
    return steps


def test_a_slot_is_taken_before_the_next_step() -> None:
    assert stepped([1, 3, 2, 1], {}, 2) == [[0, 1], [1, 2], [1, 2], [3]]


def test_a_cancelled_sequence_is_stepped_no_more_and_its_slot_is_taken() -> None:
    assert stepped([9, 3, 2], {1: [0]}, 2) == [[0, 1], [1, 2], [1, 2]]


def test_a_key_that_does_not_run_may_be_cancelled() -> None:
    assert stepped([1, 1], {0: [7], 1: [0]}, 1) == [[0], [1]]
