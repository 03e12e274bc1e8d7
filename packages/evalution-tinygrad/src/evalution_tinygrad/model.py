"""The forward pass of tinygrad's blocks over tokens of many sequences packed in one row.

tinygrad's own attention has one start position for the whole batch, and its mask knows only the
order of tokens. Here each token has a position and a set of cached tokens of its own. Weights,
norms and the rotation are tinygrad's (`tinygrad.llm.model`).
"""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor, TinyJit, UOp
from tinygrad.llm.model import FFNBlock, MLATransformerBlock, TransformerBlock, apply_rope

from evalution_enginekit import Target
from evalution_tinygrad.kv_cache import KVCache, Path

if TYPE_CHECKING:
    from tinygrad.llm.model import Transformer

Floats = NDArray[np.floating[Any]]

_RUN = "run"
SCORED_ROWS = 64
"""Rows of logits that exist at a time when scoring: bounds memory by 64 x vocabulary."""


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of a pass that all layers share.

    `rotation` is [tokens, rope_dim]; `visible` [tokens, upto] says which cached tokens each of the
    tokens attends to, itself included. The pass writes its keys and values at `begin`, so that the
    cache holds `upto` tokens. `begin` and `upto` are numbers that tinygrad binds at each call.
    """

    rotation: Tensor
    visible: Tensor
    begin: Any
    upto: Any


Attention = Callable[[Any, Tensor, Tensor, Step], Tensor]
"""A function of a block, its input [1, tokens, dim], its cache and the step; returns its output."""


def find_attention(block: FFNBlock) -> Attention | None:
    """Return the attention of a block; None for a layer whose state can't be shared or masked."""
    if isinstance(block, MLATransformerBlock):
        return _attend_latent
    return _attend_grouped if isinstance(block, TransformerBlock) else None


def cache_shape(block: Any, tokens: int) -> tuple[int, ...]:
    """Return the shape of a block's cache; the last dimension but one runs over its tokens."""
    config = block.config
    if isinstance(block, MLATransformerBlock):
        return (1, 1, tokens, config.kv_lora_rank + config.rope_dim)
    return (2, config.n_kv_heads, tokens, config.head_dim)


def _store(cache: Tensor, new: Tensor, step: Step, count: int) -> Tensor:
    """Write `new` to the cache and return its first `upto` tokens."""
    place = cache[:, :, step.begin : step.begin + count]
    return Tensor(cache.uop.after(place.uop.store(new.uop)))[:, :, : step.upto]


def _attend_grouped(block: Any, x: Tensor, cache: Tensor, step: Step) -> Tensor:
    config, count = block.config, cast(int, x.shape[1])
    # Separate kernels: one that projects, rotates and stores computes the projection twice.
    q, k, v = (linear(x).contiguous() for linear in (block.attn_q, block.attn_k, block.attn_v))
    whole = config.qk_norm and config.qk_norm != config.head_dim
    if whole:
        q, k = block.attn_q_norm(q), block.attn_k_norm(k)
    q = q.reshape(1, count, config.n_heads, config.head_dim).transpose(1, 2)
    k = k.reshape(1, count, config.n_kv_heads, config.head_dim).transpose(1, 2)
    v = v.reshape(1, count, config.n_kv_heads, config.head_dim).transpose(1, 2)
    if config.qk_norm and not whole:
        q, k = block.attn_q_norm(q), block.attn_k_norm(k)
    q, k = _rotate(q, config.rope_dim, step).contiguous(), _rotate(k, config.rope_dim, step)
    k, v = _confine(k, v)
    held = _store(cache, k.cat(v, dim=0), step, count)
    held = held.repeat_interleave(config.n_heads // config.n_kv_heads, dim=1)
    found = _mix(q, held[0:1], held[1:2], step, config.head_dim)
    return block.attn_output(found.transpose(1, 2).reshape(1, count, -1))


def _attend_latent(block: Any, x: Tensor, cache: Tensor, step: Step) -> Tensor:
    config, count = block.config, cast(int, x.shape[1])
    plain = config.head_dim - config.rope_dim
    q = x if config.q_lora_rank == 0 else block.attn_q_a_norm(block.attn_q_a(x))
    q = (block.attn_q if config.q_lora_rank == 0 else block.attn_q_b)(q)
    q = q.reshape(1, count, config.n_heads, config.head_dim).transpose(1, 2)
    key_weight = block.attn_k_b["weight"].transpose(-1, -2)
    q = (q[..., :plain] @ key_weight).cat(apply_rope(q[..., plain:], step.rotation), dim=-1)
    compressed = block.attn_kv_a_mqa(x)
    latent = block.attn_kv_a_norm(compressed[..., : config.kv_lora_rank])
    turned = compressed[..., config.kv_lora_rank :].reshape(1, 1, count, config.rope_dim)
    turned, latent = _confine(
        apply_rope(turned, step.rotation), latent.reshape(1, 1, count, config.kv_lora_rank)
    )
    held = _store(cache, latent.cat(turned, dim=-1), step, count)
    found = _mix(q, held, held[..., : config.kv_lora_rank], step, config.head_dim)
    found = (found @ block.attn_v_b["weight"].transpose(-1, -2)).transpose(1, 2)
    return block.attn_output(found.reshape(1, count, -1))


def _confine(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of which a token's values are numbers, or else its key is none.

    A value is multiplied by 0 for sequences that don't attend to its token, which isn't 0 of what
    is no number; scores of its key are left out for them.
    """
    is_number = values.isfinite()
    nan = is_number.all(axis=-1, keepdim=True).where(0.0, float("nan"))
    # A kernel of its own: fused with the store, tinygrad 0.13.0 puts NaN into the latent values.
    return keys + nan, is_number.where(values, 0.0).contiguous()


def _mix(q: Tensor, keys: Tensor, values: Tensor, step: Step, head_dim: int) -> Tensor:
    """Return the sums of the visible tokens' values, by the softmax of their scores.

    Not upstream's, which adds minus infinity to the scores of the others: that leaves NaN as it is.
    """
    scores = q @ keys.transpose(-1, -2) * head_dim**-0.5
    return step.visible.where(scores, -float("inf")).softmax(-1) @ values


def _rotate(x: Tensor, rope_dim: int, step: Step) -> Tensor:
    turned = apply_rope(x[..., :rope_dim], step.rotation)
    return turned if rope_dim == x.shape[-1] else turned.cat(x[..., rope_dim:], dim=-1)


class Rotary:
    """Cosines and sines by position, computed in float64 and returned in float32.

    There is no table of the whole context.

    Args:
        dim: values of a head that are rotated.
        theta: the base of the frequencies.
        factors: divisors of the `dim / 2` frequencies: `rope_freqs.weight` of Llama 3.1 and later,
            which tinygrad 0.13 leaves out. None divides by 1.
    """

    def __init__(self, dim: int, theta: float, factors: Sequence[float] | None = None):
        self._frequencies = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if factors is not None:
            self._frequencies = self._frequencies / np.asarray(factors, dtype=np.float64)

    def at(self, positions: NDArray[np.int64]) -> Floats:
        """Return [positions, dim] in float32: the cosines of each position, then its sines."""
        angles = np.outer(positions, self._frequencies)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class Forward:
    """Runs the blocks of tinygrad's transformer.

    Each width of a pass, and each head, is compiled once and then replayed; the number of cached
    tokens is a variable of the compiled program.
    """

    def __init__(self, model: Transformer, rotary: Rotary):
        self._model = model
        self._rotary = rotary
        blocks = model.blk
        self._attentions: list[Any] = [find_attention(block) for block in blocks]
        self.cache = KVCache(lambda tokens: [cache_shape(block, tokens) for block in blocks])
        self._compiled: dict[tuple[str, int], Any] = {}
        self._compiled_for = 0

    @property
    def vocabulary_size(self) -> int:
        return int(self._model.token_embd.weight.shape[0])

    def run(
        self,
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
        begin: int,
    ) -> Tensor:
        """Run a pass whose slots begin at `begin`; return its last hidden states [width, dim].

        `visible` is [width, capacity]. The result is overwritten by the next pass of this width.
        """
        if self._compiled_for != self.cache.capacity:
            # These programs are bound to the cache's tensors.
            self._compiled = {key: v for key, v in self._compiled.items() if key[0] != _RUN}
            self._compiled_for = self.cache.capacity
        width, capacity = visible.shape
        run = self._program(_RUN, width, self._run)
        return run(
            Tensor(token_ids.astype(np.int32)),
            Tensor(self._rotary.at(positions)),
            Tensor(visible),
            UOp.variable("begin", 0, capacity - width).bind(begin),
            UOp.variable("upto", width, capacity).bind(begin + width),
        )

    def logits(self, hidden: Tensor, rows: list[int], at_most: int) -> Floats:
        """Return logits [rows, vocabulary] in float32 of `rows`, which are at most `at_most`."""
        program = self._program("logits", at_most, self._logits)
        return program(self._rows(hidden, rows, at_most)).numpy()[: len(rows)]

    def scores(
        self, hidden: Tensor, rows: list[int], token_ids: list[int]
    ) -> list[tuple[float, bool]]:
        """Return for each row the log-probability of a token and whether no logit is larger."""
        found: list[tuple[float, bool]] = []
        for at in range(0, len(rows), SCORED_ROWS):
            part = rows[at : at + SCORED_ROWS]
            wanted, places = np.unique(part, return_inverse=True)
            place, target = np.zeros((2, SCORED_ROWS), np.int32)
            place[: len(part)], target[: len(part)] = places, token_ids[at : at + SCORED_ROWS]
            program = self._program("scores", SCORED_ROWS, self._scores)
            kept = self._rows(hidden, wanted, SCORED_ROWS)
            values = program(kept, Tensor(place), Tensor(target)).numpy()
            found += [(float(value), bool(greedy)) for value, greedy in values[:, : len(part)].T]
        return found

    def _rows(self, hidden: Tensor, rows: Sequence[int] | NDArray[np.int64], count: int) -> Tensor:
        """Return the named rows, padded to `count`: the head has one shape for all passes."""
        index = np.zeros(count, np.int32)
        index[: len(rows)] = rows
        program = self._program(f"{count} rows", cast(int, hidden.shape[0]), _gather)
        return program(hidden, Tensor(index))

    def _program(self, name: str, width: int, function: Any) -> Any:
        if (name, width) not in self._compiled:
            self._compiled[name, width] = TinyJit(function)
        return self._compiled[name, width]

    def _run(
        self, token_ids: Tensor, rotation: Tensor, visible: Tensor, begin: Any, upto: Any
    ) -> Tensor:
        step = Step(rotation, visible[:, :upto], begin, upto)
        x = self._model.token_embd(token_ids.unsqueeze(0)).float()
        layers = zip(self._model.blk, self._attentions, self.cache.tensors, strict=True)
        for block, attention, cache in layers:
            x = x + attention(block, block.attn_norm(x), cache, step)
            x = (x + block._feed_forward(block.ffn_norm(x))).contiguous()  # pyright: ignore[reportPrivateUsage]
        return self._model.output_norm(x)[0].float().realize()

    def _logits(self, rows: Tensor) -> Tensor:
        return self._model.output(rows).float().realize()

    def _scores(self, rows: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        logits = self._model.output(rows).float().contiguous()
        logprobs = logits.log_softmax(-1)[places, targets]
        greedy = logits[places, targets] >= logits.max(-1)[places]
        return logprobs.stack(greedy.float()).realize()


def _gather(hidden: Tensor, rows: Tensor) -> Tensor:
    return hidden[rows].contiguous().realize()


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens to append to a path, and the targets that read them.

    A target's position counts from the beginning of the sequence. The path gets the tokens' slots
    as they are packed.
    """

    path: Path
    token_ids: list[int]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row of a pass with the target that reads it and the path of its sequence."""

    row: int
    target: Target
    path: Path


@dataclass(frozen=True, slots=True)
class Pass:
    """Hidden states [width, dim], valid until the next pass, and the wanted rows."""

    hidden: Any
    wanted: list[Wanted]


class Packing:
    """Packs tokens into passes; each token is run once and attends to its own sequence alone.

    Args:
        forward: the model.
        widths: possible numbers of tokens in a pass, ascending; each is compiled once.
    """

    def __init__(self, forward: Forward, widths: tuple[int, ...]):
        self._forward = forward
        self._widths = widths
        self.tokens_run = 0

    def passes(self, runs: Iterable[Run], total: int) -> Iterator[Pass]:
        """Run the `total` tokens of `runs`, in their order.

        The next run is read once all before it have their slots, so that it may fork their paths.
        """
        waiting = iter(runs)
        rest: Run | None = None
        while total > 0:
            batch = _Batch(self._forward, self.width(total))
            while batch.free and (run := rest or next(waiting, None)) is not None:
                rest = batch.take(run)
            total -= batch.filled
            self.tokens_run += batch.filled
            yield batch.run()

    def width(self, total: int) -> int:
        """Return the widest pass that is filled by half or more, else the narrowest."""
        fitting = [width for width in self._widths if 2 * total > width]
        return fitting[-1] if fitting else self._widths[0]


class _Batch:
    """A pass under construction."""

    def __init__(self, forward: Forward, width: int):
        self._forward = forward
        self._begin = forward.cache.find_room(width)
        self._token_ids = np.zeros(width, np.int64)
        self._positions = np.zeros(width, np.int64)
        self._visible = np.zeros((width, forward.cache.capacity), np.bool_)
        self._wanted: list[Wanted] = []
        self.filled = 0

    @property
    def free(self) -> int:
        return len(self._token_ids) - self.filled

    def take(self, run: Run) -> Run | None:
        """Add as much of a run as fits; return the rest of it."""
        part = run.token_ids[: self.free]
        before, begin, end = run.path.length, self.filled, self.filled + len(part)
        rows = slice(begin, end)
        self._token_ids[rows] = part
        self._positions[rows] = np.arange(before, before + len(part))
        self._visible[rows, run.path.slots] = True
        own = np.tri(len(part), dtype=np.bool_)
        self._visible[rows, self._begin + begin : self._begin + end] = own
        run.path.extend(self._begin + begin, len(part))
        inside = [target for target in run.targets if target.position < run.path.length]
        self._wanted += [Wanted(begin + t.position - before, t, run.path) for t in inside]
        self.filled = end
        if len(part) == len(run.token_ids):
            return None
        return Run(run.path, run.token_ids[len(part) :], run.targets[len(inside) :])

    def run(self) -> Pass:
        # A row that attends to nothing would be a softmax over nothing: not a number.
        unused = np.arange(self.filled, len(self._token_ids))
        self._visible[unused, self._begin + unused] = True
        hidden = self._forward.run(self._token_ids, self._positions, self._visible, self._begin)
        return Pass(hidden, self._wanted)
