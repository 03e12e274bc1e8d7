"""The forward pass of the Llama family: RMSNorm, rotary embeddings, grouped queries, SwiGLU."""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalution_core.errors import ConfigurationError, EngineRuntimeError, InvalidRequestError
from evalution_reference.llama_config import LlamaConfig, RopeScaling

Floats = NDArray[np.floating[Any]]
TokenIds = NDArray[np.integer[Any]]

_PRECISIONS: dict[str, np.dtype[np.floating[Any]]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

# Queries per attention block: bounds the score matrix of a long prefill, and skips most of the
# part that the causal mask would throw away.
_QUERY_BLOCK = 256

_SMALL = 256
"""Hidden size up to which one thread is enough."""
_ALONE = Lock()


@contextmanager
def _use_one_thread() -> Generator[None]:
    """Keep matrix products to one thread: idle ones spin, and a busy machine pays for each of them.

    The number is a setting of the whole process, which others must not change meanwhile.
    """
    with _ALONE:
        # A limit that changes nothing would take 2 % of a small model's step.
        if all((one.num_threads or 1) == 1 for one in _find_libraries().lib_controllers):
            yield
            return
        with _find_libraries().limit(limits=1):
            yield


@functools.cache
def _find_libraries() -> Any:
    import threadpoolctl  # pyright: ignore[reportMissingTypeStubs]  # noqa: PLC0415 - of the runtime

    return threadpoolctl.ThreadpoolController().select(user_api="blas")  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights as [out, in]; those that read the same input are one matrix."""

    input_norm: Floats
    qkv: Floats
    qkv_bias: Floats | None
    query_norm: Floats | None
    key_norm: Floats | None
    output: Floats
    output_bias: Floats | None
    post_attention_norm: Floats
    gate_up: Floats
    down: Floats


class Llama:
    """A model of `LlamaConfig` that computes everything in one precision.

    `float64` is the oracle: nothing is rounded in between, unlike in Transformers, which keeps
    norms and rope in float32 whatever the model's dtype.
    """

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, Floats], dtype: str = "float32"
    ) -> None:
        """Take the weights of `load_checkpoint`; they are copied where `dtype` is another.

        `auto` is float64 for weights in float64, else float32.
        """
        self.config = config
        if dtype == "auto":
            found = np.result_type(np.float32, *weights.values())
            dtype = found.name
        if dtype not in _PRECISIONS:
            raise ConfigurationError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        self.dtype = _PRECISIONS[dtype]
        cast = {name: tensor.astype(self.dtype, copy=False) for name, tensor in weights.items()}
        self._embedding = cast["model.embed_tokens.weight"]
        self._head = cast.get("lm_head.weight", self._embedding)
        self._final_norm = cast["model.norm.weight"]
        self._layers = [_make_layer(cast, index) for index in range(config.num_hidden_layers)]
        self._rope = RotaryTable(
            config.head_dim, config.rope_theta, config.rope_scaling, self.dtype
        )
        self._limit_threads = _use_one_thread if config.hidden_size <= _SMALL else nullcontext
        self._hidden_future: Floats = np.triu(
            np.full((_QUERY_BLOCK, _QUERY_BLOCK), -np.inf, self.dtype), k=1
        )

    def new_cache(self) -> KVCache:
        """Return an empty cache for one sequence."""
        config = self.config
        shape = config.num_hidden_layers, config.num_key_value_heads, 0, config.head_dim
        return KVCache(shape, self.dtype)

    def hidden_states(self, token_ids: TokenIds, cache: KVCache) -> Floats:
        """Run `token_ids` [T] behind the tokens of `cache`, which then holds them too.

        Returns the final hidden states [T, hidden_size], normalised, ready for `logits`.
        """
        return self.extend([token_ids], [cache])

    def decode(self, token_ids: TokenIds, caches: Sequence[KVCache]) -> Floats:
        """Run one token on each of B different sequences.

        `token_ids` is [B]; returns the final hidden states [B, hidden_size]. The weights are read
        once for all sequences, which is what makes a batch cheaper than its parts.
        """
        return self.extend(token_ids[:, None], caches)

    def extend(self, runs: Sequence[TokenIds] | TokenIds, caches: Sequence[KVCache]) -> Floats:
        """Run new tokens on several sequences at once, `runs[i]` behind the tokens of `caches[i]`.

        The runs may differ in length. Returns their final hidden states one after the other,
        [sum of lengths, hidden_size]. No cache may appear twice.

        Raises:
            InvalidRequestError: a run is empty, or an id is outside the vocabulary.
        """
        assert len({id(cache) for cache in caches}) == len(caches) == len(runs)
        token_ids = self._check_ids(runs)
        with self._limit_threads():
            return self._extend(token_ids, runs, caches)

    def _extend(
        self,
        token_ids: TokenIds,
        runs: Sequence[TokenIds] | TokenIds,
        caches: Sequence[KVCache],
    ) -> Floats:
        starts = [cache.length for cache in caches]
        positions = np.concatenate(
            [np.arange(start, start + len(run)) for start, run in zip(starts, runs, strict=True)]
        )
        cos, sin = self._rope.cos_sin(positions)
        hidden = self._embedding[token_ids]
        for index, layer in enumerate(self._layers):
            normed = rms_norm(hidden, layer.input_norm, self.config.rms_norm_eps)
            queries, keys, values = self._project(layer, normed, cos, sin)
            attended = np.empty((len(hidden), layer.output.shape[1]), self.dtype)
            begin = 0
            for run, cache in zip(runs, caches, strict=True):
                rows = slice(begin, begin + len(run))
                cached = cache.append(index, keys[rows], values[rows])
                self._attend(queries[rows], *cached, out=attended[rows])
                begin += len(run)
            hidden = hidden + _linear(attended, layer.output, layer.output_bias)
            normed = rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
            hidden = hidden + swiglu(normed @ layer.gate_up.T) @ layer.down.T
        for run, cache in zip(runs, caches, strict=True):
            cache.advance(len(run))
        return rms_norm(hidden, self._final_norm, self.config.rms_norm_eps)

    def logits(self, hidden: Floats) -> Floats:
        """Return the logits [R, vocab_size] of R rows [R, hidden_size] of `hidden_states`.

        Raises:
            EngineRuntimeError: a logit is infinite or not a number.
        """
        with self._limit_threads():
            logits: Floats = hidden @ self._head.T
        if not np.isfinite(logits).all():
            raise EngineRuntimeError(
                f"the model gave logits that are not finite in {self.dtype.name}; "
                "its weights are damaged, or need dtype='float64'"
            )
        return logits

    def _check_ids(self, runs: Sequence[TokenIds] | TokenIds) -> TokenIds:
        if len(runs) == 0 or not all(len(run) for run in runs):
            raise InvalidRequestError("there are no token ids to run")
        token_ids = np.concatenate(list(runs))
        low, high = int(token_ids.min()), int(token_ids.max())
        if low < 0 or high >= self.config.vocab_size:
            raise InvalidRequestError(
                f"token id {low if low < 0 else high} is outside the vocabulary "
                f"of {self.config.vocab_size}"
            )
        return token_ids

    def _project(
        self, layer: _Layer, normed: Floats, cos: Floats, sin: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return rotated, scaled queries, rotated keys, and values, each [T, heads, head_dim]."""
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        states = _linear(normed, layer.qkv, layer.qkv_bias)
        states = states.reshape(len(normed), heads + 2 * kv_heads, config.head_dim)
        rotating, values = states[:, : heads + kv_heads], states[:, heads + kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotating[:, :heads] = rms_norm(
                rotating[:, :heads], layer.query_norm, config.rms_norm_eps
            )
            rotating[:, heads:] = rms_norm(rotating[:, heads:], layer.key_norm, config.rms_norm_eps)
        rotated = apply_rope(rotating, cos, sin)
        rotated[:, :heads] *= config.head_dim**-0.5
        return rotated[:, :heads], rotated[:, heads:], values

    def _attend(self, queries: Floats, keys: Floats, values: Floats, out: Floats) -> None:
        """Write into `out` [T, heads * head_dim] the attention of the last T positions.

        `queries` is [T, heads, head_dim]; `keys` and `values` are [kv_heads, length, head_dim].
        """
        count, heads, head_dim = queries.shape
        kv_heads, length, _ = keys.shape
        grouped = queries.reshape(count, kv_heads, heads // kv_heads, head_dim)
        grouped = grouped.transpose(1, 2, 0, 3)
        mixed = out.reshape(count, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
        for start in range(0, count, _QUERY_BLOCK):
            stop = min(start + _QUERY_BLOCK, count)
            visible = length - count + stop
            block = grouped[:, :, start:stop]
            scores = block.reshape(kv_heads, -1, head_dim) @ keys[:, :visible].swapaxes(1, 2)
            if stop - start > 1:
                diagonal = scores.reshape(*block.shape[:3], visible)[..., start - stop :]
                diagonal += self._hidden_future[: stop - start, : stop - start]
            softmax_in_place(scores)
            mixed[:, :, start:stop] = (scores @ values[:, :visible]).reshape(block.shape)


def rms_norm(states: Floats, weight: Floats, eps: float) -> Floats:
    """Scale each vector of the last axis to a root mean square of 1, then by `weight`.

    arXiv:1910.07467. `eps` is added to the mean square.
    """
    mean_square = np.square(states).mean(axis=-1, keepdims=True)
    return states / np.sqrt(mean_square + eps) * weight


def swiglu(gate_up: Floats) -> Floats:
    """Return silu(gate) * up for `gate_up` [T, 2 * intermediate_size] (arXiv:2002.05202)."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    # exp overflows to infinity for very negative gates, and the quotient is then the right -0.0.
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def softmax_in_place(scores: Floats) -> None:
    """Turn `scores` into weights that sum to 1 along the last axis."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)


def _linear(states: Floats, weight: Floats, bias: Floats | None) -> Floats:
    product = states @ weight.T
    return product if bias is None else product + bias


def _make_layer(weights: Mapping[str, Floats], index: int) -> _Layer:
    def tensor(name: str) -> Floats:
        return weights[f"model.layers.{index}.{name}"]

    def optional(name: str) -> Floats | None:
        return weights.get(f"model.layers.{index}.{name}")

    biases = [optional(f"self_attn.{name}_proj.bias") for name in "qkv"]
    present = [bias for bias in biases if bias is not None]
    return _Layer(
        input_norm=tensor("input_layernorm.weight"),
        qkv=np.concatenate([tensor(f"self_attn.{name}_proj.weight") for name in "qkv"]),
        qkv_bias=np.concatenate(present) if present else None,
        query_norm=optional("self_attn.q_norm.weight"),
        key_norm=optional("self_attn.k_norm.weight"),
        output=tensor("self_attn.o_proj.weight"),
        output_bias=optional("self_attn.o_proj.bias"),
        post_attention_norm=tensor("post_attention_layernorm.weight"),
        gate_up=np.concatenate([tensor(f"mlp.{name}_proj.weight") for name in ("gate", "up")]),
        down=tensor("mlp.down_proj.weight"),
    )


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> NDArray[np.float64]:
    """Return the rotation in radians per position of each of the `head_dim / 2` planes.

    Rotary position embeddings are those of RoFormer, arXiv:2104.09864.
    """
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


Floats = NDArray[np.floating[Any]]


class KVCache:
    """Keys and values of the tokens already run, in arrays that double when they are full.

    A prefix is shared by running it once and then either rewinding (`truncate`) between one
    continuation and the next, or copying (`fork`) to run several continuations side by side.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: np.dtype[Any]) -> None:
        """`shape` is [layers, heads, tokens, head_dim], its tokens the room to begin with."""
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
