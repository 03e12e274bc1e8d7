"""Refill: a slot that is free takes the next prompt, while the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from evalution_enginekit.generation import TokenFeed
from evalution_enginekit.tokens import TokenEvent, TokenPrompt


class Decoding(Protocol):
    """A sequence that an engine is generating."""

    @property
    def is_done(self) -> bool:
        """Whether the last step gave it a stop id or its last token."""
        ...


S = TypeVar("S", bound=Decoding)


def refill(
    feed: TokenFeed,
    slots: int,
    begin: Callable[[TokenPrompt], S],
    step: Callable[[list[S]], Sequence[TokenEvent]],
) -> Iterator[Sequence[TokenEvent]]:
    """Continuous batching for an engine whose step advances all running sequences by a token.

    What `_generate_tokens` of such an engine returns: `begin` makes a sequence of a prompt, `step`
    runs all of them once and says what each got. A sequence leaves when it is done or its key was
    cancelled, and its slot is taken before the next step.
    """
    running: dict[int, S] = {}
    while True:
        for key in feed.cancelled():
            running.pop(key, None)
        for prompt in feed.take(slots - len(running)):
            running[prompt.key] = begin(prompt)
        if not running:
            return
        events = step(list(running.values()))
        running = {key: sequence for key, sequence in running.items() if not sequence.is_done}
        yield events
