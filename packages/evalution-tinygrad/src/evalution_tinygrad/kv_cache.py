"""Keys and values of all sequences in one row of slots.

A sequence is a path of slots, one for each of its tokens. Sequences that begin alike hold the same
slots, and whatever no path holds is free.
"""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor

Slots = NDArray[np.int64]

_LEAST_CAPACITY = 1024
_SLACK = 512
"""Slots that may be filled before it is looked whether some have become free."""


class Path:
    """The slots of a sequence's tokens, in the order of the tokens."""

    def __init__(self, slots: Slots, siblings: WeakSet[Path]):
        self.slots = slots
        self._siblings = siblings
        siblings.add(self)

    @property
    def length(self) -> int:
        return len(self.slots)

    def fork(self, length: int | None = None) -> Path:
        """Another path that holds the same slots, or the first `length` of them."""
        return Path(self.slots[:length].copy(), self._siblings)

    def extend(self, begin: int, count: int) -> None:
        self.slots = np.concatenate([self.slots, np.arange(begin, begin + count)])


class KVCache:
    """The tensors of all layers, and which of their slots are held.

    It grows by doubling, and moves the held slots together when that makes room. Both happen in
    `room` alone.

    Args:
        shape: the shape of each layer's tensor, for a number of slots.
    """

    def __init__(self, shape: Callable[[int], list[tuple[int, ...]]]):
        self._shape = shape
        self._paths: WeakSet[Path] = WeakSet()
        self._tidy_at = 0
        self.capacity = 0
        self.tensors: list[Tensor] = []

    def path(self) -> Path:
        """A new path, which holds nothing yet."""
        return Path(np.empty(0, np.int64), self._paths)

    @property
    def held(self) -> int:
        """How many slots some path holds."""
        return len(self._held_slots())

    def room(self, count: int) -> int:
        """The first of `count` free slots in a row; nothing behind them is held."""
        top = max((int(path.slots[-1]) + 1 for path in self._paths if path.length), default=0)
        if top + count <= self._tidy_at:
            return top
        held = self._held_slots()
        if len(held) + count >= self.capacity:
            self._grow(len(held) + count)
        if len(held) < top:
            self._move_together(held)
        self._tidy_at = min(self.capacity, max(2 * len(held), len(held) + count) + _SLACK)
        return len(held)

    def clear(self) -> None:
        """Free the tensors; no path may be used after that."""
        self.tensors, self.capacity, self._tidy_at = [], 0, 0

    def _held_slots(self) -> Slots:
        held = [path.slots for path in self._paths]
        return np.unique(np.concatenate(held)) if held else np.empty(0, np.int64)

    def _move_together(self, held: Slots) -> None:
        order = np.zeros(self.capacity, np.int64)
        order[: len(held)] = held
        index = Tensor(order.astype(np.int32))
        for tensor in self.tensors:
            tensor.assign(tensor[:, :, index].contiguous()).realize()
        for path in self._paths:
            path.slots = np.searchsorted(held, path.slots)

    def _grow(self, needed: int) -> None:
        before, capacity = self.capacity, max(_LEAST_CAPACITY, self.capacity)
        while capacity <= needed:
            capacity *= 2
        if not before:
            # Not left as found in memory: what no path holds is multiplied by a weight of zero.
            made: list[Any] = [Tensor.zeros(*shape) for shape in self._shape(capacity)]
        else:
            more = (None, None, (0, capacity - before), None)
            made = [tensor.pad(more) for tensor in self.tensors]
        made = [tensor.contiguous().realize() for tensor in made]
        # At last: a device without room for them must leave the cache as it was.
        self.tensors, self.capacity = made, capacity
