"""The keys and values of one sequence."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


class KVCache:
    """Keys and values of the tokens already run, in arrays that double when they are full.

    A prefix is shared by running it once and then either rewinding (`truncate`) between one
    continuation and the next, or copying (`fork`) to run several continuations side by side.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: np.dtype[Any],
        capacity: int = 0,
    ) -> None:
        shape = (num_layers, num_kv_heads, capacity, head_dim)
        self._keys: Floats = np.empty(shape, dtype)
        self._values: Floats = np.empty(shape, dtype)
        self._length = 0

    @property
    def length(self) -> int:
        """Number of tokens whose keys and values are held in every layer."""
        return self._length

    @property
    def capacity(self) -> int:
        """Number of tokens that fit before the arrays have to grow."""
        return self._keys.shape[2]

    def append(self, layer: int, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Store `keys` and `values` [T, kv_heads, head_dim] of one layer behind the cached ones.

        Returns all keys and values of the layer, [kv_heads, length + T, head_dim], as views.
        `length` moves with `advance`, once every layer has its part: a forward pass that fails
        half-way leaves the cache as it was.
        """
        end = self._length + len(keys)
        if end > self.capacity:
            self._grow(max(end, 2 * self.capacity))
        self._keys[layer, :, self._length : end] = keys.swapaxes(0, 1)
        self._values[layer, :, self._length : end] = values.swapaxes(0, 1)
        return self._keys[layer, :, :end], self._values[layer, :, :end]

    def advance(self, count: int) -> None:
        """Count the `count` tokens just appended to every layer as held."""
        assert self._length + count <= self.capacity
        self._length += count

    def truncate(self, length: int) -> None:
        """Forget all tokens behind the first `length`."""
        if not 0 <= length <= self._length:
            raise ValueError(f"can't truncate a cache of {self._length} tokens to {length}")
        self._length = length

    def fork(self) -> KVCache:
        """Return an independent cache that holds the same tokens."""
        twin = copy(self)
        twin._keys = self._resize(self._keys, self.capacity)
        twin._values = self._resize(self._values, self.capacity)
        return twin

    def _grow(self, capacity: int) -> None:
        # Only the first layer of a pass gets here: no layer holds tokens past `length` yet.
        self._keys = self._resize(self._keys, capacity)
        self._values = self._resize(self._values, capacity)

    def _resize(self, held: Floats, capacity: int) -> Floats:
        num_layers, num_kv_heads, _, head_dim = held.shape
        resized = np.empty((num_layers, num_kv_heads, capacity, head_dim), held.dtype)
        resized[:, :, : self._length] = held[:, :, : self._length]
        return resized
