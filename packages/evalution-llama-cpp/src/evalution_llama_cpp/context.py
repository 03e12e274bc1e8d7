"""llama.cpp's context: batches in, logits out, and the budget of its KV cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_llama_cpp.load import Weights, unsuitable_model_error
from evalution_llama_cpp.runtime import LOG
from evalution_llama_cpp.upstream import Handle, Library, Structure

_NO_ROOM, _ABORTED = 1, 2
_EMPTY = -1
_TO_THE_END = -1

Logits = NDArray[np.float32]


class Batch:
    """Rows for one `llama_decode`: each a token at a position of a sequence."""

    def __init__(self, library: Library, capacity: int):
        self.capacity = capacity
        self.length = 0
        self.outputs = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        # Each row has a list of sequences, here of one: a pointer to its entry above.
        begin = self._sequences.ctypes.data
        self._lists = np.arange(capacity, dtype=np.uint64) * 4 + np.uint64(begin)
        self._structure: Structure = library.llama_batch(
            0,
            _pointer(self._tokens, ctypes.c_int32),
            None,
            _pointer(self._positions, ctypes.c_int32),
            _pointer(self._counts, ctypes.c_int32),
            _pointer(self._lists, ctypes.POINTER(ctypes.c_int32)),
            _pointer(self._wanted, ctypes.c_int8),
        )

    @property
    def room(self) -> int:
        return self.capacity - self.length

    @property
    def structure(self) -> Structure:
        self._structure.n_tokens = self.length
        return self._structure

    def clear(self) -> None:
        self.length = self.outputs = 0

    def add(
        self, token_ids: Sequence[int], position: int, sequence: int, wanted: Sequence[int] = ()
    ) -> int:
        """Add a run of a sequence; `wanted` are the offsets in it whose logits are needed.

        Returns the index of its first row in the logits of `Context.decode`.
        """
        begin, end = self.length, self.length + len(token_ids)
        self._tokens[begin:end] = token_ids
        self._positions[begin:end] = np.arange(position, position + len(token_ids))
        self._sequences[begin:end] = sequence
        self._wanted[begin:end] = 0
        for offset in wanted:
            self._wanted[begin + offset] = 1
        self.length = end
        first, self.outputs = self.outputs, self.outputs + len(wanted)
        return first


class Context:
    """A context with one cache that its sequences share cell by cell.

    Raises:
        ConfigurationError: llama.cpp can't make it, in its own words, or the model has no cache.
    """

    def __init__(self, weights: Weights, params: Structure):
        self._library = weights.library
        self.vocabulary_size = weights.vocabulary_size
        LOG.forget()
        self._handle: Handle = self._library.llama_init_from_model(weights.handle, params)
        if not self._handle:
            raise ConfigurationError(
                f"llama.cpp can't make a context of {params.n_ctx} tokens{LOG.tail()}; a smaller "
                "n_ctx needs less memory, and types other than f32, f16 and bf16 need flash_attn"
            )
        self._memory: Handle = self._library.llama_get_memory(self._handle)
        if not self._memory:
            self.free()
            raise unsuitable_model_error(weights.name, "an encoder, without a cache")
        self._window = self._library.llama_model_n_swa(weights.handle)
        self.batch = Batch(self._library, params.n_batch)
        self.sequences = int(params.n_seq_max)

    def decode(self) -> Logits:
        """Run the batch, clear it and return its logits [outputs, vocabulary].

        They are overwritten by the next call.

        Raises:
            EngineRuntimeError: llama.cpp failed; the cache may hold any part of the batch.
        """
        batch = self.batch
        outputs, length = batch.outputs, batch.length
        status = self._library.llama_decode(self._handle, batch.structure)
        batch.clear()
        if status != 0:
            reason = {_NO_ROOM: "no room in the KV cache", _ABORTED: "aborted"}.get(
                status, "failed"
            )
            raise EngineRuntimeError(
                f"llama_decode of {length} tokens gave {status} ({reason}){LOG.tail()}"
            )
        if not outputs:
            return np.empty((0, self.vocabulary_size), np.float32)
        found: Any = self._library.llama_get_logits(self._handle)
        return np.ctypeslib.as_array(found, (outputs, self.vocabulary_size))

    def copy(self, source: int, target: int, end: int) -> None:
        """Share the first `end` positions of `source` with `target`; no cell is copied."""
        self._library.llama_memory_seq_cp(self._memory, source, target, 0, end)

    def can_fork(self, sequence: int, end: int) -> bool:
        """Return whether a copy of the first `end` positions can be continued.

        Layers with a sliding window free the cells outside it, counted from the sequence's end; for
        a copy that ends earlier they may be inside. The runtime drops from the beginning.
        """
        first = self._library.llama_memory_seq_pos_min(self._memory, sequence)
        return first <= max(0, end - self._window + 1)

    def drop(self, sequence: int) -> None:
        self._library.llama_memory_seq_rm(self._memory, sequence, 0, _TO_THE_END)

    def is_empty(self, sequence: int) -> bool:
        """Return whether the runtime itself says that the sequence has no position in its cache."""
        return self._library.llama_memory_seq_pos_max(self._memory, sequence) == _EMPTY

    def free(self) -> None:
        if self._handle is not None:
            self._library.llama_free(self._handle)
            self._handle = None


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    pointers: Any = ctypes
    return pointers.cast(pointers.c_void_p(array.ctypes.data), pointers.POINTER(kind))


@dataclass(frozen=True, slots=True)
class Reservation:
    """The most cells and sequence numbers that its holder may use at the same time."""

    cells: int
    sequences: int = 1

    def __add__(self, other: Reservation) -> Reservation:
        return Reservation(self.cells + other.cells, self.sequences + other.sequences)

    def __sub__(self, other: Reservation) -> Reservation:
        return Reservation(self.cells - other.cells, self.sequences - other.sequences)


class KVCacheBudget:
    """The cache's cells and sequence numbers, reserved before llama.cpp is asked for them.

    A reservation is an upper bound: sequences that share cells reserve them each.
    """

    def __init__(self, context: Context, cells: int):
        self._context = context
        self._whole = Reservation(cells, context.sequences)
        self._reserved = Reservation(0, 0)
        self._free = list(range(context.sequences - 1, -1, -1))

    def has_room(self, wanted: Reservation) -> bool:
        needed = self._reserved + wanted
        return needed.cells <= self._whole.cells and needed.sequences <= self._whole.sequences

    def reserve(self, wanted: Reservation) -> bool:
        """Take the reservation if there is room; return whether there was."""
        if not self.has_room(wanted):
            return False
        self._reserved += wanted
        return True

    def release(self, reservation: Reservation) -> None:
        self._reserved -= reservation

    def take_sequence(self) -> int:
        """Return the number of an empty sequence, within a reservation."""
        return self._free.pop()

    def free_sequence(self, sequence: int) -> None:
        """Empty a sequence and make its number free."""
        self._context.drop(sequence)
        self._free.append(sequence)

    @property
    def is_unused(self) -> bool:
        """True if nothing is reserved and the runtime says that every sequence is empty."""
        every = range(self._whole.sequences)
        return self._reserved == Reservation(0, 0) and all(map(self._context.is_empty, every))
