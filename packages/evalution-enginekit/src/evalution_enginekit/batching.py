"""Batches for engines that run several sequences side by side: of fixed size, and continuous."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


class BatchLimits:
    """Rows that fit into memory, learnt from running out of it, for each band of lengths.

    A band holds the lengths with the same power of two above them.
    """

    def __init__(self) -> None:
        self._limits: dict[int, int] = {}

    def limit(self, length: int) -> int | None:
        """The most rows of this length that may be tried; None while nothing is known."""
        known = [rows for band, rows in self._limits.items() if band <= _band(length)]
        return min(known, default=None)

    def lower(self, length: int, rows: int) -> None:
        """Remember that more than `rows` rows of this length don't fit."""
        band = _band(length)
        self._limits[band] = min(rows, self._limits.get(band, rows))


def run_halving(
    batch: Sequence[T],
    run: Callable[[Sequence[T]], Sequence[R]],
    *,
    length: Callable[[T], int],
    limits: BatchLimits,
    out_of_memory: type[BaseException] | tuple[type[BaseException], ...],
) -> list[R]:
    """Results of `run` over `batch`, in halves as long as memory runs out.

    The size that worked is remembered in `limits`. A single row that doesn't fit raises the
    runtime's own error.
    """
    if not batch:
        return []
    longest = max(length(item) for item in batch)
    limit = limits.limit(longest)
    if limit is not None and len(batch) > limit:
        return _run_parts(batch, limit, run, length, limits, out_of_memory)
    try:
        return list(run(batch))
    except out_of_memory:
        if len(batch) == 1:
            raise
    half = (len(batch) + 1) // 2
    limits.lower(longest, half)
    return _run_parts(batch, half, run, length, limits, out_of_memory)


def _run_parts(
    batch: Sequence[T],
    size: int,
    run: Callable[[Sequence[T]], Sequence[R]],
    length: Callable[[T], int],
    limits: BatchLimits,
    out_of_memory: type[BaseException] | tuple[type[BaseException], ...],
) -> list[R]:
    results: list[R] = []
    for begin in range(0, len(batch), size):
        part = batch[begin : begin + size]
        results.extend(
            run_halving(part, run, length=length, limits=limits, out_of_memory=out_of_memory)
        )
    return results


def _band(length: int) -> int:
    return max(1, length).bit_length()


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
