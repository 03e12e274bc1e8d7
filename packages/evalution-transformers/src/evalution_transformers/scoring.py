"""Scoring with every shared prefix run once: subtrees of the plan side by side in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from evalution_enginekit import (
    BatchLimits,
    Target,
    TokenScore,
    TokenSpan,
    plan_scoring,
)
from evalution_transformers.forward import Forward, Inputs, score_rows
from evalution_transformers.packing import Pack, Packing
from evalution_transformers.tree_mask import as_attention_mask, tree_mask
from evalution_transformers.trunk import Trunk

_LEAST_KEPT = 8
"""Cached tokens from which continuing behind them beats running them again."""

_Scored = tuple[Target, float, bool]
"""A target, its log-probability, and whether it is greedy."""


class Tally:
    """What is known of each span's score, handed out in the order of the spans."""

    def __init__(self, spans: Sequence[TokenSpan]):
        self._logprobs = [[0.0] * (len(span.token_ids) - span.start) for span in spans]
        self._greedy = [True] * len(spans)
        self._missing = [len(values) for values in self._logprobs]
        self._done = 0

    def add(self, span: int, slot: int, logprob: float, greedy: bool) -> None:
        self._logprobs[span][slot] = logprob
        self._greedy[span] &= greedy
        self._missing[span] -= 1

    def take(self) -> list[TokenScore]:
        """The scores that are complete and not taken yet, up to the first that isn't."""
        begin = self._done
        while self._done < len(self._missing) and not self._missing[self._done]:
            self._done += 1
        return [TokenScore(self._logprobs[at], self._greedy[at]) for at in range(begin, self._done)]


class PackedScorer:
    """Scores spans over the trie of their prefixes, and keeps the last trunk for the next call.

    Args:
        forward: the model.
        additive_mask: whether the attention adds its mask to the scores, as eager attention does,
            and so needs numbers in place of booleans.
        pass_tokens: tokens of one forward pass, until memory teaches better.
        keeps_trunk: False where weights may change between two calls, as in a training loop.
        out_of_memory: the exceptions after which a smaller pass is tried.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        additive_mask: bool,
        pass_tokens: int,
        keeps_trunk: bool = True,
        out_of_memory: type[BaseException]
        | tuple[type[BaseException], ...] = torch.OutOfMemoryError,
    ):
        self._forward = forward
        self._additive_mask = additive_mask
        self._pass_tokens = pass_tokens
        self._keeps_trunk = keeps_trunk
        self._out_of_memory = out_of_memory
        self._limits = BatchLimits()
        self._trunk = Trunk(forward)

    def forget(self) -> None:
        """Free the cached trunk."""
        self._trunk.clear()

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """After each forward pass, the scores that are complete, in the order of the spans."""
        if not self._keeps_trunk:
            self._trunk.clear()
        tally = Tally(spans)
        packing = Packing(plan_scoring(spans))
        cached = self._trunk.shared_with(packing.first_path)
        if cached >= _LEAST_KEPT:
            packing.begin_behind(cached)
        while True:
            before = packing.state()
            pack = packing.next_pack(self._capacity)
            if pack is None:
                return
            try:
                found = self._run(packing, pack)
            except self._out_of_memory:
                if not self._lowered(packing, pack):
                    raise
                packing.restore(before)
                continue
            except BaseException:
                # Some layers may hold tokens that others don't.
                self._trunk.clear()
                raise
            for target, logprob, greedy in found:
                tally.add(target.span, target.slot, logprob, greedy)
            yield tally.take()

    def _capacity(self, behind: int) -> int:
        return min(self._pass_tokens, self._limits.limit(behind) or self._pass_tokens)

    def _lowered(self, packing: Packing, pack: Pack) -> bool:
        """After memory ran out: half as many tokens behind such a trunk; False if it was one."""
        self._trunk.clear()
        behind = len(packing.path_ids(pack.trunk))
        smaller = self._capacity(behind) // 2
        if smaller:
            self._limits.lower(behind, smaller)
        return smaller > 0

    def _run(self, packing: Packing, pack: Pack) -> list[_Scored]:
        path = packing.path_ids(pack.trunk)
        wanted = [target for at in pack.trunk for target in packing.branches[at].targets]
        begin = self._trunk.shared_with(path)
        begin = min([begin, *(target.position for target in wanted)])
        found: list[_Scored] = []
        for run in self._trunk.runs(path, begin, self._capacity(begin)):
            end = run.begin + run.inputs.token_ids.shape[1]
            inside = [target for target in wanted if run.begin <= target.position < end]
            found += self._score(run.inputs, [t.position - run.begin for t in inside], inside)
        if pack.members:
            found += self._run_members(packing, pack.members)
        for at in (*pack.trunk, *pack.members):
            packing.branches[at].targets = []
        return found

    def _run_members(self, packing: Packing, members: tuple[int, ...]) -> list[_Scored]:
        layout = Layout.of(packing, members)
        mask = None
        if len(members) > 1:
            seen = tree_mask(layout.owners, layout.ancestors, len(self._trunk))
            mask = as_attention_mask(
                seen.to(self._forward.device),
                self._forward.model.dtype,
                additive=self._additive_mask,
            )
        inputs = self._trunk.branch(layout.token_ids, layout.positions, mask)
        found = self._score(inputs, layout.columns, layout.targets)
        self._trunk.prune(len(layout.token_ids))
        return found

    def _score(self, inputs: Inputs, columns: list[int], targets: list[Target]) -> list[_Scored]:
        if not targets:
            self._forward.run(inputs)
            return []
        device = self._forward.device
        at = torch.tensor(columns, device=device)
        token_ids = torch.tensor([target.token_id for target in targets], device=device)
        found = score_rows(self._forward, inputs, torch.zeros_like(at), at, token_ids)
        return list(zip(targets, found.logprobs, found.greedy, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """The branches of a pass in one row of tokens; `columns[i]` is where `targets[i]` is read."""

    token_ids: list[int]
    positions: list[int]
    owners: list[int]
    """For each token, which of the branches it belongs to."""
    ancestors: list[list[bool]]
    """Whether branch i sees branch j: itself and those it continues."""
    columns: list[int]
    targets: list[Target]

    @classmethod
    def of(cls, packing: Packing, members: Sequence[int]) -> Layout:
        place = {at: index for index, at in enumerate(members)}
        token_ids: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        columns: list[int] = []
        targets: list[Target] = []
        ancestors: list[list[bool]] = []
        for index, at in enumerate(members):
            branch = packing.branches[at]
            columns += [len(token_ids) + t.position - branch.depth for t in branch.targets]
            targets += branch.targets
            token_ids += branch.token_ids
            positions += range(branch.depth, branch.end)
            owners += [index] * len(branch.token_ids)
            above = place.get(branch.parent) if branch.parent is not None else None
            row = list(ancestors[above]) if above is not None else [False] * len(members)
            row[index] = True
            ancestors.append(row)
        return cls(token_ids, positions, owners, ancestors, columns, targets)
