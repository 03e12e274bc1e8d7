"""Rotary position embeddings, by position and not by a table of the whole context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


class Rotary:
    """Cosines and sines of a model's positions, computed in float64 and given in float32.

    Args:
        dim: how many values of a head are turned.
        theta: the base of the frequencies.
        factors: what each of the `dim / 2` frequencies is divided by: `rope_freqs.weight` of Llama
            3.1 and later, which tinygrad 0.13 leaves out. None: by 1.
    """

    def __init__(self, dim: int, theta: float, factors: Sequence[float] | None = None):
        self._frequencies = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if factors is not None:
            self._frequencies = self._frequencies / np.asarray(factors, dtype=np.float64)

    def at(self, positions: NDArray[np.int64]) -> Floats:
        """[positions, dim] float32: the cosines of each position, and then its sines."""
        angles = np.outer(positions, self._frequencies)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
