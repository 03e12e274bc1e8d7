"""The KV cache: keys and values of all sequences in one row of slots.

A sequence is a path of slots, one for each of its tokens. Sequences that begin alike hold the same
slots, and slots that no path holds are free.
"""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor

from evalution_core.encoding import shared_prefix

Slots = NDArray[np.int64]

_LEAST_CAPACITY = 1024
_PREFIXES_KEPT = 4
_LEAST_SHARED = 8
"""Tokens from which a prefix is worth keeping."""
_SLACK = 512
"""Slots that may be filled before the cache looks for free ones."""


class Path:
    """The slots of a sequence's tokens, in order; `top` is behind the last one in the cache."""

    def __init__(self, slots: Slots, siblings: WeakSet[Path]):
        self.place(slots)
        self._siblings = siblings
        siblings.add(self)

    @property
    def length(self) -> int:
        return len(self.slots)

    def fork(self, length: int | None = None) -> Path:
        """Return another path that holds the same slots, or the first `length` of them."""
        return Path(self.slots[:length].copy(), self._siblings)

    def extend(self, begin: int, count: int) -> None:
        self.slots = np.concatenate([self.slots, np.arange(begin, begin + count)])
        self.top = begin + count if count else self.top

    def place(self, slots: Slots) -> None:
        """Hold `slots` in place of its own."""
        self.slots, self.top = slots, int(slots.max(initial=-1)) + 1


class KVCache:
    """The tensors of all layers and the slots that are held.

    It grows by doubling, and moves the held slots together when that makes room; both happen in
    `find_room` alone.

    Args:
        shape: a function from the number of slots to the shape of each layer's tensor.
    """

    def __init__(self, shape: Callable[[int], list[tuple[int, ...]]]):
        self._shape = shape
        self._paths: WeakSet[Path] = WeakSet()
        self._tidy_at = 0
        self.capacity = 0
        self.tensors: list[Tensor] = []

    def new_path(self) -> Path:
        """Return an empty path."""
        return Path(np.empty(0, np.int64), self._paths)

    @property
    def held(self) -> int:
        """Number of slots that some path holds."""
        return len(self._find_held_slots())

    def find_room(self, count: int) -> int:
        """Return the first of `count` free slots in a row, behind all held ones."""
        top = max((path.top for path in self._paths), default=0)
        if top + count <= self._tidy_at:
            return top
        held = self._find_held_slots()
        if len(held) + count >= self.capacity:
            self._grow(len(held) + count)
        if len(held) < top:
            self._compact(held)
        self._tidy_at = min(self.capacity, max(2 * len(held), len(held) + count) + _SLACK)
        return len(held)

    def clear(self) -> None:
        """Free the tensors; no path may be used after that."""
        self.tensors, self.capacity, self._tidy_at = [], 0, 0

    def _find_held_slots(self) -> Slots:
        held = [path.slots for path in self._paths]
        return np.unique(np.concatenate(held)) if held else np.empty(0, np.int64)

    def _compact(self, held: Slots) -> None:
        """Move the last held slots to free ones, so that the first ones are held."""
        free = np.setdiff1d(np.arange(len(held)), held)
        moved = held[len(held) - len(free) :]
        order = np.arange(self.capacity)
        order[free] = moved
        index = Tensor(order.astype(np.int32))
        for tensor in self.tensors:
            # Where memory runs out, the paths are true of all layers: no held slot has changed.
            tensor.assign(tensor[:, :, index].contiguous().realize()).realize()
        order[moved] = free
        for path in self._paths:
            path.place(order[path.slots])

    def _grow(self, needed: int) -> None:
        before, capacity = self.capacity, max(_LEAST_CAPACITY, self.capacity)
        while capacity <= needed:
            capacity *= 2
        if not before:
            # Zeros, not what was in memory: free slots are multiplied by a weight of zero.
            made: list[Any] = [Tensor.zeros(*shape) for shape in self._shape(capacity)]
        else:
            more = (None, None, (0, capacity - before), None)
            made = [tensor.pad(more) for tensor in self.tensors]
        made = [tensor.contiguous().realize() for tensor in made]
        # Only now: a device without room for them must leave the cache as it was.
        self.tensors, self.capacity = made, capacity


class Prefixes:
    """Prefixes of earlier sequences, kept in the cache for sequences that begin alike."""

    def __init__(self, cache: KVCache):
        self._cache = cache
        self._kept: deque[tuple[Sequence[int], Path]] = deque(maxlen=_PREFIXES_KEPT)

    def find_path(self, token_ids: Sequence[int], limit: int) -> Path:
        """Return a path with the longest kept prefix of `token_ids`, cut to `limit` tokens."""
        best, shared = None, 0
        for kept, path in self._kept:
            found = min(shared_prefix(kept, token_ids), limit)
            if found > shared:
                best, shared = path, found
        return self._cache.new_path() if best is None else best.fork(shared)

    def remember(self, token_ids: Sequence[int], path: Path) -> None:
        """Keep a sequence that is wholly in the cache, unless a kept one covers it."""
        if len(token_ids) < _LEAST_SHARED:
            return
        known = any(shared_prefix(kept, token_ids) >= len(token_ids) - 1 for kept, _ in self._kept)
        if not known:
            self._kept.append((list(token_ids), path.fork(len(token_ids))))

    def clear(self) -> None:
        self._kept.clear()
