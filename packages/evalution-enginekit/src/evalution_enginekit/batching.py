"""Batches for engines that run several sequences side by side: of fixed size, and continuous."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from evalution_enginekit.generation import PromptQueue, TokenEvent, TokenPrompt

T = TypeVar("T")
R = TypeVar("R")


def batches(
    lengths: Sequence[int], *, token_budget: int, max_batch_size: int | None = None
) -> Iterator[list[int]]:
    """Indices in batches whose padded size, rows times longest row, is within `token_budget`.

    Longest first, so that rows of a batch are alike and a size that doesn't fit shows at once. A
    row above the budget gets a batch of its own.
    """
    batch: list[int] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        full = max_batch_size is not None and len(batch) >= max_batch_size
        if batch and (full or longest * (len(batch) + 1) > token_budget):
            yield batch
            batch = []
        if not batch:
            longest = max(1, lengths[index])
        batch.append(index)
    if batch:
        yield batch


_SLICE = 4
"""Items that a thread takes one after the other, as many as most questions have choices."""
_MOST_THREADS = 16
_WORTH_S = 2e-4
"""Seconds of an item from which threads take less time than they cost."""


def map_in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return `function` of every item, in their order; the first exception is raised.

    If the first items take long, threads take the others: for work that lets other threads run, as
    libraries that encode long texts do.
    """
    threads = min(len(items) // _SLICE, os.cpu_count() or 1, _MOST_THREADS)
    if threads < 2:
        return list(map(function, items))
    began = time.perf_counter()
    first = list(map(function, items[:_SLICE]))
    if time.perf_counter() - began < _SLICE * _WORTH_S:
        return [*first, *map(function, items[_SLICE:])]

    def apply(begin: int) -> list[R]:
        return list(map(function, items[begin : begin + _SLICE]))

    with ThreadPoolExecutor(threads) as pool:
        parts = pool.map(apply, range(_SLICE, len(items), _SLICE))
        return [*first, *(result for part in parts for result in part)]


class Decoding(Protocol):
    """A sequence that an engine is generating."""

    @property
    def is_done(self) -> bool:
        """True once a step gave it a stop id or its last token."""
        ...


S = TypeVar("S", bound=Decoding)


def run_continuous_batching(
    feed: PromptQueue,
    slots: int,
    begin: Callable[[TokenPrompt], S],
    step: Callable[[list[S]], Sequence[TokenEvent]],
) -> Iterator[Sequence[TokenEvent]]:
    """Continuous batching for an engine whose step advances all running sequences by a token.

    Returned by `_generate_tokens` of such an engine: `begin` makes a sequence of a prompt, `step`
    runs all of them once and returns their events. A sequence leaves when it is done or its key
    was cancelled, and its slot is taken before the next step.
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
