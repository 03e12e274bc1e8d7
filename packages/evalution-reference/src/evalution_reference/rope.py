"""Rotary position embeddings (RoFormer, arXiv:2104.09864), with linear and Llama 3 scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a checkpoint stretches its frequencies beyond the context it was first trained on.

    `linear` divides every frequency by `factor` (arXiv:2306.15595). `llama3` divides the long
    wavelengths by `factor`, leaves the short ones alone and blends in between (Llama 3.1); the
    other three fields are used by `llama3` alone.
    """

    rope_type: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> NDArray[np.float64]:
    """Return the rotation in radians per position of each of the `head_dim / 2` planes."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return frequencies
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    return _llama3_frequencies(frequencies, scaling)


def _llama3_frequencies(
    frequencies: NDArray[np.float64], scaling: RopeScaling
) -> NDArray[np.float64]:
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


class RotaryTable:
    """Cosines and sines by position, computed in float64 and then rounded to `dtype`.

    The table grows with the largest position asked for, so a model that claims a very long
    context costs no more memory than the positions in use.
    """

    def __init__(
        self, head_dim: int, theta: float, scaling: RopeScaling | None, dtype: np.dtype[Any]
    ) -> None:
        self._frequencies = inverse_frequencies(head_dim, theta, scaling)
        self._dtype = dtype
        self._cos: Floats = np.empty((0, head_dim // 2), dtype)
        self._sin: Floats = np.empty((0, head_dim // 2), dtype)

    def cos_sin(self, positions: NDArray[np.integer[Any]]) -> tuple[Floats, Floats]:
        """Return the cosines and sines at `positions` [T], each [T, head_dim / 2]."""
        needed = int(positions.max()) + 1
        if needed > len(self._cos):
            self._grow(max(needed, 2 * len(self._cos)))
        return self._cos[positions], self._sin[positions]

    def _grow(self, size: int) -> None:
        angles = np.arange(size, dtype=np.float64)[:, None] * self._frequencies
        self._cos = np.cos(angles).astype(self._dtype)
        self._sin = np.sin(angles).astype(self._dtype)


def apply_rope(states: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate `states` [T, heads, head_dim] by the angles of `cos` and `sin` [T, head_dim / 2].

    Plane i is made of the entries i and i + head_dim / 2: the layout of Hugging Face
    checkpoints, not the interleaved one of the paper and of GGUF files.
    """
    half = states.shape[-1] // 2
    first, second = states[..., :half], states[..., half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = np.empty_like(states)
    rotated[..., :half] = first * cos - second * sin
    rotated[..., half:] = second * cos + first * sin
    return rotated
