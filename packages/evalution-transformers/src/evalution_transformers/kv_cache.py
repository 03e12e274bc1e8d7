"""Upstream's dynamic cache with room to grow, so that a step copies no more than its own tokens."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_LEAST_ROOM = 64


class RoomyLayer(DynamicLayer):
    """Keys and values [rows, heads, tokens, head size] at the beginning of larger tensors.

    Upstream's own layer copies everything it holds at each step.
    """

    _key_room: Tensor | None = None
    _value_room: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Put tokens behind those that are held; returns all, as views until the next call."""
        length = self.get_seq_length()
        end = length + key_states.shape[-2]
        self._key_room = _with_room(self._key_room, self.keys if length else None, key_states, end)
        self._value_room = _with_room(
            self._value_room, self.values if length else None, value_states, end
        )
        self._key_room[..., length:end, :] = key_states
        self._value_room[..., length:end, :] = value_states
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = self._key_room[..., :end, :], self._value_room[..., :end, :]
        self.is_initialized = True
        return self.keys, self.values


def _with_room(room: Tensor | None, held: Tensor | None, added: Tensor, end: int) -> Tensor:
    """A tensor that begins with `held` and has room for `end` tokens; `room` if it does."""
    if (
        room is not None
        and held is not None
        and held.data_ptr() == room.data_ptr()
        and held.shape[0] == room.shape[0]
        and end <= room.shape[-2]
    ):
        return room
    shape = (*added.shape[:-2], end + max(_LEAST_ROOM, end // 4), added.shape[-1])
    larger = torch.empty(shape, dtype=added.dtype, device=added.device)
    if held is not None:
        larger[..., : held.shape[-2], :] = held
    return larger


def new_cache() -> DynamicCache:
    """An empty cache of such layers, for a model whose attention is all full."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = RoomyLayer
    return cache


LayerStates = tuple[Tensor, Tensor]
"""Keys and values of one layer, [heads, tokens, head size] each."""


class RowCache:
    """The caches of sequences of different lengths, side by side and flush on the right."""

    def __init__(self) -> None:
        self._cache = new_cache()
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def cache(self) -> DynamicCache:
        """What a forward pass extends by a token for each row; tell `grow` when it has."""
        return self._cache

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(self._lengths, default=0)

    def positions(self) -> list[list[int]]:
        """Each row's next position, [rows, 1]."""
        return [[length] for length in self._lengths]

    def mask(self, device: torch.device) -> Tensor | None:
        """[rows, width + 1] with 0 where a shorter row has nothing; None where none is shorter."""
        if len(set(self._lengths)) <= 1:
            return None
        lengths = torch.tensor(self._lengths, device=device)
        columns = torch.arange(self.width + 1, device=device)
        return (columns[None] >= self.width - lengths[:, None]).long()

    def grow(self) -> None:
        self._lengths = [length + 1 for length in self._lengths]

    def clear(self) -> None:
        self._cache = new_cache()
        self._lengths = []

    def keep(self, rows: list[int]) -> None:
        """Drop all rows but these, and the columns that only the dropped ones had."""
        if len(rows) == len(self._lengths):
            return
        if not rows:
            self.clear()
            return
        before = self.width
        self._lengths = [self._lengths[row] for row in rows]
        surplus = before - self.width
        layers: list[Any] = self._cache.layers
        for layer in layers:
            keys, values = _states(layer)
            kept = torch.tensor(rows, device=keys.device)
            layer.keys = keys[..., surplus:, :].index_select(0, kept)
            layer.values = values[..., surplus:, :].index_select(0, kept)

    def join(self, added: list[list[LayerStates]]) -> None:
        """Put rows behind the present ones; each brings the states of every layer."""
        lengths = [*self._lengths, *(row[0][0].shape[-2] for row in added)]
        width = max(lengths)
        joined = new_cache()
        for at in range(len(added[0])):
            held = _states(self._cache.layers[at]) if self._lengths else None
            for_layer = [row[at] for row in added]
            keys = _aligned(held[0] if held else None, [pair[0] for pair in for_layer], width)
            values = _aligned(held[1] if held else None, [pair[1] for pair in for_layer], width)
            joined.update(keys, values, at)
        self._cache, self._lengths = joined, lengths


def branch_states(cache: DynamicCache, shared: int, begin: int, end: int) -> list[LayerStates]:
    """Of a cache with one row: its first `shared` tokens and those from `begin` to `end`."""
    found: list[LayerStates] = []
    for layer in cache.layers:
        keys, values = _states(layer)
        keys, values = keys[0], values[0]
        found.append(
            (
                torch.cat((keys[:, :shared], keys[:, begin:end]), dim=1),
                torch.cat((values[:, :shared], values[:, begin:end]), dim=1),
            )
        )
    return found


def _states(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.keys, layer.values


def _aligned(held: Tensor | None, added: list[Tensor], width: int) -> Tensor:
    """All rows in one tensor [rows, heads, width, head size], each flush on the right."""
    rows = 0 if held is None else held.shape[0]
    first = added[0]
    joined = first.new_zeros(rows + len(added), first.shape[0], width, first.shape[2])
    if held is not None:
        joined[:rows, :, width - held.shape[2] :] = held
    for at, states in enumerate(added, start=rows):
        joined[at, :, width - states.shape[1] :] = states
    return joined
