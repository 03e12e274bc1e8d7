"""Continuous batching on the model's own forward pass: a free row takes the next prompt at once.

Prompts that are admitted together are run in one pass, what they share once; after that each step
runs one token of every row.
"""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evalution_core.encoding import shared_prefix
from evalution_enginekit import PromptQueue, TokenEvent
from evalution_transformers.forward import (
    Forward,
    SharedPrefix,
    make_cache,
    read_layer,
)
from evalution_transformers.generate import (
    FixedBatches,
    Generation,
    Row,
    make_memory_error,
    take_tokens,
)

if TYPE_CHECKING:
    from transformers import DynamicCache

_LEAST_KEPT = 8
"""Shared tokens from which continuing behind a cached beginning beats running it again."""

LayerStates = tuple[Tensor, Tensor]
"""Keys and values of one layer, [heads, tokens, head size] each."""


class RowCache:
    """Holds the caches of sequences of different lengths, side by side and flush on the right."""

    def __init__(self) -> None:
        self.cache = make_cache()
        """A forward pass extends it by a token for each row; call `grow` after it."""
        self._lengths: list[int] = []

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(self._lengths, default=0)

    def positions(self) -> list[list[int]]:
        """Return each row's next position, [rows, 1]."""
        return [[length] for length in self._lengths]

    def mask(self, device: torch.device) -> Tensor | None:
        """Return [rows, width + 1] with 0 where a shorter row is empty; None if all are as long."""
        if len(set(self._lengths)) <= 1:
            return None
        lengths = torch.tensor(self._lengths, device=device)
        columns = torch.arange(self.width + 1, device=device)
        return (columns[None] >= self.width - lengths[:, None]).long()

    def grow(self) -> None:
        """Note that each row has a token more."""
        self._lengths = [length + 1 for length in self._lengths]

    def clear(self) -> None:
        """Drop all rows."""
        self.cache = make_cache()
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
        layers: list[Any] = self.cache.layers
        for layer in layers:
            keys, values = read_layer(layer)
            kept = torch.tensor(rows, device=keys.device)
            layer.keys = keys[..., surplus:, :].index_select(0, kept)
            layer.values = values[..., surplus:, :].index_select(0, kept)

    def join(self, added: list[list[LayerStates]]) -> None:
        """Append rows; each brings the keys and values of every layer."""
        lengths = [*self._lengths, *(row[0][0].shape[-2] for row in added)]
        width = max(lengths)
        joined = make_cache()
        for at in range(len(added[0])):
            held = read_layer(self.cache.layers[at]) if self._lengths else None
            for_layer = [row[at] for row in added]
            keys = _align_right(held[0] if held else None, [pair[0] for pair in for_layer], width)
            values = _align_right(held[1] if held else None, [pair[1] for pair in for_layer], width)
            joined.update(keys, values, at)
        self.cache, self._lengths = joined, lengths


def read_states(cache: DynamicCache, shared: int, begin: int, end: int) -> list[LayerStates]:
    """Return keys and values of a one-row cache: its first `shared` tokens and `begin` to `end`."""

    def read(states: Tensor) -> Tensor:
        return torch.cat((states[0, :, :shared], states[0, :, begin:end]), dim=1)

    return [(read(keys), read(values)) for keys, values in map(read_layer, cache.layers)]


def _align_right(held: Tensor | None, added: list[Tensor], width: int) -> Tensor:
    """Return all rows in one tensor [rows, heads, width, head size], each flush on the right."""
    rows = 0 if held is None else held.shape[0]
    first = added[0]
    joined = first.new_zeros(rows + len(added), first.shape[0], width, first.shape[2])
    if held is not None:
        joined[:rows, :, width - held.shape[2] :] = held
    for at, states in enumerate(added, start=rows):
        joined[at, :, width - states.shape[1] :] = states
    return joined


class ContinuousBatching(Generation):
    """Completes prompts side by side; a row leaves when it is done, and another takes its place.

    Args:
        forward: a model whose prefixes can be shared (`Architecture.shares_prefixes`).
        rows: prompts that run at once.
        pass_tokens: tokens of one pass over new prompts.
        beams: completes prompts with beams, one at a time.
        keeps_prefix: False where weights may change between two calls, as in a training loop.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        rows: int,
        pass_tokens: int,
        beams: FixedBatches,
        keeps_prefix: bool = True,
    ):
        self._forward = forward
        self._keeps_prefix = keeps_prefix
        self._rows_at_once = self._most_rows = rows
        self._pass_tokens = pass_tokens
        self._beams = beams
        self._prefix = SharedPrefix(forward)
        self._kept = RowCache()
        self._running: list[Row] = []
        self._waiting: list[Row] = []
        self._left_alone = 0
        """Waiting prompts to admit one by one: a pass of them together gave what is no number."""

    def run(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        self._running, self._waiting, self._left_alone = [], [], 0
        self._kept.clear()
        while True:
            self._drop(feed.cancelled())
            free = self._rows_at_once - len(self._running) - len(self._waiting)
            prompts = feed.take(max(0, free))
            self._waiting += [Row(prompt) for prompt in prompts if prompt.num_beams == 1]
            searched = [prompt for prompt in prompts if prompt.num_beams > 1]
            if searched:
                yield from self._beams.complete(searched, lambda: self._read_cancelled(feed))
            if self._waiting and len(self._running) < self._rows_at_once:
                yield self._run_step(self._admit)
            elif self._running:
                yield self._run_step(self._step)
            elif not prompts:
                return

    def forget(self) -> None:
        self._prefix.clear()

    def describe(self) -> dict[str, Any]:
        return {"batching": "continuous", "generation": "forward passes"}

    def _read_cancelled(self, feed: PromptQueue) -> list[int]:
        keys = feed.cancelled()
        self._drop(keys)
        return keys

    def _drop(self, keys: Sequence[int]) -> None:
        for row in (*self._running, *self._waiting):
            row.is_done = row.is_done or row.prompt.key in keys
        self._waiting = [row for row in self._waiting if not row.is_done]
        self._sweep()

    def _sweep(self) -> None:
        """Free the rows that are done."""
        left = [at for at, row in enumerate(self._running) if not row.is_done]
        self._kept.keep(left)
        self._running = [self._running[at] for at in left]

    def _run_step(self, step: Callable[[], Sequence[TokenEvent]]) -> Sequence[TokenEvent]:
        """Run a step; when memory runs out, begin again with half as many rows at once."""
        try:
            events = step()
        except torch.OutOfMemoryError as error:
            return self._retreat(error)
        except BaseException:
            # Some layers may hold tokens that others don't.
            self._prefix.clear()
            raise
        self._sweep()
        return events

    def _retreat(self, error: BaseException) -> Sequence[TokenEvent]:
        self._prefix.clear()
        self._kept.clear()
        lost = [*self._running, *self._waiting]
        self._running, self._waiting = [], lost
        if self._rows_at_once > 1:
            self._rows_at_once = max(1, min(self._rows_at_once, len(lost)) // 2)
            return ()
        self._rows_at_once = self._most_rows  # others may fit
        failed = self._waiting.pop(0)
        return [TokenEvent(failed.prompt.key, error=make_memory_error(error))]

    def _admit(self) -> Sequence[TokenEvent]:
        """Run the next waiting prompts that fit one pass, and take their first tokens."""
        if not (self._keeps_prefix or self._running):
            self._prefix.clear()  # a stream stays open between the calls of a session
        free = self._rows_at_once - len(self._running)
        group = self._next_group(1 if self._left_alone else free)
        shared = self._grow_prefix([row.token_ids for row in group])
        states, logits = self._run_rests(group, shared)
        if len(group) > 1 and not logits.amax(dim=-1).isfinite().all():
            self._left_alone = len(group)
            return ()
        self._left_alone = max(0, self._left_alone - 1)
        self._kept.join(states)
        events = take_tokens(group, logits)
        self._waiting = self._waiting[len(group) :]
        self._running += group
        return events

    def _next_group(self, free: int) -> list[Row]:
        """Return waiting prompts, at least one, whose unshared parts fit into one pass."""
        group = self._waiting[:1]
        first = group[0].token_ids
        common, total = len(first), len(first)
        for row in self._waiting[1:free]:
            token_ids = row.token_ids
            common = min(common, shared_prefix(first, token_ids))
            total += len(token_ids)
            if total - common * (len(group) + 1) > self._pass_tokens:
                break
            group.append(row)
        return group

    def _grow_prefix(self, prompts: list[list[int]]) -> int:
        """Cache what the prompts have in common, and return how many tokens that is."""
        first = prompts[0]
        common = min(len(prompt) - 1 for prompt in prompts)
        for prompt in prompts[1:]:
            common = min(common, shared_prefix(first, prompt))
        cached = min(common, self._prefix.count_shared(first))
        if len(prompts) == 1 and cached >= _LEAST_KEPT and len(first) - cached <= self._pass_tokens:
            # Its own tokens are of no use to the next prompt, which shares what the last ones did.
            common = cached
        if common < _LEAST_KEPT:
            common = cached = 0
        for _, inputs in self._prefix.passes(first[:common], cached, self._pass_tokens):
            self._forward.run(inputs)
        return common

    def _run_rests(self, group: list[Row], shared: int) -> tuple[list[list[LayerStates]], Tensor]:
        """Run the rest of each prompt behind the prefix, side by side.

        Returns the keys and values of each prompt, and its next-token logits [prompts, vocab].
        """
        parts = [row.token_ids[shared:] for row in group]
        ends = list(accumulate(len(part) for part in parts))
        alone = [end for end, part in zip(ends, parts, strict=True) for _ in part]
        token_ids = [token_id for part in parts for token_id in part]
        positions = [shared + at for part in parts for at in range(len(part))]
        inputs = self._prefix.continue_with([token_ids], [positions], [alone], keep=True)
        columns = torch.tensor(ends, device=self._forward.device) - 1
        logits = self._forward.logits(inputs, torch.zeros_like(columns), columns)
        states = [
            read_states(inputs["past_key_values"], shared, shared + begin, shared + end)
            for begin, end in pairwise([0, *ends])
        ]
        self._prefix.prune()
        return states, logits

    def _step(self) -> Sequence[TokenEvent]:
        """Take the next token of every row."""
        device = self._forward.device
        last = [[row.generated[-1]] for row in self._running]
        inputs = self._forward.inputs(
            last, self._kept.positions(), self._kept.mask(device), self._kept.cache
        )
        rows = torch.arange(len(last), device=device)
        logits = self._forward.logits(inputs, rows, torch.zeros_like(rows))
        self._kept.grow()
        return take_tokens(self._running, logits)
