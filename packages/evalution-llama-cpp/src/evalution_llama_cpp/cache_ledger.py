"""Who may fill how much of the KV cache, so that llama.cpp is never asked for a cell too many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evalution_llama_cpp.context import Context

GiveWay = Callable[["Share"], None]


@dataclass(frozen=True, slots=True)
class Share:
    """Cells and sequence numbers that somebody may use at the same time, at most."""

    cells: int
    sequences: int = 1

    def plus(self, other: Share) -> Share:
        return Share(self.cells + other.cells, self.sequences + other.sequences)


class CacheLedger:
    """The cache's cells and sequence numbers, reserved before they are used.

    A reservation is an upper bound: sequences that share cells reserve them each.
    """

    def __init__(self, context: Context, cells: int):
        self._context = context
        self._whole = Share(cells, context.sequences)
        self._reserved = Share(0, 0)
        self._free = list(range(context.sequences - 1, -1, -1))

    def fits(self, share: Share) -> bool:
        wanted = self._reserved.plus(share)
        return wanted.cells <= self._whole.cells and wanted.sequences <= self._whole.sequences

    def reserve(self, share: Share) -> bool:
        """Whether there was room; then it is taken."""
        if not self.fits(share):
            return False
        self._reserved = self._reserved.plus(share)
        return True

    def release(self, share: Share) -> None:
        self._reserved = Share(
            self._reserved.cells - share.cells, self._reserved.sequences - share.sequences
        )

    def take(self) -> int:
        """An empty sequence, within what was reserved."""
        return self._free.pop()

    def give_back(self, sequence: int) -> None:
        """Empty a sequence and let others have it."""
        self._context.drop(sequence)
        self._free.append(sequence)

    @property
    def is_unused(self) -> bool:
        """Whether nothing is reserved and the runtime says that every sequence is empty."""
        every = range(self._whole.sequences)
        return self._reserved == Share(0, 0) and all(map(self._context.is_empty, every))
