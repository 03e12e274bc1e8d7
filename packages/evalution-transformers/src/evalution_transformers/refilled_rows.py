"""Continuous batching on the model's own forward pass: a free row takes the next prompt at once.

Prompts that are admitted together are run in one pass, what they share once; after that each step
runs one token of every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from evalution_enginekit import TokenEvent, TokenFeed
from evalution_enginekit.planning import shared_prefix
from evalution_transformers.fixed_batches import FixedBatches
from evalution_transformers.forward import Forward, Inputs
from evalution_transformers.kv_cache import LayerStates, RowCache, branch_states
from evalution_transformers.rows import Row, take_all, too_large
from evalution_transformers.tree_mask import as_attention_mask, tree_mask
from evalution_transformers.trunk import Trunk

_LEAST_KEPT = 8
"""Shared tokens from which continuing behind a cached beginning beats running it again."""


class RefilledRows:
    """Completes prompts side by side; a row leaves when it is done, and another takes its place.

    Args:
        forward: a model whose prefixes can be shared (`Architecture.packs`).
        additive_mask: as `PackedScorer` has it.
        rows: prompts that run at once.
        pass_tokens: tokens of one pass over new prompts.
        beams: completes prompts with beams, one at a time.
        out_of_memory: the exceptions after which fewer rows are tried.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        additive_mask: bool,
        rows: int,
        pass_tokens: int,
        beams: FixedBatches,
        out_of_memory: type[BaseException]
        | tuple[type[BaseException], ...] = torch.OutOfMemoryError,
    ):
        self._forward = forward
        self._additive_mask = additive_mask
        self._rows_at_once = rows
        self._pass_tokens = pass_tokens
        self._beams = beams
        self._out_of_memory = out_of_memory
        self._trunk = Trunk(forward)
        self._kept = RowCache()
        self._running: list[Row] = []
        self._waiting: list[Row] = []

    def run(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        """The events of each step, until nothing runs and `feed` has nothing."""
        self._running, self._waiting = [], []
        self._kept.clear()
        while True:
            self._drop(feed.cancelled())
            free = self._rows_at_once - len(self._running) - len(self._waiting)
            prompts = feed.take(max(0, free))
            self._waiting += [Row(prompt) for prompt in prompts if prompt.num_beams == 1]
            searched = [prompt for prompt in prompts if prompt.num_beams > 1]
            if searched:
                yield from self._beams.complete(searched, lambda: self._noted(feed))
            if self._waiting and len(self._running) < self._rows_at_once:
                yield self._guarded(self._admit)
            elif self._running:
                yield self._guarded(self._step)
            elif not prompts:
                return

    def forget(self) -> None:
        """Free the beginning that the last prompts shared."""
        self._trunk.clear()

    def paused(self) -> AbstractContextManager[None]:
        """Between two steps it does nothing."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        return {"batching": "continuous", "generation": "refilled rows"}

    def _noted(self, feed: TokenFeed) -> list[int]:
        keys = feed.cancelled()
        self._drop(keys)
        return keys

    def _drop(self, keys: Sequence[int]) -> None:
        for row in (*self._running, *self._waiting):
            row.is_done = row.is_done or row.prompt.key in keys
        self._waiting = [row for row in self._waiting if not row.is_done]
        self._sweep()

    def _sweep(self) -> None:
        """Let go of the rows that are done."""
        left = [at for at, row in enumerate(self._running) if not row.is_done]
        self._kept.keep(left)
        self._running = [self._running[at] for at in left]

    def _guarded(self, step: Callable[[], Sequence[TokenEvent]]) -> Sequence[TokenEvent]:
        """A step; when memory runs out, everything begins again with half as many rows at once."""
        try:
            events = step()
        except self._out_of_memory as error:
            return self._retreat(error)
        except BaseException:
            # Some layers may hold tokens that others don't.
            self._trunk.clear()
            raise
        self._sweep()
        return events

    def _retreat(self, error: BaseException) -> Sequence[TokenEvent]:
        self._trunk.clear()
        self._kept.clear()
        lost = [*self._running, *self._waiting]
        self._running, self._waiting = [], lost
        if self._rows_at_once > 1:
            self._rows_at_once = max(1, min(self._rows_at_once, len(lost)) // 2)
            return ()
        failed = self._waiting.pop(0)
        return [TokenEvent(failed.prompt.key, error=too_large(error))]

    def _admit(self) -> Sequence[TokenEvent]:
        """Run the next waiting prompts that fit one pass, and take their first tokens."""
        group = self._next_group(self._rows_at_once - len(self._running))
        shared = self._grow_trunk([row.token_ids for row in group])
        states, logits = self._run_branches(group, shared)
        events = take_all(group, logits)
        self._waiting = self._waiting[len(group) :]
        self._kept.join(states)
        self._running += group
        return events

    def _next_group(self, free: int) -> list[Row]:
        """Waiting prompts whose parts that aren't shared fit into one pass; at least one."""
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

    def _grow_trunk(self, prompts: list[list[int]]) -> int:
        """Cache what the prompts have in common; how many tokens that is."""
        first = prompts[0]
        common = min(len(prompt) - 1 for prompt in prompts)
        for prompt in prompts[1:]:
            common = min(common, shared_prefix(first, prompt))
        cached = min(common, self._trunk.shared_with(first))
        if len(prompts) == 1 and cached >= _LEAST_KEPT and len(first) - cached <= self._pass_tokens:
            # What is its own is of no use to the next prompt, which shares what the last ones did.
            common = cached
        if common < _LEAST_KEPT:
            common = cached = 0
        for run in self._trunk.runs(first[:common], cached, self._pass_tokens):
            self._forward.run(run.inputs)
        return common

    def _run_branches(
        self, group: list[Row], shared: int
    ) -> tuple[list[list[LayerStates]], torch.Tensor]:
        """The rest of each prompt behind the trunk, side by side; states and next-token logits."""
        parts = [row.token_ids[shared:] for row in group]
        ends = [sum(len(part) for part in parts[: at + 1]) for at in range(len(parts))]
        begins = [end - len(part) for end, part in zip(ends, parts, strict=True)]
        owners = [at for at, part in enumerate(parts) for _ in part]
        alone = [[one == other for other in range(len(parts))] for one in range(len(parts))]
        device = self._forward.device
        mask = None
        if len(parts) > 1:
            seen = tree_mask(owners, alone, shared).to(device)
            mask = as_attention_mask(seen, self._forward.model.dtype, additive=self._additive_mask)
        positions = [shared + at for part in parts for at in range(len(part))]
        inputs = self._trunk.branch([i for part in parts for i in part], positions, mask, keep=True)
        columns = torch.tensor(ends, device=device) - 1
        with torch.no_grad():
            chunks = self._forward.logits(inputs, torch.zeros_like(columns), columns)
            logits = torch.cat(list(chunks))
        states = [
            branch_states(inputs.cache, shared, shared + begin, shared + end)
            for begin, end in zip(begins, ends, strict=True)
        ]
        self._trunk.prune(len(owners))
        return states, logits

    def _step(self) -> Sequence[TokenEvent]:
        """The next token of every row."""
        device = self._forward.device
        last = [[row.generated[-1]] for row in self._running]
        inputs = Inputs(
            torch.tensor(last, device=device),
            torch.tensor(self._kept.positions(), device=device),
            self._kept.mask(device),
            self._kept.cache,
        )
        rows = torch.arange(len(last), device=device)
        with torch.no_grad():
            logits = torch.cat(list(self._forward.logits(inputs, rows, torch.zeros_like(rows))))
        self._kept.grow()
        return take_all(self._running, logits)
